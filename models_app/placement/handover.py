"""How a placement comes to another node: beside the one that serves and switched by one write, or in its place.

Every write may be repeated after a crash: the id of the new placement is known before it is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.db.models import Case, Value, When

from models_app import events, routing
from models_app.errors import PlacementInvalid
from models_app.models import ModelDefinition, Placement
from models_app.placement import apply, feasible
from models_app.states import READY, RUNNING, STOPPED
from nodes import fencing
from nodes.models import Node


@dataclass(frozen=True, slots=True)
class Arrival:
    """A placement that is to come: its id and place, the generation that the move counts up to."""

    id: UUID
    model_id: str
    node_id: str
    gpu_uuids: tuple[str, ...]
    generation: int


def check(model: ModelDefinition, node_id: str, gpu_uuids: Sequence[str]) -> None:
    """Pass when `model` may come to stand there. Raises PlacementInvalid (problems)."""
    node = Node.objects.filter(pk=node_id).first()
    wish = feasible.Wish(model.runtime, model.delivery, tuple(gpu_uuids), standing=False)
    if found := feasible.problems(wish, node_id, apply.facts_of(node) if node else None):
        raise PlacementInvalid(found[0].message, problems=[problem.to_json() for problem in found])


def bring_up(arrival: Arrival) -> tuple[Placement, bool]:
    """The placement that is to run before requests are sent there, and whether it is new. Raises PlacementInvalid."""
    with transaction.atomic():
        fencing.require_unfenced()
        return _arrive(arrival, routed=False, running=True)


def switch(source_id: UUID | None, target_id: UUID) -> bool:
    """Send requests to the target and no more to the source: one write. False while the target is not seen ready.

    What is under way at the source goes on.
    """
    with transaction.atomic():
        fencing.require_unfenced()
        routing.bump()
        target = Placement.objects.select_for_update().filter(pk=target_id).first()
        if target is None or target.observed != READY:
            return False
        rows = Placement.objects.filter(pk__in=[pk for pk in (source_id, target_id) if pk is not None])
        rows.update(routed=Case(When(pk=target_id, then=Value(True)), default=Value(False)))
        events.changed(target.model_id)
    return True


def replace(source_id: UUID | None, arrival: Arrival, *, running: bool) -> bool:
    """Have the model stand on the new node and no more on the old one; False when it did already.

    Raises PlacementInvalid; then nothing was changed.
    """
    with transaction.atomic():
        fencing.require_unfenced()
        routing.bump()
        if source_id is not None:
            Placement.objects.filter(pk=source_id).delete()
        _, new = _arrive(arrival, routed=True, running=running)
    return new


def leave(placement_id: UUID) -> bool:
    """Take away a placement that a move has done with, in the caller's transaction; False when it is gone already."""
    placement = Placement.objects.filter(pk=placement_id).first()
    if placement is None:
        return False
    placement.delete()
    routing.bump()
    events.changed(placement.model_id)
    return True


def _arrive(arrival: Arrival, *, routed: bool, running: bool) -> tuple[Placement, bool]:
    standing = Placement.objects.select_related("model").filter(pk=arrival.id).first()
    if standing is not None:
        return standing, False
    model = ModelDefinition.objects.get(pk=arrival.model_id)
    check(model, arrival.node_id, arrival.gpu_uuids)
    # Nothing was ever launched under this new instance id: that it is stopped is known, not guessed.
    placement = Placement.objects.create(
        id=arrival.id,
        model=model,
        node_id_text=arrival.node_id,
        gpu_uuids=list(arrival.gpu_uuids),
        generation=arrival.generation,
        desired=RUNNING if running else STOPPED,
        observed=STOPPED,
        routed=routed,
    )
    events.changed(model.pk)
    return placement, True
