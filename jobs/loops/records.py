"""Has nodes forget ended engines without a placement: their records, and their logs.

Those of a placement are kept: its page shows why the engine ended.
"""

from datetime import timedelta
from uuid import UUID

import structlog

from agent.wire.instances import LIVE_STATES
from jobs.queries import unfinished
from jobs.steps import instances
from jobs.steps.instances import Engine
from mirbad.kernel import clock
from mirbad.kernel.errors import MirbadError
from models_app import orphans
from models_app.models import Hold, OrphanInstance, Placement
from nodes import fencing
from nodes.models import Node

log = structlog.get_logger(__name__)

KEPT_FOR = timedelta(minutes=10)
"""Time to read why an engine ended, after its model was unplaced."""
AT_ONCE = 20
_LIVE = [state.value for state in LIVE_STATES]


def forget_records_once() -> int:
    """Forget records on nodes that serve, and return how many."""
    if fencing.is_fenced():
        return 0
    serving = Node.objects.serving().values("pk")
    rows = OrphanInstance.objects.filter(node_id_text__in=serving, since__lte=clock.now() - KEPT_FOR)
    gone, silent = 0, set()
    for row in rows.exclude(state__in=_LIVE)[:AT_ONCE]:
        if row.node_id_text in silent or _is_needed(row):
            continue
        try:
            gone += instances.forget(Engine(row.node_id_text, row.instance_id))
        except MirbadError as error:
            log.info("a record could not be removed; retrying later", node=row.node_id_text, why=error.detail)
            silent.add(row.node_id_text)
            continue
        orphans.forget(row.node_id_text, row.instance_id)
    return gone


def _is_needed(row: OrphanInstance) -> bool:
    """Return whether the record is still needed. One that was not started as a placement belongs to its starter."""
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
