"""Which engines are left over: ours, alive, of a model that we know, and with no place on their node."""

from dataclasses import dataclass
from uuid import UUID

from jobs.models import Operation
from jobs.queries import open_operation, unfinished
from models_app.models import Hold, ModelDefinition, Placement
from nodes import queries as node_queries

_SEVERAL = 2
# Who may let engines of a model run beside its placements, for as long as it holds the model.
_HOLDERS = ("job", "restore")


@dataclass(frozen=True, slots=True)
class Leftover:
    """An engine as its node told of it. `operation_id` is the key of the order by which it was started."""

    node_id: str
    instance_id: str
    model_id: str
    operation_id: str


def may_sweep() -> bool:
    """Whether anything is swept at all: with one machine alone, what was taken off it by hand goes on running."""
    return node_queries.fleet_members()[:_SEVERAL].count() >= _SEVERAL


def why_left(engine: Leftover) -> str:
    """Why `engine` is left alone, as a clause; "" when nobody wants it there."""
    try:
        instance_id = UUID(engine.instance_id)
    except ValueError:
        return "it was not started as a placement of this master"
    if Placement.objects.filter(pk=instance_id, node_id_text=engine.node_id).exists():
        return "it has its place there"
    if not ModelDefinition.objects.filter(pk=engine.model_id).exists():
        return "its model is not known"
    hold = Hold.objects.filter(model_id=engine.model_id, holder_kind__in=_HOLDERS).first()
    if hold is not None:
        return f"{hold.words} holds its model"
    starter = engine.operation_id.partition(":")[0]
    if starter and unfinished().filter(pk=starter).exists():
        return "the operation that started it is still at work"
    move = open_operation("placement", "model", engine.model_id)
    if move is not None and _is_own(move, engine.node_id):
        return "a move of its model is still at work there"
    return ""


def _is_own(move: Operation, node_id: str) -> bool:
    """Whether `move` tends what runs on the node: on its target always, on its source while it hands over."""
    return move.node_id_text == node_id or move.input.get("mode") == "handover"
