"""Reads of operations. The number of statements does not grow with the rows."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import OuterRef, Q, QuerySet, Subquery

from jobs.models import Operation
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import NotFound
from models_app.models import Placement
from models_app.states import STARTING

LONGEST_PAUSE = timedelta(minutes=10)
"""The longest time until an operation looks again; clocks of several hosts may differ by as much."""


def unfinished() -> QuerySet[Operation]:
    """Return the operations that are not over."""
    return Operation.objects.filter(finished_at__isnull=True)


def due(now: datetime) -> Q:
    """Return the condition of rows that a worker may claim: not over, due, and not leased.

    A time beyond the longest pause or lease was written before the clock was set back; it counts as passed.
    """
    beyond = now + LONGEST_PAUSE
    is_due = Q(next_run_at__lte=now) | Q(next_run_at__gt=beyond)
    held_until = beyond + settings().operation_lease
    is_free = Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now) | Q(lease_expires_at__gt=held_until)
    return Q(finished_at__isnull=True) & is_due & is_free


def open_operation(group: str, target_kind: str, target_id: str) -> Operation | None:
    """Return the operation of the concurrency group `group` that is open on the target, None when there is none."""
    return unfinished().filter(concurrency_group=group, target_kind=target_kind, target_id=target_id).first()


def busy_nodes() -> set[str]:
    """Return the nodes on which a model starts, or has an open start or stop: no other start is opened there."""
    starting = Placement.objects.filter(observed=STARTING).values_list("node_id_text", flat=True)
    return set(starting) | set(unfinished().filter(concurrency_group="run").values_list("node_id_text", flat=True))


def about_node(node_id: str) -> Q:
    """Return the condition of operations on a node: on it, about it, or a move away from it."""
    return Q(node_id_text=node_id) | Q(kind="move", input__sourceNode=node_id)


def open_by_model(model_ids: Iterable[str]) -> dict[str, Operation]:
    """Return the newest open operation of each model that has one. One statement."""
    rows = unfinished().filter(model_id_text__in=list(model_ids)).order_by("id")
    return {row.model_id_text: row for row in rows}


def last_by_model(model_ids: Iterable[str]) -> dict[str, Operation]:
    """Return the newest operation of each model, open or ended. One statement."""
    newest = Operation.objects.filter(model_id_text=OuterRef("model_id_text")).order_by("-id").values("pk")[:1]
    rows = Operation.objects.filter(model_id_text__in=list(model_ids), pk=Subquery(newest))
    return {row.model_id_text: row for row in rows}


def one_operation(operation_id: str) -> Operation:
    """Return an operation with its timeline. Raises NotFound."""
    row = Operation.objects.prefetch_related("events").filter(pk=operation_id).first()
    if row is None:
        raise NotFound(f"Operation {operation_id!r} not found.")
    return row
