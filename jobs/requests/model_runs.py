"""Start, stop and restart of models. One transaction each: guard, change, audit, announce.

A model may have several replicas, and a replica several shards: one operation per placement. A replica that cannot be
acted on is skipped when another one can; the shards of one replica are acted on together or not at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.base import I, Kind, S
from jobs.kinds import launch
from jobs.kinds import stop as stopping
from jobs.models import Operation
from jobs.queries import open_operation
from jobs.steps import shards
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, MirbadError, NotFound
from models_app import holds, registry
from models_app.artifacts import images
from models_app.errors import GpuMissing, GpuUnusable
from models_app.models import ModelDefinition, Placement
from models_app.placement import apply, feasible, fit_preview
from models_app.queries import PlacedReplica, grouped
from models_app.states import READY, RUNNING, STOPPED, UNHEALTHY
from nodes import fencing
from nodes import queries as node_queries
from nodes.models import Node

_TARGET = "placement"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A replica that was skipped, and the reason."""

    node_ids: tuple[str, ...]
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The accepted operations, the primary's first, and the skipped replicas."""

    operations: tuple[Operation, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def operation(self) -> Operation:
        """The operation that represents all."""
        return self.operations[0]


def start(model_id: str, actor: Actor, force: bool = False) -> Operation:
    """Start all replicas; return the operation of the primary."""
    return start_all(model_id, actor, force=force).operation


def restart(model_id: str, actor: Actor, force: bool = False) -> Operation:
    """Restart all replicas; return the operation of the primary."""
    return restart_all(model_id, actor, force=force).operation


def stop(model_id: str, actor: Actor) -> Operation:
    """Stop all replicas; return the operation of the primary."""
    return stop_all(model_id, actor).operation


def start_all(
    model_id: str, actor: Actor, *, force: bool = False, replica: UUID | None = None, text: str = "Start requested."
) -> Accepted:
    """Start a model's replicas, or the named one; a start while it starts returns the same operation.

    `force` skips the memory check of the node. Raises NotFound, ModelBusy, Conflict (unplaced, runs already, is being
    stopped), NodeOffline and the other states of a node that does not serve, NodeDraining, ModelsRootChanged,
    GpuMissing, GpuUnusable, ImageMissing, SpecRejected, MasterFenced (all four verbs).
    """

    def one(found: PlacedReplica) -> list[Operation]:
        if opened := _open(found):
            return _same_launch(opened, found)
        if found.desired == RUNNING and all(one.observed in (READY, UNHEALTHY) for one in found.placements):
            _startable(found)
            raise Conflict(f"Model {model_id!r} already runs; restart it to apply changes.")
        return _launch(found, actor, force=force, restart=False, text=text)

    with audit_log.refusals_recorded("model.start", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        return _each(_locked(model_id, replica), one)


def restart_all(
    model_id: str, actor: Actor, *, force: bool = False, replica: UUID | None = None, text: str = "Restart requested."
) -> Accepted:
    """Stop a model and start it with its current settings; start it when it does not run. Raises as `start_all`."""

    def one(found: PlacedReplica) -> list[Operation]:
        if opened := _open(found):
            if all(operation.kind == launch.NAME and launch.KIND.step(operation).input.restart for operation in opened):
                return _same_launch(opened, found)
            raise _busy(opened, found)
        return _launch(found, actor, force=force, restart=True, text=text)

    with audit_log.refusals_recorded("model.restart", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        return _each(_locked(model_id, replica), one)


def stop_all(model_id: str, actor: Actor, *, replica: UUID | None = None, text: str = "Stop requested.") -> Accepted:
    """Stop a model, or one replica. An open launch is cancelled, which stops its engine; that operation is returned.

    Raises NotFound, ModelBusy, Conflict (unplaced, stopped already).
    """

    def one(found: PlacedReplica) -> list[Operation]:
        made = []
        for placement in found.placements:
            opened = open_operation("run", _TARGET, str(placement.pk))
            if opened is not None or placement.desired != STOPPED or placement.observed != STOPPED:
                made.append(_stop(placement, opened, actor, text))
        if not made:
            raise Conflict(f"Model {model_id!r} is already stopped.")
        return made

    with audit_log.refusals_recorded("model.stop", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        return _each(_locked(model_id, replica), one)


def _stop(placement: Placement, opened: Operation | None, actor: Actor, text: str) -> Operation:
    apply.set_desired_stopped(placement, halted=text if actor.name.startswith("system:") else "")
    if opened is None:
        opened = _create(stopping.KIND, stopping.STOPPING, placement, actor, text, None)
    elif opened.kind == launch.NAME:
        ledger.ask_to_cancel(opened)
        opened.refresh_from_db()
    _accepted("model.stop", actor, opened)
    return opened


def _each(replicas: tuple[PlacedReplica, ...], act: Callable[[PlacedReplica], list[Operation]]) -> Accepted:
    """Act on each replica; return operations and refusals, and raise the first refusal without any operation."""
    made: list[Operation] = []
    refused: list[tuple[PlacedReplica, MirbadError]] = []
    for replica in replicas:
        try:
            with transaction.atomic():
                made += act(replica)
        except MirbadError as error:
            refused.append((replica, error))
    if not made:
        raise refused[0][1]
    return Accepted(
        tuple(made), tuple(Skipped(replica.node_ids, error.code, error.detail) for replica, error in refused)
    )


def _locked(model_id: str, replica: UUID | None) -> tuple[PlacedReplica, ...]:
    # The definition's row first: it is the lock that holds and edits take, too.
    holds.require_free(model_id)
    # A placement without a route belongs to its move.
    placements = list(Placement.objects.select_for_update().filter(model_id=model_id, routed=True).order_by("pk"))
    if not placements:
        raise Conflict(f"Model {model_id!r} is not placed; place it first.")
    model = ModelDefinition.objects.prefetch_related("sources").get(pk=model_id)
    for placement in placements:
        placement.model = model
    found = tuple(one for one in grouped(placements) if replica in (None, one.id))
    if not found:
        raise NotFound(f"Model {model_id!r} has no replica {str(replica)!r}.")
    return found


def _open(replica: PlacedReplica) -> list[Operation]:
    each = [open_operation("run", _TARGET, str(placement.pk)) for placement in replica.placements]
    return [operation for operation in each if operation is not None]


def _same_launch(opened: list[Operation], replica: PlacedReplica) -> list[Operation]:
    if all(operation.kind == launch.NAME and operation.cancel_requested_at is None for operation in opened):
        return opened
    raise _busy(opened, replica)


def _busy(opened: list[Operation], replica: PlacedReplica) -> Conflict:
    operation = opened[0]
    doing = "started" if operation.kind == launch.NAME and operation.cancel_requested_at is None else "stopped"
    return Conflict(
        f"Model {replica.head.model_id!r} is being {doing}; wait for its end.",
        fields={"operationId": operation.pk},
    )


def _startable(replica: PlacedReplica) -> list[Node]:
    """Return the nodes of all shards, each able to start its own now."""
    if not replica.is_whole:
        count = f"{len(replica.placements)} of its {replica.shard_count} shards"
        raise Conflict(f"A replica of model {replica.head.model_id!r} has {count}; remove it and add another.")
    return [_startable_node(placement) for placement in replica.placements]


def _startable_node(placement: Placement) -> Node:
    node = node_queries.require_placeable(placement.node_id_text)
    if placement.model.reads_weights:
        node_queries.require_models_root(node)
    capabilities = apply.facts_of(node).capabilities
    missing = feasible.missing_gpus(placement.gpu_uuids, capabilities) if capabilities else ()
    if missing:
        raise GpuMissing(
            f"GPU {', '.join(missing)} is not on node {node.pk!r} any more; choose the model's GPUs again.",
            fields={"gpuUuids": list(missing)},
        )
    unusable = feasible.unusable_gpus(placement.gpu_uuids, capabilities) if capabilities else {}
    if unusable:
        raise GpuUnusable(f"Node {node.pk!r}: {' '.join(unusable.values())}", fields={"gpuUuids": sorted(unusable)})
    image, digest = registry.image_of(placement.model, node)
    if image and capabilities is not None:
        # The agent refuses the same, seconds later.
        images.require_admitted(node, capabilities, image, digest)
    return node


def _launch(replica: PlacedReplica, actor: Actor, *, force: bool, restart: bool, text: str) -> list[Operation]:
    made = []
    joint = shards.plan(replica)
    for placement, node in zip(replica.placements, _startable(replica), strict=True):
        spec = registry.launch_spec(placement, node)
        promised = fit_preview.promise_of(spec.estimate, placement.gpu_uuids, node)
        apply.set_desired_running(placement, spec.config_hash, promised)
        if force:
            apply.note_confirmed(placement, spec.config_hash)
        # A replica that lost a shard starts again as the person started it.
        forced = force or (actor.is_system and placement.confirmed_config_hash == spec.config_hash)
        data = launch.LaunchInput(generation=placement.generation, force=forced, restart=restart)
        operation_id = ""
        if joint is not None:
            operation_id = joint.operations[placement.shard]
            data = data.changed(shards=joint.operations)
        # Engines of an earlier start of a shard cannot meet the new ones: they are stopped first.
        stage = launch.STOPPING if restart or joint is not None else launch.CHECKING
        operation = _create(launch.KIND, stage, placement, actor, text, data, operation_id)
        _accepted("model.restart" if restart else "model.start", actor, operation)
        made.append(operation)
    return made


def _create(
    kind: Kind[I, S],
    stage: str,
    placement: Placement,
    actor: Actor,
    text: str,
    data: I | None,
    operation_id: str = "",
) -> Operation:
    subject = ledger.Subject(_TARGET, str(placement.pk), placement.node_id_text, placement.model_id)
    try:
        with transaction.atomic():
            return ledger.create(kind, stage, subject, actor, text, data, operation_id=operation_id)
    except IntegrityError as error:
        raise Conflict(f"Another operation on model {placement.model_id!r} was just started; reload.") from error


def _accepted(action: str, actor: Actor, operation: Operation) -> None:
    audit_log.record(
        action,
        actor,
        node_id=operation.node_id_text,
        model_id=operation.model_id_text,
        operation_id=operation.pk,
        result="accepted",
    )
