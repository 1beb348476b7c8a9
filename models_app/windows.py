"""Maintenance windows: opened and closed by an action that needs models left alone, read by the gateway.

The scope is decided when a window opens, one node or the whole of ``/v1``: by ``MIRBAD_MAINTENANCE_NODE_SCOPED``, and
without it by whether there are two or more fleet members.
"""

import math
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from mirbad.kernel import clock, recovery_mode
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Conflict, NotFound
from mirbad.live import invalidations
from models_app import routing
from models_app.models import MaintenanceWindow
from nodes import queries as node_queries

SHORTEST_ESTIMATE = timedelta(seconds=30)
_SEVERAL = 2


def is_node_scoped() -> bool:
    """Return whether a window that opens now covers one node only."""
    chosen = settings().maintenance_node_scoped
    if chosen is not None:
        return chosen == "true"
    return node_queries.fleet_members()[:_SEVERAL].count() >= _SEVERAL


def open_window(
    holder: str,
    purpose: str,
    *,
    model_id: str,
    node_id: str,
    estimate: timedelta,
    node_scoped: bool | None = None,
) -> MaintenanceWindow:
    """Pause models for `holder`. `purpose` completes "Mirbad is running …", for instance "a benchmark".

    `node_scoped` None decides now; otherwise it is used as given. Opening an open window renews its estimate only.
    Raises Conflict when another holder has a window over the same node.
    """
    scoped = is_node_scoped() if node_scoped is None else node_scoped
    until = clock.now() + max(estimate, SHORTEST_ESTIMATE)
    try:
        with transaction.atomic():
            window, made = MaintenanceWindow.objects.get_or_create(
                holder=holder,
                defaults={
                    "purpose": purpose,
                    "node_id_text": node_id if scoped else "",
                    "model_id_text": model_id,
                    "until": until,
                },
            )
            if not made:
                window.until = until
                window.save(update_fields=["until"])
            _changed(model_id)
    except IntegrityError:
        raise Conflict(f"Another job holds node {node_id!r} in a maintenance window. Wait for it to finish.") from None
    return window


def extend(holder: str, estimate: timedelta) -> MaintenanceWindow:
    """Renew the estimate, from now. Raises NotFound when the window is closed."""
    with transaction.atomic():
        window = MaintenanceWindow.objects.filter(holder=holder).first()
        if window is None:
            raise NotFound(f"{holder} has no open maintenance window.")
        window.until = clock.now() + max(estimate, SHORTEST_ESTIMATE)
        window.save(update_fields=["until"])
        _changed(window.model_id_text)
    return window


def close_window(holder: str) -> bool:
    """Close the window; return whether one was open."""
    with transaction.atomic():
        window = MaintenanceWindow.objects.filter(holder=holder).first()
        if window is None:
            return False
        window.delete()
        _changed(window.model_id_text)
    return True


def open_windows() -> QuerySet[MaintenanceWindow]:
    """Return all open windows, the oldest first."""
    return MaintenanceWindow.objects.all()


def words(window: MaintenanceWindow, now: datetime) -> str:
    """Return the sentence for clients of ``/v1``."""
    where = f" on node {window.node_id_text}" if window.node_id_text else ""
    paused = f"the models of node {window.node_id_text} are" if window.node_id_text else "the API is"
    until = _until(window, now).strftime("%H:%M")
    return f"Mirbad is running {window.purpose} on {window.model_id_text}{where}; {paused} paused until ~{until} UTC."


def retry_seconds(window: MaintenanceWindow, now: datetime) -> int:
    """Return the seconds until a retry: the estimate, at least 30 seconds."""
    return math.ceil((_until(window, now) - now).total_seconds())


def is_recovering() -> bool:
    """Return whether the recovery mode closes `/v1`."""
    return recovery_mode.is_on(settings())


def _until(window: MaintenanceWindow, now: datetime) -> datetime:
    # A passed estimate is not the end: the window is open until its holder closes it.
    return max(window.until, now + SHORTEST_ESTIMATE)


def _changed(model_id: str) -> None:
    routing.bump()
    transaction.on_commit(lambda: invalidations.changed("models", model_id))
