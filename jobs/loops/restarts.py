"""Starts models again whose engine ended by itself, with growing pauses; one that keeps ending is stopped.

The master decides, not the agent. A start needs a claim, the node's admission and the secrets of the definition, and
only the master knows whether the model was moved meanwhile; an agent that restarts an engine alone could run it twice.
While no master runs there is no `/v1` either, so nobody waits for the engine.

Each restart is an ordinary launch. The count of them is the count of their operations: it survives every process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import Max

from audit import log as audit_log
from jobs.kinds import launch
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import recovery
from jobs.steps.restarts import ENGINE_RESTARTS
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from models_app import holds
from models_app.models import EngineExit, Placement
from models_app.models.definition import NEVER
from models_app.placement import apply
from models_app.states import FAILED, RUNNING
from nodes import fencing

log = structlog.get_logger(__name__)

PAUSES = (
    timedelta(seconds=1),
    timedelta(seconds=10),
    timedelta(seconds=30),
    timedelta(minutes=1),
    timedelta(minutes=2),
)
"""Pauses before the first restart and those after it; the last one repeats."""


@dataclass(slots=True)
class _History:
    """Restarts of one placement since a person started it, within the window, and its last failure."""

    restarts: list[datetime] = field(default_factory=list)
    failed_at: datetime | None = None


def restart_once() -> int:
    """Open a launch for each model whose engine ended and whose pause is over; return how many."""
    if fencing.is_fenced():
        return 0
    rows = list(
        # The shards of a replica start together, by another loop.
        Placement.objects.select_related("model__hold").filter(desired=RUNNING, observed=FAILED, shards=1, routed=True)
    )
    if not rows:
        return 0
    ids = [str(row.pk) for row in rows]
    busy = set(
        unfinished()
        .filter(concurrency_group="run", target_kind="placement", target_id__in=ids)
        .values_list("target_id", flat=True)
    )
    histories = _histories(ids)
    free = [row for row in rows if str(row.pk) not in busy and not hasattr(row.model, "hold")]
    return sum(_restart(row, histories[str(row.pk)]) for row in free)


def _histories(ids: Sequence[str]) -> dict[str, _History]:
    found = {one: _History() for one in ids}
    since = clock.now() - settings().engine_restart_window
    operations = Operation.objects.filter(kind=launch.NAME, target_kind="placement", target_id__in=ids)
    for target, actor, created, finished in (
        operations.filter(created_at__gte=since)
        .order_by("created_at", "pk")
        .values_list("target_id", "actor", "created_at", "finished_at")
    ):
        history = found[target]
        if actor == ENGINE_RESTARTS.name:
            history.restarts.append(created)
            history.failed_at = _later(history.failed_at, finished)
        else:
            history.restarts.clear()
    ends = EngineExit.objects.filter(placement_id_text__in=ids).values_list("placement_id_text")
    for target, at in ends.annotate(last=Max("at")).order_by():
        found[target].failed_at = _later(found[target].failed_at, at)
    return found


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((at for at in (one, other) if at is not None), default=None)


def _restart(placement: Placement, history: _History) -> bool:
    if placement.model.restart_policy == NEVER:
        return _halt(placement, "Its engine ended, and its restart policy is never. Start it when the cause is known.")
    count, most, now = len(history.restarts), settings().engine_restarts, clock.now()
    if count >= most:
        minutes = settings().engine_restart_window.total_seconds() / 60
        return _halt(
            placement,
            f"Its engine ended again after {count} automatic restarts within {minutes:.0f} minutes, so it is stopped. "
            "Read its log, then start it.",
        )
    due = (history.failed_at or now) + PAUSES[min(count, len(PAUSES) - 1)]
    if now < due:
        if placement.restart_at != due:
            with transaction.atomic():
                apply.set_restart(placement, due)
        return False
    text = f"Its engine ended: automatic restart {count + 1} of at most {most}."
    try:
        operation = recovery.launch_again(placement, ENGINE_RESTARTS, text)
    except MirbadError as error:
        log.info("a restart waits", model=placement.model_id, code=error.code, reason=error.detail)
        return False
    if operation is None:
        return False
    log.warning("an engine is restarted", model=placement.model_id, node=placement.node_id_text, restart=count + 1)
    return True


def _halt(placement: Placement, why: str) -> bool:
    """Set the placement to stopped, for a person to decide. Always False: nothing was started."""
    try:
        with transaction.atomic():
            fencing.require_unfenced()
            holds.require_free(placement.model_id)
            row = (
                Placement.objects.select_for_update().filter(pk=placement.pk, desired=RUNNING, observed=FAILED).first()
            )
            if row is None:
                return False
            apply.set_desired_stopped(row, halted=why)
            audit_log.record("model.stop", ENGINE_RESTARTS, node_id=row.node_id_text, model_id=row.model_id, detail=why)
    except MirbadError as error:
        log.info("a stop waits", model=placement.model_id, code=error.code, reason=error.detail)
        return False
    log.warning("a model is stopped", model=placement.model_id, node=placement.node_id_text, reason=why)
    return False
