"""What people and loops ask for: start, stop, restart, cancel. One transaction each: guard, change, audit, announce."""

from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.base import Kind
from jobs.kinds import GO_ON_FENCED, launch
from jobs.kinds import stop as stopping
from jobs.models import Operation
from jobs.queries import open_operation
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, NotFound
from models_app import holds, registry
from models_app.errors import GpuMissing
from models_app.models import ModelDefinition, Placement
from models_app.placement import apply, feasible
from models_app.states import READY, RUNNING, STOPPED, UNHEALTHY
from nodes import fencing
from nodes import queries as node_queries
from nodes.models import Node

_TARGET = "placement"


def start(model_id: str, actor: Actor, force: bool = False) -> Operation:
    """Start a model; a start while it starts gives the same operation. `force` skips the memory check of the node.

    Raises NotFound, ModelBusy, Conflict (unplaced, runs already, is being stopped), NodeOffline and the other states
    of a node that does not serve, NodeDraining, GpuMissing, ImageMissing, MasterFenced (all four verbs).
    """
    with audit_log.refusals_recorded("model.start", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        placement = _locked(model_id)
        if (operation := _open(placement)) is not None:
            return _same_launch(operation, placement)
        node = _startable(placement)
        if placement.desired == RUNNING and placement.observed in (READY, UNHEALTHY):
            raise Conflict(f"Model {model_id!r} runs already; restart it to apply changes.")
        return _launch(placement, node, actor, force=force, restart=False)


def restart(model_id: str, actor: Actor, force: bool = False) -> Operation:
    """Stop a model and start it with its present settings; starts it when it does not run. Raises as `start`."""
    with audit_log.refusals_recorded("model.restart", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        placement = _locked(model_id)
        if (operation := _open(placement)) is not None:
            if operation.kind == launch.NAME and operation.input.get("restart"):
                return _same_launch(operation, placement)
            raise _busy(operation, placement)
        return _launch(placement, _startable(placement), actor, force=force, restart=True)


def stop(model_id: str, actor: Actor) -> Operation:
    """Stop a model. An open launch is asked to end, which stops its engine; that operation is returned.

    Raises NotFound, ModelBusy, Conflict (unplaced, stopped already).
    """
    with audit_log.refusals_recorded("model.stop", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        placement = _locked(model_id)
        operation = _open(placement)
        if operation is None and placement.desired == STOPPED and placement.observed == STOPPED:
            raise Conflict(f"Model {model_id!r} is stopped already.")
        apply.want_stopped(placement)
        if operation is not None:
            if operation.kind == launch.NAME:
                ledger.ask_to_cancel(operation)
                operation.refresh_from_db()
        else:
            operation = _create(stopping.KIND, stopping.STOPPING, placement, actor, {}, "Stop requested.")
        _accepted("model.stop", actor, operation)
        return operation


def cancel(operation_id: str, actor: Actor) -> Operation:
    """Ask an operation to end. A launch stops its engine first. Raises NotFound, Conflict (over already)."""
    operation = Operation.objects.filter(pk=operation_id).first()
    if operation is None:
        raise NotFound(f"There is no operation {operation_id!r}.")
    action = "model.stop" if operation.kind == launch.NAME else "job"
    with audit_log.refusals_recorded(action, actor, operation_id=operation_id), transaction.atomic():
        if operation.kind not in GO_ON_FENCED:
            fencing.require_unfenced()
        if operation.finished_at is not None:
            raise Conflict("The operation is over already.")
        if operation.kind == launch.NAME:
            placement = Placement.objects.filter(pk=operation.target_id).first()
            if placement is not None:
                apply.want_stopped(placement)
        ledger.ask_to_cancel(operation)
        _accepted(action, actor, operation)
    operation.refresh_from_db()
    return operation


def _locked(model_id: str) -> Placement:
    # The definition's row first: it is the lock that holds and edits take, too.
    holds.require_free(model_id)
    placement = Placement.objects.select_for_update().filter(model_id=model_id).first()
    if placement is None:
        raise Conflict(f"Model {model_id!r} stands on no node; place it first.")
    placement.model = ModelDefinition.objects.prefetch_related("sources").get(pk=model_id)
    return placement


def _open(placement: Placement) -> Operation | None:
    return open_operation("run", _TARGET, str(placement.pk))


def _same_launch(operation: Operation, placement: Placement) -> Operation:
    if operation.kind == launch.NAME and operation.cancel_requested_at is None:
        return operation
    raise _busy(operation, placement)


def _busy(operation: Operation, placement: Placement) -> Conflict:
    doing = "started" if operation.kind == launch.NAME and operation.cancel_requested_at is None else "stopped"
    return Conflict(
        f"Model {placement.model_id!r} is being {doing}; wait for that to end.", fields={"operationId": operation.pk}
    )


def _startable(placement: Placement) -> Node:
    node = node_queries.require_placeable(placement.node_id_text)
    capabilities = apply.facts_of(node).capabilities
    missing = feasible.missing_gpus(placement.gpu_uuids, capabilities) if capabilities else ()
    if missing:
        raise GpuMissing(
            f"GPU {', '.join(missing)} is not on node {node.pk!r} any more; choose the model's GPUs again.",
            fields={"gpuUuids": list(missing)},
        )
    return node


def _launch(placement: Placement, node: Node, actor: Actor, *, force: bool, restart: bool) -> Operation:
    spec = registry.launch_spec(placement, node)
    apply.want_running(placement, spec.config_hash)
    frozen: dict[str, object] = {"generation": placement.generation, "force": force, "restart": restart}
    stage = launch.STOPPING if restart else launch.CHECKING
    text = "Restart requested." if restart else "Start requested."
    operation = _create(launch.KIND, stage, placement, actor, frozen, text)
    _accepted("model.restart" if restart else "model.start", actor, operation)
    return operation


def _create(
    kind: Kind, stage: str, placement: Placement, actor: Actor, frozen: dict[str, object], text: str
) -> Operation:
    subject = ledger.Subject(_TARGET, str(placement.pk), placement.node_id_text, placement.model_id)
    try:
        with transaction.atomic():
            return ledger.create(kind, stage, subject, actor, text, frozen)
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
