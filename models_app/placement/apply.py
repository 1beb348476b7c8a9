"""The one writer of placements: where a model runs and whether it should. Every rule is checked again as it writes."""

from collections.abc import Sequence

from django.db import transaction
from django.db.models import F
from pydantic import ValidationError

from agent.wire.capability import Capabilities
from audit import log as audit_log
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import NotFound
from mirbad.kernel.guarded import try_transition
from models_app import events, holds, routing
from models_app.errors import ModelPlaced, PlacementChanged, PlacementInvalid
from models_app.models import ModelDefinition, Placement
from models_app.placement import feasible
from models_app.states import DESIRED, RUNNING, STOPPED
from nodes import fencing
from nodes.models import Node


def facts_of(node: Node) -> feasible.NodeFacts:
    """What the rules need to know of `node`; a report that cannot be read counts as none."""
    try:
        capabilities = Capabilities.model_validate(node.capabilities) if node.capabilities else None
    except ValidationError:
        capabilities = None
    return feasible.NodeFacts(node.pk, node.lifecycle, node.draining, capabilities)


def _check(model: ModelDefinition, node_id: str, gpu_uuids: Sequence[str], *, standing: bool) -> None:
    node = Node.objects.filter(pk=node_id).first()
    wish = feasible.Wish(model.runtime, model.delivery, tuple(gpu_uuids), standing)
    if found := feasible.problems(wish, node_id, facts_of(node) if node else None):
        raise PlacementInvalid(found[0].message, problems=[problem.to_json() for problem in found])


def place(model_id: str, node_id: str, gpu_uuids: Sequence[str], actor: Actor) -> Placement:
    """Place a model that stands nowhere. Raises NotFound, ModelBusy, ModelPlaced, PlacementInvalid (problems)."""
    with transaction.atomic():
        fencing.require_unfenced()
        routing.bump()
        holds.require_free(model_id)
        placement = place_locked(ModelDefinition.objects.get(pk=model_id), node_id, gpu_uuids)
        audit_log.record("model.update", actor, model_id=model_id, node_id=node_id, detail=f"placed on {node_id}")
    return placement


def place_locked(model: ModelDefinition, node_id: str, gpu_uuids: Sequence[str]) -> Placement:
    """`place` for a caller that holds the transaction and writes the audit line itself."""
    standing = model.placements.first()
    if standing is not None:
        raise ModelPlaced(f"Model {model.pk!r} already stands on node {standing.node_id_text!r}.")
    _check(model, node_id, gpu_uuids, standing=False)
    # Nothing was ever launched under this new instance id: that it is stopped is known, not guessed.
    placement = Placement.objects.create(
        model=model, node_id_text=node_id, gpu_uuids=list(gpu_uuids), desired=STOPPED, observed=STOPPED
    )
    events.changed(model.pk)
    return placement


def take_off(placement: Placement, actor: Actor, how: str) -> None:
    """Take a model off its node in the caller's transaction; its folder stays there. `how` is for the audit line.

    Whoever calls it has made sure that no engine of it runs, or that none can be asked to stop. Another taker before
    is as good.
    """
    gone, _ = Placement.objects.filter(pk=placement.pk).delete()
    if gone:
        routing.bump()
        audit_log.record(
            "model.unplace", actor, model_id=placement.model_id, node_id=placement.node_id_text, detail=how
        )
        events.changed(placement.model_id)


def change_gpus(placement: Placement, gpu_uuids: Sequence[str], expected_generation: int | None) -> Placement:
    """Choose other GPUs on the same node, inside the caller's transaction. The generation goes up by one.

    Raises PlacementChanged when `expected_generation` is not the present one, PlacementInvalid.
    """
    require_generation(placement, expected_generation)
    _check(placement.model, placement.node_id_text, gpu_uuids, standing=True)
    written = Placement.objects.filter(pk=placement.pk, generation=placement.generation).update(
        gpu_uuids=list(gpu_uuids), generation=F("generation") + 1
    )
    if not written:
        raise PlacementChanged("The placement changed just now; reload and save again.")
    placement.refresh_from_db()
    return placement


def require_generation(placement: Placement, expected_generation: int | None) -> None:
    """Pass when the sender read the present placement (None: it does not say). Raises PlacementChanged."""
    if expected_generation is not None and expected_generation != placement.generation:
        raise PlacementChanged(
            f"The placement of model {placement.model_id!r} changed since you read it; reload and save again.",
            fields={"placementGeneration": placement.generation},
        )


def set_desired(placement: Placement, desired: str, config_hash: str = "") -> bool:
    """Write what is wanted of `placement` inside the caller's transaction; False when that was wanted already.

    `config_hash` is the configuration that a launch is to bring up. Raises NotFound when the placement is gone.
    """
    row = Placement.objects.filter(pk=placement.pk)
    also = {"desired_config_hash": config_hash} if config_hash else {}
    changed = try_transition(row, DESIRED, "desired", desired, **also)
    if not changed and not (row.update(**also) if also else row.exists()):
        raise NotFound(f"Model {placement.model_id!r} stands on node {placement.node_id_text!r} no more.")
    routing.bump()
    events.changed(placement.model_id)
    return changed


def want_running(placement: Placement, config_hash: str) -> bool:
    """`set_desired` to running, with the configuration that is to run."""
    return set_desired(placement, RUNNING, config_hash)


def want_stopped(placement: Placement) -> bool:
    """`set_desired` to stopped."""
    return set_desired(placement, STOPPED)
