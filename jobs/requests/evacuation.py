"""Evacuation of a node: its request, and its moves, opened one after another."""

import structlog
from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.kinds import evacuate
from jobs.models import Operation
from jobs.queries import open_operation, unfinished
from jobs.requests import moves
from jobs.steps.offload import refused, survey
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, MirbadError
from models_app.models import Placement
from nodes import fencing, registry
from nodes.models import Node

log = structlog.get_logger(__name__)

_GROUP, _TARGET = "placement", "node"


def request(node_id: str, actor: Actor) -> Operation:
    """Drain the node and move its models off; while that is open, it returns the same operation.

    Raises NotFound, NodeRevoked, Conflict (not approved, being ended), MasterFenced.
    """
    with audit_log.refusals_recorded("node.drain", actor, node_id=node_id), transaction.atomic():
        fencing.require_unfenced()
        was_draining = Node.objects.filter(pk=node_id, draining=True).exists()
        opened = open_operation(_GROUP, _TARGET, node_id)
        if opened is not None and opened.cancel_requested_at is not None:
            raise Conflict(
                f"The evacuation of node {node_id} is being cancelled; wait for it.",
                fields={"operationId": opened.pk},
            )
        registry.drain(node_id, actor)
        if opened is not None:
            return opened
        return _create(node_id, actor, was_draining=was_draining)


def _create(node_id: str, actor: Actor, *, was_draining: bool) -> Operation:
    models = Placement.objects.filter(node_id_text=node_id).order_by("created_at", "pk")
    data = evacuate.EvacuateInput(was_draining=was_draining, models=models.values_list("model_id", flat=True))
    try:
        with transaction.atomic():
            subject = ledger.Subject(_TARGET, node_id, node_id)
            operation = ledger.create(
                evacuate.KIND, evacuate.MOVING, subject, actor, "Drain with evacuation requested.", data
            )
    except IntegrityError as error:
        raise Conflict(f"Another operation on node {node_id} was just started; reload.") from error
    audit_log.record(
        "node.drain", actor, node_id=node_id, operation_id=operation.pk, result="accepted", detail="evacuation"
    )
    return operation


def open_next(operation_id: str) -> Operation | None:
    """Open the next move of an evacuation when none is open; None when there is none to open.

    The evacuation's row is the lock, so that two signals open one move. A model whose move is refused is skipped for a
    moment, with the reason, and another one is chosen.
    """
    with transaction.atomic():
        row = unfinished().select_for_update().filter(pk=operation_id, kind=evacuate.NAME).first()
        if row is None or row.cancel_requested_at is not None or fencing.is_fenced():
            return None
        if not Node.objects.approved().filter(pk=row.target_id, draining=True).exists():
            return None
        state = evacuate.KIND.step(row).state
        choice = survey(row.target_id, row.pk, state).next
        if choice is None:
            return None
        try:
            with transaction.atomic():
                return moves.request(
                    choice.model_id,
                    choice.node_id,
                    choice.gpu_uuids,
                    row.requested_by,
                    on_behalf_of=row.pk,
                    source_node_id=row.target_id,
                )
        except MirbadError as error:
            text = f"The move of {choice.model_id} to {choice.node_id} was refused: {error.detail}"
            ledger.steer(row, refused(state, choice.model_id, error.detail), text)
            log.info("a move of an evacuation was refused", operation=row.pk, model=choice.model_id, code=error.code)
            return None


def open_all() -> int:
    """Open the next move of every evacuation, for lost signals, and return how many were opened."""
    ids = list(unfinished().filter(kind=evacuate.NAME).values_list("pk", flat=True))
    return sum(open_next(operation_id) is not None for operation_id in ids)
