"""What people and loops ask for: start, stop, restart, cancel. One transaction each: guard, change, audit, announce.

A model may have several replicas, and a replica several shards: one operation each placement. What cannot be done to
one replica is left out when it can be done to another; the shards of one replica go together or not at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger, shards
from jobs.base import Kind
from jobs.kinds import GO_ON_FENCED, KINDS, launch, move, unplace
from jobs.kinds import stop as stopping
from jobs.models import Operation
from jobs.queries import open_operation
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, MirbadError, NotFound
from models_app import holds, registry
from models_app.artifacts import images
from models_app.errors import GpuMissing
from models_app.models import ModelDefinition, Placement
from models_app.placement import apply, feasible
from models_app.queries import Replica, grouped
from models_app.states import READY, RUNNING, STOPPED, UNHEALTHY
from nodes import fencing
from nodes import queries as node_queries
from nodes.models import Node

_TARGET = "placement"
# What it is to end an operation, in the audit log.
_ENDS = {launch.NAME: "model.stop", move.NAME: "model.move", unplace.NAME: "model.unplace"}


@dataclass(frozen=True, slots=True)
class Skipped:
    """A replica that was left out, and why."""

    node_ids: tuple[str, ...]
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was taken on: the operations, the primary's first, and the replicas that were left out."""

    operations: tuple[Operation, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def operation(self) -> Operation:
        """The one that stands for all."""
        return self.operations[0]


def start(model_id: str, actor: Actor, force: bool = False) -> Operation:
    """`start_all`; the operation of the primary."""
    return start_all(model_id, actor, force=force).operation


def restart(model_id: str, actor: Actor, force: bool = False) -> Operation:
    """`restart_all`; the operation of the primary."""
    return restart_all(model_id, actor, force=force).operation


def stop(model_id: str, actor: Actor) -> Operation:
    """`stop_all`; the operation of the primary."""
    return stop_all(model_id, actor).operation


def start_all(
    model_id: str, actor: Actor, *, force: bool = False, replica: UUID | None = None, text: str = "Start requested."
) -> Accepted:
    """Start a model's replicas, or the one that is named; a start while it starts gives the same operation.

    `force` skips the memory check of the node. Raises NotFound, ModelBusy, Conflict (unplaced, runs already, is being
    stopped), NodeOffline and the other states of a node that does not serve, NodeDraining, GpuMissing, ImageMissing,
    SpecRejected, MasterFenced (all four verbs).
    """

    def one(found: Replica) -> list[Operation]:
        if opened := _open(found):
            return _same_launch(opened, found)
        if found.desired == RUNNING and all(one.observed in (READY, UNHEALTHY) for one in found.placements):
            _startable(found)
            raise Conflict(f"Model {model_id!r} runs already; restart it to apply changes.")
        return _launch(found, actor, force=force, restart=False, text=text)

    with audit_log.refusals_recorded("model.start", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        return _over(_locked(model_id, replica), one)


def restart_all(
    model_id: str, actor: Actor, *, force: bool = False, replica: UUID | None = None, text: str = "Restart requested."
) -> Accepted:
    """Stop a model and start it with its present settings; starts it when it does not run. Raises as `start_all`."""

    def one(found: Replica) -> list[Operation]:
        if opened := _open(found):
            if all(operation.kind == launch.NAME and operation.input.get("restart") for operation in opened):
                return _same_launch(opened, found)
            raise _busy(opened, found)
        return _launch(found, actor, force=force, restart=True, text=text)

    with audit_log.refusals_recorded("model.restart", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        return _over(_locked(model_id, replica), one)


def stop_all(model_id: str, actor: Actor, *, replica: UUID | None = None, text: str = "Stop requested.") -> Accepted:
    """Stop a model, or one replica. An open launch is asked to end, which stops its engine; that operation is returned.

    Raises NotFound, ModelBusy, Conflict (unplaced, stopped already).
    """

    def one(found: Replica) -> list[Operation]:
        made = []
        for placement in found.placements:
            opened = open_operation("run", _TARGET, str(placement.pk))
            if opened is not None or placement.desired != STOPPED or placement.observed != STOPPED:
                made.append(_stop(placement, opened, actor, text))
        if not made:
            raise Conflict(f"Model {model_id!r} is stopped already.")
        return made

    with audit_log.refusals_recorded("model.stop", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        return _over(_locked(model_id, replica), one)


def _stop(placement: Placement, opened: Operation | None, actor: Actor, text: str) -> Operation:
    apply.want_stopped(placement)
    if opened is None:
        opened = _create(stopping.KIND, stopping.STOPPING, placement, actor, text, {})
    elif opened.kind == launch.NAME:
        ledger.ask_to_cancel(opened)
        opened.refresh_from_db()
    _accepted("model.stop", actor, opened)
    return opened


def cancel(operation_id: str, actor: Actor) -> Operation:
    """Ask an operation to end. A launch stops its engine first.

    Raises NotFound, Conflict (over already, or at a stage from which there is no way back), MasterFenced.
    """
    operation = Operation.objects.filter(pk=operation_id).first()
    if operation is None:
        raise NotFound(f"There is no operation {operation_id!r}.")
    action = _ENDS.get(operation.kind, "job")
    with audit_log.refusals_recorded(action, actor, operation_id=operation_id), transaction.atomic():
        if operation.kind not in GO_ON_FENCED:
            fencing.require_unfenced()
        operation = Operation.objects.select_for_update().get(pk=operation_id)
        if operation.finished_at is not None:
            raise Conflict("The operation is over already.")
        if why := KINDS[operation.kind].why_no_cancel(operation.stage, operation.input):
            raise Conflict(why, fields={"stage": operation.stage})
        # The shards of a replica start together, or not at all.
        together = shards.operations_with(operation)
        if operation.kind == launch.NAME:
            for placement in Placement.objects.filter(pk__in=[one.target_id for one in together]).order_by("pk"):
                apply.want_stopped(placement)
        for one in together:
            ledger.ask_to_cancel(one)
        _accepted(action, actor, operation)
    operation.refresh_from_db()
    return operation


def _over(replicas: tuple[Replica, ...], act: Callable[[Replica], list[Operation]]) -> Accepted:
    """Do it to each; what cannot be done to one is told beside what was done, and raised when nothing was."""
    made: list[Operation] = []
    refused: list[tuple[Replica, MirbadError]] = []
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


def _locked(model_id: str, replica: UUID | None) -> tuple[Replica, ...]:
    # The definition's row first: it is the lock that holds and edits take, too.
    holds.require_free(model_id)
    # What a move brings up is the move's.
    placements = list(Placement.objects.select_for_update().filter(model_id=model_id, routed=True).order_by("pk"))
    if not placements:
        raise Conflict(f"Model {model_id!r} stands on no node; place it first.")
    model = ModelDefinition.objects.prefetch_related("sources").get(pk=model_id)
    for placement in placements:
        placement.model = model
    found = tuple(one for one in grouped(placements) if replica in (None, one.id))
    if not found:
        raise NotFound(f"Model {model_id!r} has no replica {str(replica)!r}.")
    return found


def _open(replica: Replica) -> list[Operation]:
    each = [open_operation("run", _TARGET, str(placement.pk)) for placement in replica.placements]
    return [operation for operation in each if operation is not None]


def _same_launch(opened: list[Operation], replica: Replica) -> list[Operation]:
    if all(operation.kind == launch.NAME and operation.cancel_requested_at is None for operation in opened):
        return opened
    raise _busy(opened, replica)


def _busy(opened: list[Operation], replica: Replica) -> Conflict:
    operation = opened[0]
    doing = "started" if operation.kind == launch.NAME and operation.cancel_requested_at is None else "stopped"
    return Conflict(
        f"Model {replica.head.model_id!r} is being {doing}; wait for that to end.",
        fields={"operationId": operation.pk},
    )


def _startable(replica: Replica) -> list[Node]:
    """The nodes of all shards, each able to start its own now."""
    if not replica.is_whole:
        count = f"{len(replica.placements)} of its {replica.wanted} shards"
        raise Conflict(f"A replica of model {replica.head.model_id!r} has {count}; remove it and add another.")
    return [_startable_node(placement) for placement in replica.placements]


def _startable_node(placement: Placement) -> Node:
    node = node_queries.require_placeable(placement.node_id_text)
    capabilities = apply.facts_of(node).capabilities
    missing = feasible.missing_gpus(placement.gpu_uuids, capabilities) if capabilities else ()
    if missing:
        raise GpuMissing(
            f"GPU {', '.join(missing)} is not on node {node.pk!r} any more; choose the model's GPUs again.",
            fields={"gpuUuids": list(missing)},
        )
    image, digest = registry.image_of(placement.model, node)
    if image and capabilities is not None:
        # The agent refuses the same, seconds later and with its own words.
        images.require_admitted(node, capabilities, image, digest)
    return node


def _launch(replica: Replica, actor: Actor, *, force: bool, restart: bool, text: str) -> list[Operation]:
    made = []
    together = shards.plan(replica)
    for placement, node in zip(replica.placements, _startable(replica), strict=True):
        spec = registry.launch_spec(placement, node)
        apply.want_running(placement, spec.config_hash)
        frozen: dict[str, object] = {"generation": placement.generation, "force": force, "restart": restart}
        operation_id = ""
        if together is not None:
            operation_id = together.operations[placement.shard]
            frozen["shards"] = together.to_input()
        # What is left of an earlier start of a shard cannot meet the new ones.
        stage = launch.STOPPING if restart or together is not None else launch.CHECKING
        operation = _create(launch.KIND, stage, placement, actor, text, frozen, operation_id)
        _accepted("model.restart" if restart else "model.start", actor, operation)
        made.append(operation)
    return made


def _create(
    kind: Kind,
    stage: str,
    placement: Placement,
    actor: Actor,
    text: str,
    frozen: dict[str, object],
    operation_id: str = "",
) -> Operation:
    subject = ledger.Subject(_TARGET, str(placement.pk), placement.node_id_text, placement.model_id)
    try:
        with transaction.atomic():
            return ledger.create(kind, stage, subject, actor, text, frozen, operation_id=operation_id)
    except IntegrityError as error:
        raise Conflict(f"Something else began on model {placement.model_id!r} just now; look again.") from error


def _accepted(action: str, actor: Actor, operation: Operation) -> None:
    audit_log.record(
        action,
        actor,
        node_id=operation.node_id_text,
        model_id=operation.model_id_text,
        operation_id=operation.pk,
        result="accepted",
    )
