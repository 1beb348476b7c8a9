"""Stops engines that are left over, as after a move that was committed while its source was away."""

from datetime import timedelta

import structlog
from django.db import IntegrityError, transaction

from agent.wire.instances import LIVE_STATES
from jobs import ledger
from jobs.kinds import sweep
from jobs.leftovers import Leftover, may_sweep, why_left
from jobs.models import Operation
from jobs.states import FAILED
from mirbad.kernel import clock
from mirbad.kernel.actor import system
from models_app.models import StrayInstance
from nodes import fencing
from nodes.models import Node

log = structlog.get_logger(__name__)

MOVE = system("move")
_LIVE = [state.value for state in LIVE_STATES]
AGAIN_AFTER = timedelta(minutes=10)
"""An engine that would not end is asked again after so long, and not every few seconds."""


def stop_strays_once() -> int:
    """Open a stop for each engine that nobody wants, on nodes that serve; how many were opened."""
    opened = 0
    if fencing.is_fenced() or not may_sweep():
        return opened
    serving = Node.objects.serving().values("pk")
    for row in StrayInstance.objects.filter(node_id_text__in=serving, state__in=_LIVE):
        engine = Leftover(row.node_id_text, row.instance_id, row.model_id_text, row.operation_id_text)
        if _failed_lately(engine) or why_left(engine):
            continue
        opened += _open(engine)
    return opened


def _open(engine: Leftover) -> bool:
    subject = ledger.Subject("instance", engine.instance_id[:64], engine.node_id, engine.model_id)
    text = f"An engine of {engine.model_id} is left over on {engine.node_id}."
    try:
        with transaction.atomic():
            operation = ledger.create(sweep.KIND, sweep.STOPPING, subject, MOVE, text)
    except IntegrityError:  # it is being stopped
        return False
    log.info("stopping an engine that is left over", operation=operation.pk, node=engine.node_id, model=engine.model_id)
    return True


def _failed_lately(engine: Leftover) -> bool:
    since = clock.now() - AGAIN_AFTER
    failed = Operation.objects.filter(kind=sweep.NAME, target_id=engine.instance_id[:64], outcome=FAILED)
    return failed.filter(finished_at__gt=since).exists()
