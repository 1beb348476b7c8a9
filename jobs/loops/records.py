"""Has nodes forget engines that ended and whose place is gone: their records, and their logs.

What a placement still stands for is kept: its page shows why the engine ended.
"""

from datetime import timedelta
from uuid import UUID

import structlog

from agent.wire.instances import LIVE_STATES
from jobs import instances
from jobs.queries import unfinished
from mirbad.kernel import clock
from mirbad.kernel.errors import MirbadError
from models_app import strays
from models_app.models import Hold, Placement, StrayInstance
from nodes import fencing
from nodes.models import Node

log = structlog.get_logger(__name__)

KEPT_FOR = timedelta(minutes=10)
"""Who just took a model off a node may still want to read why its engine ended."""
AT_ONCE = 20
_LIVE = [state.value for state in LIVE_STATES]


def forget_records_once() -> int:
    """Forget what may be forgotten on nodes that serve; how many records went."""
    if fencing.is_fenced():
        return 0
    serving = Node.objects.serving().values("pk")
    rows = StrayInstance.objects.filter(node_id_text__in=serving, since__lte=clock.now() - KEPT_FOR)
    gone, silent = 0, set()
    for row in rows.exclude(state__in=_LIVE)[:AT_ONCE]:
        if row.node_id_text in silent or _is_wanted(row):
            continue
        try:
            gone += instances.forget(row.node_id_text, row.instance_id)
        except MirbadError as error:
            log.info("a record could not be forgotten; it is tried again", node=row.node_id_text, why=error.detail)
            silent.add(row.node_id_text)
            continue
        strays.forget(row.node_id_text, row.instance_id)
    return gone


def _is_wanted(row: StrayInstance) -> bool:
    """Whether someone may still ask for it. What was not started as a placement belongs to whoever started it."""
    try:
        instance_id = UUID(row.instance_id)
    except ValueError:
        return True
    if Placement.objects.filter(pk=instance_id, node_id_text=row.node_id_text).exists():
        return True
    if Hold.objects.filter(model_id=row.model_id_text).exists():
        return True
    starter = row.operation_id_text.partition(":")[0]
    return bool(starter) and unfinished().filter(pk=starter).exists()
