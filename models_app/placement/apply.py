"""The one writer of placements: where a model runs and whether it should. Every rule is checked again as it writes."""

from collections.abc import Sequence
from uuid import UUID

from django.db import transaction
from django.db.models import F

from audit import log as audit_log
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import NotFound
from mirbad.kernel.guarded import try_transition
from mirbad.kernel.ids import new_uid
from models_app import events, holds, intents, queries, routing
from models_app.errors import ModelPlaced, PlacementChanged, PlacementInvalid, UseUnplace
from models_app.models import ModelDefinition, Placement, RunningIntent
from models_app.placement import feasible, reconcile, shared
from models_app.states import DESIRED, FAILED, READY, RUNNING, STARTING, STOPPED, UNHEALTHY
from nodes import fencing
from nodes.models import Node
from nodes.states import REVOKED

Seats = Sequence[tuple[str, Sequence[str]]]
"""Where a replica is to stand: for each shard, in the order of their ranks, the node's id and the GPUs by UUID."""


def facts_of(node: Node) -> feasible.NodeFacts:
    """What the rules need to know of `node`; a report that cannot be read counts as none."""
    return feasible.NodeFacts(node.pk, node.lifecycle, node.draining, reconcile.capabilities_of(node))


def _check(model: ModelDefinition, node_id: str, gpu_uuids: Sequence[str], *, standing: bool) -> None:
    node = Node.objects.filter(pk=node_id).first()
    wish = feasible.Wish(model.runtime, model.delivery, tuple(gpu_uuids), standing)
    _refuse(feasible.problems(wish, node_id, facts_of(node) if node else None))


def _refuse(found: Sequence[feasible.Problem]) -> None:
    if found:
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


def add_replica(model_id: str, placements: Seats, actor: Actor) -> queries.Replica:
    """Give a model one more replica, on one node or on several that serve together. It is not started.

    Raises NotFound, ModelBusy, PlacementInvalid (problems), MasterFenced.
    """
    nodes = [node_id for node_id, _ in placements]
    with audit_log.refusals_recorded("model.update", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        routing.bump()
        holds.require_free(model_id)
        made = add_replica_locked(ModelDefinition.objects.get(pk=model_id), placements)
        detail = f"replica {made.id} on {', '.join(nodes)}"
        audit_log.record("model.update", actor, model_id=model_id, node_id=nodes[0], detail=detail)
    return made


def add_replica_locked(model: ModelDefinition, placements: Seats) -> queries.Replica:
    """`add_replica` for a caller that holds the transaction and writes the audit line itself."""
    _check_replica(model, placements)
    replica = new_uid()
    made = tuple(
        Placement.objects.create(
            model=model,
            node_id_text=node_id,
            gpu_uuids=list(gpu_uuids),
            desired=STOPPED,
            observed=STOPPED,
            replica=replica,
            shard=rank,
            shards=len(placements),
        )
        for rank, (node_id, gpu_uuids) in enumerate(placements)
    )
    events.changed(model.pk)
    return queries.Replica(replica, made, len(made))


def _check_replica(model: ModelDefinition, placements: Seats) -> None:
    if not placements:
        _refuse([feasible.Problem("required", "Name at least one node for the replica.", "placements")])
    standing = set(model.placements.values_list("node_id_text", flat=True))
    for node_id, _ in placements:
        if node_id in standing:
            text = f"Model {model.pk!r} stands on node {node_id!r} already; choose another node for the new replica."
            _refuse([feasible.Problem("node_taken", text, "placements")])
    for node_id, gpu_uuids in placements:
        _check(model, node_id, gpu_uuids, standing=False)
    if len(placements) > 1:
        nodes = Node.objects.in_bulk([node_id for node_id, _ in placements])
        seats = [
            shared.Seat(facts_of(nodes[node_id]), nodes[node_id].address, len(gpu_uuids))
            for node_id, gpu_uuids in placements
        ]
        _refuse(shared.problems(model.runtime, seats))


def remove_replica(model_id: str, replica: UUID, actor: Actor) -> None:
    """Take one of a model's replicas off its nodes; it must be stopped, and not be the last. Its folders stay there.

    Raises NotFound, ModelBusy, ModelPlaced, UseUnplace, MasterFenced.
    """
    with audit_log.refusals_recorded("model.unplace", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        routing.bump()
        holds.require_free(model_id)
        standing = list(Placement.objects.select_for_update().filter(model_id=model_id))
        found = [placement for placement in standing if placement.replica == replica]
        if not found:
            raise NotFound(f"Model {model_id!r} has no replica {str(replica)!r}.")
        if len(found) == len(standing):
            raise UseUnplace(f"That is the only replica of model {model_id!r}; use unplace to take it off its node.")
        for placement in found:
            require_not_running(placement, "removed")
        for placement in found:
            take_off(placement, actor, f"replica {replica} removed")
        for placement in found:
            reconcile.note_missing_gpus(placement.node_id_text)


def require_not_running(placement: Placement, what: str) -> None:
    """Pass when no engine of `placement` runs, as far as can be known; `what` is to happen. Raises ModelPlaced."""
    if placement.desired == RUNNING:
        raise ModelPlaced(f"Model {placement.model_id!r} is to run on {placement.node_id_text!r}; stop it first.")
    node = Node.objects.filter(pk=placement.node_id_text).first()
    if node is None or node.lifecycle == REVOKED or placement.observed in (STOPPED, FAILED):
        return
    raise ModelPlaced(
        f"Model {placement.model_id!r} reads {placement.observed} on node {placement.node_id_text!r}; "
        f"it can be {what} once the node reports that it has stopped.",
    )


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
    if desired == STOPPED:
        intents.forget([placement.pk])
    elif changed and placement.observed not in (STARTING, READY, UNHEALTHY):
        # Whoever wants it opens its launch as well; should that come to nothing, the wish still stands.
        intents.ask([placement], RunningIntent.ASKED)
    routing.bump()
    events.changed(placement.model_id)
    return changed


def want_running(placement: Placement, config_hash: str) -> bool:
    """`set_desired` to running, with the configuration that is to run."""
    return set_desired(placement, RUNNING, config_hash)


def want_stopped(placement: Placement) -> bool:
    """`set_desired` to stopped."""
    return set_desired(placement, STOPPED)
