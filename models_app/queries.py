"""Questions about models, answered with a number of statements that does not grow with the rows."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import QuerySet

from mirbad.kernel.errors import NotFound
from models_app.models import ModelDefinition, Placement
from models_app.states import FAILED, READY, RUNNING, STARTING, STOPPED, STOPPING, UNHEALTHY, UNKNOWN

UNPLACED = "unplaced"


@dataclass(frozen=True, slots=True)
class ShownState:
    """What a page says of a model: `name` is an observed state or ``unplaced``; `reasons` are sentences.

    `serves` is whether the gateway may send requests there.
    """

    name: str
    reasons: tuple[str, ...] = ()
    serves: bool = False


def shown_state(placement: Placement | None) -> ShownState:
    """What to show of one placement; None is a model that stands nowhere."""
    if placement is None:
        return ShownState(UNPLACED, ("It stands on no node.",))
    node, reason = placement.node_id_text, placement.observed_reason
    reasons = (reason,) if reason else ()
    if placement.observed == UNKNOWN:
        wanted = "should run" if placement.desired == RUNNING else "should be stopped"
        return ShownState(UNKNOWN, (f"Node {node} does not report now; the model {wanted} there.",))
    if placement.observed == STOPPED and placement.desired == RUNNING:
        return ShownState(STOPPED, (*reasons, f"It should run on node {node} and does not yet."))
    if placement.observed in (READY, STARTING, UNHEALTHY) and placement.desired == STOPPED:
        return ShownState(placement.observed, (*reasons, "It is to be stopped."))
    if placement.observed in (FAILED, STOPPED, STARTING, STOPPING, UNHEALTHY, READY):
        return ShownState(placement.observed, reasons, placement.observed == READY)
    return ShownState(UNKNOWN, reasons)


def placement_of(model: ModelDefinition) -> Placement | None:
    """The placement of `model`, from a prefetch when there was one."""
    return next(iter(model.placements.all()), None)


def all_models() -> QuerySet[ModelDefinition]:
    """Every definition with its sources, placements and hold; three more statements for any number of rows."""
    return ModelDefinition.objects.select_related("hold").prefetch_related("sources", "placements")


def one_model(model_id: str) -> ModelDefinition:
    """A definition with its sources, placements and hold. Raises NotFound."""
    model = all_models().filter(pk=model_id).first()
    if model is None:
        raise NotFound(f"There is no model {model_id!r}.")
    return model


def placements_on(node_ids: Iterable[str]) -> dict[str, list[Placement]]:
    """Placements with their definitions by node id, for all of `node_ids` in one statement."""
    found: dict[str, list[Placement]] = {node_id: [] for node_id in node_ids}
    for placement in Placement.objects.select_related("model").filter(node_id_text__in=list(found)):
        found[placement.node_id_text].append(placement)
    return found
