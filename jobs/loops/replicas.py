"""Rebuilds replicas that lost a shard: the others are stopped, and all start anew.

What is left of a replica serves nothing, whatever it says of itself. Each rebuild is an ordinary restart of every shard
by operations of their own. A replica that loses a shard again and again is stopped, and a person looks.
"""

from collections.abc import Sequence
from datetime import timedelta

import structlog

from jobs import requests
from jobs.kinds import launch
from jobs.models import Operation
from jobs.queries import unfinished
from mirbad.kernel import clock
from mirbad.kernel.actor import system
from mirbad.kernel.errors import MirbadError
from models_app.models import Placement
from models_app.queries import Replica, grouped
from models_app.states import FAILED, RUNNING, STOPPED, STOPPING
from nodes import fencing

log = structlog.get_logger(__name__)

REPLICA = system("replica")
MOST_REBUILDS = 3
WITHIN = timedelta(minutes=15)

_LOST = frozenset({FAILED, STOPPED, STOPPING})


def rebuild_once() -> int:
    """Look at every replica of several shards; for how many something was asked."""
    if fencing.is_fenced():
        return 0
    rows = Placement.objects.filter(shards__gt=1, routed=True, model__hold__isnull=True).order_by("created_at", "pk")
    replicas = grouped(rows)
    busy = set(
        unfinished()
        .filter(lane="run", target_kind="placement", target_id__in=[str(one.pk) for one in rows])
        .values_list("target_id", flat=True)
    )
    return sum(
        _see_to(replica)
        for replica in replicas
        if busy.isdisjoint(str(placement.pk) for placement in replica.placements)
    )


def _see_to(replica: Replica) -> bool:
    """Ask for what the replica needs; False when it needs nothing, or cannot have it now."""
    model_id = replica.head.model_id
    try:
        if why := _beyond_repair(replica):
            requests.stop_all(model_id, REPLICA, replica=replica.id, text=why)
            log.warning("a replica is stopped", model=model_id, replica=str(replica.id), reason=why)
            return True
        if why := _lost(replica):
            requests.restart_all(model_id, REPLICA, replica=replica.id, text=why)
            log.warning("a replica is rebuilt", model=model_id, replica=str(replica.id), reason=why)
            return True
    except MirbadError as error:
        log.info("a replica waits", model=model_id, replica=str(replica.id), code=error.code, reason=error.detail)
    return False


def _beyond_repair(replica: Replica) -> str:
    """Why what is left of it is to be stopped; empty when it may go on, or nothing is left."""
    if replica.desired == STOPPED:
        return ""
    if not replica.is_whole:
        return f"Only {len(replica.placements)} of its {replica.wanted} shards are left: stopping them."
    if any(placement.desired == STOPPED for placement in replica.placements):
        return "One of its shards is to be stopped, and the others serve nothing without it."
    if _lost(replica) and _rebuilds(replica) >= MOST_REBUILDS:
        minutes = WITHIN.total_seconds() / 60
        return (
            f"It lost a shard {MOST_REBUILDS + 1} times within {minutes:.0f} minutes, so it is not started again by "
            "itself: look at the logs of its shards, then start it."
        )
    return ""


def _lost(replica: Replica) -> str:
    """Which shards are gone that should run, in words."""
    if replica.desired != RUNNING:
        return ""
    gone: Sequence[Placement] = [placement for placement in replica.placements if placement.observed in _LOST]
    if not gone:
        return ""
    names = ", ".join(f"shard {placement.shard} on {placement.node_id_text}" for placement in gone)
    return f"{names[0].upper()}{names[1:]} is gone: all shards start anew."


def _rebuilds(replica: Replica) -> int:
    """How often it was rebuilt lately."""
    return Operation.objects.filter(
        kind=launch.NAME,
        target_kind="placement",
        target_id=str(replica.head.pk),
        actor=REPLICA.name,
        created_at__gte=clock.now() - WITHIN,
    ).count()
