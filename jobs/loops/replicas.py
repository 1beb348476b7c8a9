"""Rebuilds replicas that lost a shard: the others are stopped, and all start again.

The remaining shards of a replica serve nothing, even if they report ready. Each rebuild is an ordinary restart of every
shard by operations of their own. A replica that loses shards repeatedly is stopped, for a person to decide.
"""

from collections.abc import Sequence
from datetime import timedelta

import structlog

from jobs.kinds import launch
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import model_runs
from mirbad.kernel import clock
from mirbad.kernel.actor import system
from mirbad.kernel.errors import MirbadError
from models_app.models import Placement
from models_app.models.definition import NEVER
from models_app.queries import PlacedReplica, grouped
from models_app.states import FAILED, RUNNING, STOPPED, STOPPING
from nodes import fencing

log = structlog.get_logger(__name__)

REPLICA = system("replica")
MOST_REBUILDS = 3
WITHIN = timedelta(minutes=15)

_LOST = frozenset({FAILED, STOPPED, STOPPING})


def rebuild_once() -> int:
    """Check every replica of several shards, and return for how many something was requested."""
    if fencing.is_fenced():
        return 0
    rows = (
        Placement.objects.select_related("model")
        .filter(shards__gt=1, routed=True, model__hold__isnull=True)
        .order_by("created_at", "pk")
    )
    replicas = grouped(rows)
    busy = set(
        unfinished()
        .filter(concurrency_group="run", target_kind="placement", target_id__in=[str(one.pk) for one in rows])
        .values_list("target_id", flat=True)
    )
    return sum(
        _repair(replica)
        for replica in replicas
        if busy.isdisjoint(str(placement.pk) for placement in replica.placements)
    )


def _repair(replica: PlacedReplica) -> bool:
    """Request the repair of a replica; False when it needs none, or it is not possible now."""
    model_id = replica.head.model_id
    try:
        if why := _beyond_repair(replica):
            model_runs.stop_all(model_id, REPLICA, replica=replica.id, text=why)
            log.warning("a replica is stopped", model=model_id, replica=str(replica.id), reason=why)
            return True
        if why := _lost(replica):
            model_runs.restart_all(model_id, REPLICA, replica=replica.id, text=why)
            log.warning("a replica is rebuilt", model=model_id, replica=str(replica.id), reason=why)
            return True
    except MirbadError as error:
        log.info("a replica waits", model=model_id, replica=str(replica.id), code=error.code, reason=error.detail)
    return False


def _beyond_repair(replica: PlacedReplica) -> str:
    """Return the reason to stop the remaining shards; empty when they may continue, or none is left."""
    if replica.desired == STOPPED:
        return ""
    if not replica.is_whole:
        return f"Only {len(replica.placements)} of {replica.shard_count} shards are left: stopping them."
    if any(placement.desired == STOPPED for placement in replica.placements):
        return "One shard is to be stopped, and the others cannot serve without it."
    if _lost(replica) and replica.head.model.restart_policy == NEVER:
        return "The replica lost a shard, and the restart policy of the model is never."
    if _lost(replica) and _rebuilds(replica) >= MOST_REBUILDS:
        minutes = WITHIN.total_seconds() / 60
        return (
            f"The replica lost a shard {MOST_REBUILDS + 1} times within {minutes:.0f} minutes and is not restarted "
            "automatically. Check the logs of its shards, then start it."
        )
    return ""


def _lost(replica: PlacedReplica) -> str:
    """Return the shards that should run and do not, as a sentence; empty when there is none."""
    if replica.desired != RUNNING:
        return ""
    gone: Sequence[Placement] = [placement for placement in replica.placements if placement.observed in _LOST]
    if not gone:
        return ""
    names = ", ".join(f"shard {placement.shard} on {placement.node_id_text}" for placement in gone)
    return f"{names[0].upper()}{names[1:]} is gone: all shards start again."


def _rebuilds(replica: PlacedReplica) -> int:
    """Return how often the replica was rebuilt recently."""
    return Operation.objects.filter(
        kind=launch.NAME,
        target_kind="placement",
        target_id=str(replica.head.pk),
        actor=REPLICA.name,
        created_at__gte=clock.now() - WITHIN,
    ).count()
