"""The only writer of placements: the node of a model and its desired state. Every write checks the rules again."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
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
from models_app.placement import feasible, gpu_conditions, multi_node
from models_app.states import DESIRED, FAILED, READY, RUNNING, STARTING, STOPPED, UNHEALTHY
from nodes import fencing
from nodes import queries as node_queries
from nodes.models import Node
from nodes.states import REVOKED

_HALTED_CHARACTERS = 500

ShardPlacements = Sequence[tuple[str, Sequence[str]]]
"""The nodes of a new replica: for each shard, in the order of ranks, the node's id and the UUIDs of its GPUs."""


def facts_of(node: Node) -> feasible.NodeFacts:
    """Return the facts of `node` that the rules need; a report that cannot be read counts as none."""
    return feasible.NodeFacts(node.pk, node.lifecycle, node.draining, node_queries.capabilities(node))


def check(model: ModelDefinition, node_id: str, gpu_uuids: Sequence[str], *, already_placed: bool = False) -> None:
    """Raise PlacementInvalid (problems) unless `model` may be placed on these GPUs of the node."""
    node = Node.objects.filter(pk=node_id).first()
    request = feasible.PlacementRequest(model.runtime, model.delivery, tuple(gpu_uuids), already_placed)
    _refuse(feasible.problems(request, node_id, facts_of(node) if node else None))


def _refuse(found: Sequence[feasible.Problem]) -> None:
    if found:
        raise PlacementInvalid(found[0].message, problems=[problem.to_json() for problem in found])


def place(model_id: str, node_id: str, gpu_uuids: Sequence[str], actor: Actor) -> Placement:
    """Place a model that has no placement. Raises NotFound, ModelBusy, ModelPlaced, PlacementInvalid (problems)."""
    with transaction.atomic():
        fencing.require_unfenced()
        routing.bump()
        holds.require_free(model_id)
        placement = place_locked(ModelDefinition.objects.get(pk=model_id), node_id, gpu_uuids)
        audit_log.record("model.update", actor, model_id=model_id, node_id=node_id, detail=f"placed on {node_id}")
    return placement


def place_locked(model: ModelDefinition, node_id: str, gpu_uuids: Sequence[str]) -> Placement:
    """Place a model as `place` does, for a caller that holds the transaction and writes the audit line."""
    placed = model.placements.first()
    if placed is not None:
        raise ModelPlaced(f"Model {model.pk!r} is already placed on node {placed.node_id_text!r}.")
    check(model, node_id, gpu_uuids)
    # No engine was ever launched under this new instance id, so "stopped" is a fact.
    placement = Placement.objects.create(
        model=model, node_id_text=node_id, gpu_uuids=list(gpu_uuids), desired=STOPPED, observed=STOPPED
    )
    events.changed(model.pk)
    return placement


def add_replica(model_id: str, placements: ShardPlacements, actor: Actor) -> queries.PlacedReplica:
    """Add one more replica to a model, on one node or on several that serve together. It is not started.

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


def add_replica_locked(model: ModelDefinition, placements: ShardPlacements) -> queries.PlacedReplica:
    """Add a replica as `add_replica` does, for a caller that holds the transaction and writes the audit line."""
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
    return queries.PlacedReplica(replica, made, len(made))


def _check_replica(model: ModelDefinition, placements: ShardPlacements) -> None:
    if not placements:
        _refuse([feasible.Problem("required", "Name at least one node for the replica.", "placements")])
    taken = set(model.placements.values_list("node_id_text", flat=True))
    for node_id, _ in placements:
        if node_id in taken:
            text = f"Model {model.pk!r} is already placed on node {node_id!r}; choose another node for the new replica."
            _refuse([feasible.Problem("node_taken", text, "placements")])
    for node_id, gpu_uuids in placements:
        check(model, node_id, gpu_uuids)
    if len(placements) > 1:
        nodes = Node.objects.in_bulk([node_id for node_id, _ in placements])
        seats = [
            multi_node.ShardNode(facts_of(nodes[node_id]), nodes[node_id].address, len(gpu_uuids))
            for node_id, gpu_uuids in placements
        ]
        _refuse(multi_node.problems(model.runtime, seats))


def remove_replica(model_id: str, replica: UUID, actor: Actor) -> None:
    """Remove a replica that is stopped and not the last of its model from its nodes. Its folders stay there.

    Raises NotFound, ModelBusy, ModelPlaced, UseUnplace, MasterFenced.
    """
    with audit_log.refusals_recorded("model.unplace", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        routing.bump()
        holds.require_free(model_id)
        placements = list(Placement.objects.select_for_update().filter(model_id=model_id))
        found = [placement for placement in placements if placement.replica == replica]
        if not found:
            raise NotFound(f"Model {model_id!r} has no replica {str(replica)!r}.")
        if len(found) == len(placements):
            raise UseUnplace(f"This is the only replica of model {model_id!r}; use unplace to remove it from its node.")
        for placement in found:
            require_not_running(placement, "removed")
        for placement in found:
            remove_placement(placement, actor, f"replica {replica} removed")
        for placement in found:
            gpu_conditions.refresh(placement.node_id_text)


def require_not_running(placement: Placement, action: str) -> None:
    """Raise ModelPlaced if an engine of `placement` may be running; `action` completes "it can be …" in the message."""
    if placement.desired == RUNNING:
        raise ModelPlaced(f"Model {placement.model_id!r} is set to run on {placement.node_id_text!r}; stop it first.")
    node = Node.objects.filter(pk=placement.node_id_text).first()
    if node is None or node.lifecycle == REVOKED or placement.observed in (STOPPED, FAILED):
        return
    raise ModelPlaced(
        f"Model {placement.model_id!r} reads {placement.observed} on node {placement.node_id_text!r}; "
        f"it can be {action} once the node reports that it has stopped.",
    )


def remove_placement(placement: Placement, actor: Actor, how: str) -> None:
    """Remove a placement in the caller's transaction; its folder stays on the node. `how` is for the audit line.

    The caller has made sure that no engine of the placement runs, or that none can be asked to stop. Removing a
    placement that is already gone changes nothing.
    """
    gone, _ = Placement.objects.filter(pk=placement.pk).delete()
    if gone:
        routing.bump()
        audit_log.record(
            "model.unplace", actor, model_id=placement.model_id, node_id=placement.node_id_text, detail=how
        )
        events.changed(placement.model_id)


def change_gpus(placement: Placement, gpu_uuids: Sequence[str], expected_generation: int | None) -> Placement:
    """Choose other GPUs on the same node, inside the caller's transaction. The generation increases by one.

    Raises PlacementChanged when `expected_generation` is not the present one, PlacementInvalid.
    """
    require_generation(placement, expected_generation)
    check(placement.model, placement.node_id_text, gpu_uuids, already_placed=True)
    written = Placement.objects.filter(pk=placement.pk, generation=placement.generation).update(
        gpu_uuids=list(gpu_uuids), generation=F("generation") + 1
    )
    if not written:
        raise PlacementChanged("The placement has just changed; reload and save again.")
    placement.refresh_from_db()
    return placement


def require_generation(placement: Placement, expected_generation: int | None) -> None:
    """Raise PlacementChanged unless the sender read the present placement. None skips the check."""
    if expected_generation is not None and expected_generation != placement.generation:
        raise PlacementChanged(
            f"The placement of model {placement.model_id!r} changed since you read it; reload and save again.",
            fields={"placementGeneration": placement.generation},
        )


def set_desired(
    placement: Placement,
    desired: str,
    config_hash: str = "",
    *,
    promised: Mapping[str, int] | None = None,
    halted: str = "",
) -> bool:
    """Write the desired state of `placement` inside the caller's transaction; False when it was that already.

    `config_hash` is the configuration that a launch is to start, `promised` the memory that it will take, `halted`
    the reason for which the master itself stops it. Raises NotFound when the placement is gone.
    """
    row = Placement.objects.filter(pk=placement.pk)
    also: dict[str, Any] = {"halted": halted[:_HALTED_CHARACTERS], "restart_at": None}
    if config_hash:
        also["desired_config_hash"] = config_hash
    if promised is not None:
        also["promised"] = dict(promised)
    changed = try_transition(row, DESIRED, "desired", desired, **also)
    if not changed and not row.update(**also):
        raise NotFound(f"Model {placement.model_id!r} is no longer placed on node {placement.node_id_text!r}.")
    if desired == STOPPED:
        intents.forget([placement.pk])
    elif changed and placement.observed not in (STARTING, READY, UNHEALTHY):
        # The caller opens the launch as well; should that fail, the running set still holds the desired state.
        intents.ask([placement], RunningIntent.ASKED)
    routing.bump()
    events.changed(placement.model_id)
    return changed


def set_desired_running(placement: Placement, config_hash: str, promised: Mapping[str, int] | None = None) -> bool:
    """Set the desired state to running, with the configuration that is to run and the memory that it will take."""
    return set_desired(placement, RUNNING, config_hash, promised=promised)


def note_promise(placement: Placement, promised: Mapping[str, int]) -> None:
    """Write the memory that the start of `placement` takes, as far as it is known now."""
    if placement.promised != promised:
        Placement.objects.filter(pk=placement.pk).update(promised=dict(promised))


def note_confirmed(placement: Placement, config_hash: str) -> None:
    """Write that a person starts this configuration in spite of its fit: starts by the master itself skip it, too."""
    Placement.objects.filter(pk=placement.pk).update(confirmed_config_hash=config_hash)
    placement.confirmed_config_hash = config_hash


def set_desired_stopped(placement: Placement, *, halted: str = "") -> bool:
    """Set the desired state to stopped; `halted` is why, when the master decided it."""
    return set_desired(placement, STOPPED, halted=halted)


def set_restart(placement: Placement, at: datetime) -> None:
    """Write when the placement starts again, in the caller's transaction."""
    if Placement.objects.filter(pk=placement.pk, desired=RUNNING).update(restart_at=at):
        routing.bump()
        events.changed(placement.model_id)
