"""Stops orphans, as after a move that was committed while its source was away."""

from datetime import timedelta

import structlog
from django.db import IntegrityError, transaction

from agent.wire.instances import LIVE_STATES
from jobs import ledger
from jobs.kinds import sweep
from jobs.models import Operation
from jobs.states import FAILED
from jobs.steps.orphans import OrphanEngine, may_sweep, why_kept
from mirbad.kernel import clock
from mirbad.kernel.actor import system
from models_app.models import OrphanInstance
from nodes import fencing
from nodes.models import Node

log = structlog.get_logger(__name__)

MOVE = system("move")
_LIVE = [state.value for state in LIVE_STATES]
AGAIN_AFTER = timedelta(minutes=10)
"""Pause after a failed stop of an orphan, so that it is not repeated every few seconds."""


def stop_orphans_once() -> int:
    """Open a stop for each orphan on nodes that serve, and return how many."""
    opened = 0
    if fencing.is_fenced() or not may_sweep():
        return opened
    serving = Node.objects.serving().values("pk")
    for row in OrphanInstance.objects.filter(node_id_text__in=serving, state__in=_LIVE):
        engine = OrphanEngine(row.node_id_text, row.instance_id, row.model_id_text, row.operation_id_text)
        if _failed_lately(engine) or why_kept(engine):
            continue
        opened += _open(engine)
    return opened


def _open(engine: OrphanEngine) -> bool:
    subject = ledger.Subject("instance", engine.instance_id[:64], engine.node_id, engine.model_id)
    text = f"An orphan of {engine.model_id} runs on {engine.node_id}."
    try:
        with transaction.atomic():
            operation = ledger.create(sweep.KIND, sweep.STOPPING, subject, MOVE, text)
    except IntegrityError:  # it is being stopped
        return False
    log.info("stopping an orphan", operation=operation.pk, node=engine.node_id, model=engine.model_id)
    return True


def _failed_lately(engine: OrphanEngine) -> bool:
    since = clock.now() - AGAIN_AFTER
    failed = Operation.objects.filter(kind=sweep.NAME, target_id=engine.instance_id[:64], outcome=FAILED)
    return failed.filter(finished_at__gt=since).exists()
