"""Writes of a move: a second placement that takes over with one write, or a replacement of the first one.

Every write may be repeated after a crash: the id of the new placement is chosen in advance.
"""

from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.db.models import Case, Value, When

from models_app import events, routing
from models_app.models import ModelDefinition, Placement
from models_app.placement import apply
from models_app.states import READY, RUNNING, STOPPED
from nodes import fencing


@dataclass(frozen=True, slots=True)
class TargetPlacement:
    """A placement that a move will create: its id, node and GPUs, and the generation that the move increases to."""

    id: UUID
    model_id: str
    node_id: str
    gpu_uuids: tuple[str, ...]
    generation: int


def bring_up(arrival: TargetPlacement) -> tuple[Placement, bool]:
    """Create the placement that runs before requests are routed to it; return it and whether it is new.

    Raises PlacementInvalid.
    """
    with transaction.atomic():
        fencing.require_unfenced()
        return _arrive(arrival, routed=False, running=True)


def switch(source_id: UUID | None, target_id: UUID) -> bool:
    """Route requests to the target and no longer to the source, in one write. False until the target is observed ready.

    Requests in flight on the source continue.
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


def replace(source_id: UUID | None, arrival: TargetPlacement, *, running: bool) -> bool:
    """Replace the source's placement by the target's; False when that was done already.

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
    """Delete a placement that a move no longer needs, in the caller's transaction; False when it is gone already."""
    placement = Placement.objects.filter(pk=placement_id).first()
    if placement is None:
        return False
    placement.delete()
    routing.bump()
    events.changed(placement.model_id)
    return True


def _arrive(arrival: TargetPlacement, *, routed: bool, running: bool) -> tuple[Placement, bool]:
    existing = Placement.objects.select_related("model").filter(pk=arrival.id).first()
    if existing is not None:
        return existing, False
    model = ModelDefinition.objects.get(pk=arrival.model_id)
    apply.check(model, arrival.node_id, arrival.gpu_uuids)
    # No engine was ever launched under this new instance id, so "stopped" is a fact.
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
