"""Orphans: engines of ours that are alive, of a known model, and without a placement on their node."""

from dataclasses import dataclass
from uuid import UUID

from jobs.models import Operation
from jobs.queries import open_operation, unfinished
from jobs.steps.moving import HANDOVER, MOVE, input_of
from models_app.models import Hold, ModelDefinition, Placement
from nodes import queries as node_queries

_SEVERAL = 2
# Holders that may run engines of a model beside its placements, as long as they hold the model.
_HOLDERS = ("job", "restore")


@dataclass(frozen=True, slots=True)
class OrphanEngine:
    """An engine as its node reported it. `operation_id` is the key of the request that started it."""

    node_id: str
    instance_id: str
    model_id: str
    operation_id: str


def may_sweep() -> bool:
    """Return whether orphans are stopped at all: on a fleet of one machine, engines unplaced by hand keep running."""
    return node_queries.fleet_members()[:_SEVERAL].count() >= _SEVERAL


def why_kept(engine: OrphanEngine) -> str:
    """Return the reason why `engine` keeps running, as a clause; "" when it is to stop."""
    try:
        instance_id = UUID(engine.instance_id)
    except ValueError:
        return "it was not started as a placement of this master"
    if Placement.objects.filter(pk=instance_id, node_id_text=engine.node_id).exists():
        return "its model is placed there"
    if not ModelDefinition.objects.filter(pk=engine.model_id).exists():
        return "its model is not known"
    hold = Hold.objects.filter(model_id=engine.model_id, holder_kind__in=_HOLDERS).first()
    if hold is not None:
        return f"{hold.words} holds its model"
    starter = engine.operation_id.partition(":")[0]
    if starter and unfinished().filter(pk=starter).exists():
        return "the operation that started it is still open"
    move = open_operation("placement", "model", engine.model_id)
    if move is not None and _is_own(move, engine.node_id):
        return "a move of its model is still open there"
    return ""


def _is_own(move: Operation, node_id: str) -> bool:
    """Return whether `move` looks after engines on the node: on its target always, on its source in a hand-over."""
    return move.node_id_text == node_id or (move.kind == MOVE and input_of(move).mode == HANDOVER)
