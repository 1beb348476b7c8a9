"""Requests of moves: move a model, cancel the move, give up its source; and the record of a move."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.db import IntegrityError, transaction
from pydantic import SecretStr

from agent.wire.downloads import DownloadSpec, FolderList, TokenInput, TokenStored
from audit import log as audit_log
from jobs import ledger
from jobs.kinds import move
from jobs.models import Operation
from jobs.queries import open_operation, unfinished
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from jobs.steps import artifacts, moving
from jobs.steps.moving import MoveInput
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound
from mirbad.kernel.ids import new_operation_id, new_uid
from models_app import holds, queries
from models_app.artifacts import folders
from models_app.artifacts.download_request import spec_of
from models_app.errors import ModelNotMovable, PlacementInvalid
from models_app.models import ModelDefinition, ModelSource, Placement
from models_app.placement import apply
from models_app.states import READY, RUNNING, UNHEALTHY
from nodes import fencing
from nodes import queries as node_queries
from nodes.errors import ConfirmationRequired
from nodes.link import client
from nodes.models import Node

Mode = Literal["auto", "handover", "stop-first"]
_TARGET = "model"


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """The target of a move. `source_node_id` is the node of the replica to move; empty is the primary's."""

    model_id: str
    node_id: str
    gpu_uuids: tuple[str, ...]
    mode: Mode
    source_node_id: str = ""


def request(
    model_id: str,
    node_id: str,
    gpu_uuids: Sequence[str],
    actor: Actor,
    *,
    mode: Mode = "auto",
    hub_token: str = "",
    on_behalf_of: str = "",
    source_node_id: str = "",
) -> Operation:
    """Move a model to another node; repeated while the move is open, it returns the same operation.

    ``auto`` is a hand-over for a model that serves, and stop-first for others. The hub token is sent to the target's
    agent only, and kept in its memory only. `on_behalf_of` is an operation that may hold the model. Raises NotFound,
    ModelBusy, ModelNotMovable, InvalidRequest (it is already there), PlacementInvalid, Conflict,
    NodeRevoked, NodeDraining, NodeOffline and the other states of a target that does not serve, what `spec_of` raises
    with a token, MasterFenced.
    """
    move_request = MoveRequest(model_id, node_id, tuple(gpu_uuids), mode, source_node_id)
    with audit_log.refusals_recorded("model.move", actor, model_id=model_id, node_id=node_id):
        if (existing := _existing(move_request)) is not None:
            return existing
        operation_id = new_operation_id()
        specs: dict[int, DownloadSpec] = {}
        try:
            if hub_token:
                with transaction.atomic():
                    model, _ = _checked(move_request, on_behalf_of)
                specs = _send_token(model, node_id, operation_id, hub_token)
            return _open(move_request, operation_id, specs, actor, on_behalf_of)
        except Conflict:
            # The same move was requested at the same moment: return that one.
            if (existing := _existing(move_request)) is not None:
                return existing
            raise


def _existing(move_request: MoveRequest) -> Operation | None:
    found = open_operation(move.KIND.concurrency_group, _TARGET, move_request.model_id)
    if found is None or found.kind != move.NAME or found.cancel_requested_at is not None or found.stage == move.UNDOING:
        return None
    same = (found.node_id_text, moving.input_of(found).gpu_uuids) == (move_request.node_id, move_request.gpu_uuids)
    return found if same else None


def _open(
    move_request: MoveRequest, operation_id: str, specs: Mapping[int, DownloadSpec], actor: Actor, on_behalf_of: str
) -> Operation:
    try:
        with transaction.atomic():
            model, source = _checked(move_request, on_behalf_of)
            data = _input(move_request, source).changed(specs=specs, on_behalf_of=on_behalf_of)
            subject = ledger.Subject(_TARGET, model.pk, move_request.node_id, model.pk)
            text = f"Move to node {move_request.node_id} requested."
            made = ledger.create(move.KIND, move.DOWNLOADING, subject, actor, text, data, operation_id=operation_id)
            if on_behalf_of:
                holds.release(model.pk, on_behalf_of)
            holds.take(model.pk, "move", move.hold_id(made.pk), f"a move to node {move_request.node_id}")
            audit_log.record(
                "model.move",
                actor,
                node_id=move_request.node_id,
                model_id=model.pk,
                operation_id=made.pk,
                result="accepted",
                detail=f"{data.mode}, from {data.source_node or 'no node'} to {move_request.node_id}",
            )
            return made
    except IntegrityError as error:
        raise Conflict(f"Another operation on model {move_request.model_id!r} was just started; reload.") from error


def _checked(move_request: MoveRequest, on_behalf_of: str) -> tuple[ModelDefinition, Placement | None]:
    """Return the model and the placement to move, in the caller's transaction, once every rule allows the move."""
    fencing.require_unfenced()
    holds.require_free(move_request.model_id, unless=on_behalf_of)
    model = ModelDefinition.objects.prefetch_related("sources", "placements").get(pk=move_request.model_id)
    source = _source(model, move_request)
    if any(row.kind != ModelSource.HUGGING_FACE for row in model.sources.all()):
        raise ModelNotMovable(
            f"The weights of model {model.pk!r} are in a folder of its node, so no other node can download them. Copy "
            "them to the other node and add the model there."
        )
    if any(placement.node_id_text == move_request.node_id for placement in model.placements.all()):
        raise InvalidRequest(
            f"Model {model.pk!r} is already placed on node {move_request.node_id!r}; edit it to choose other GPUs."
        )
    if Node.objects.filter(pk=move_request.node_id).exists():
        node_queries.require_placeable(move_request.node_id)
    apply.check(model, move_request.node_id, move_request.gpu_uuids)
    if source is not None and (opened := open_operation("run", "placement", str(source.pk))) is not None:
        raise Conflict(
            f"Model {model.pk!r} is being started or stopped on node {source.node_id_text!r}; wait for its end.",
            fields={"operationId": opened.pk},
        )
    return model, source


def _source(model: ModelDefinition, move_request: MoveRequest) -> Placement | None:
    existing = queries.placements_of(model)
    if move_request.source_node_id:
        source = next((one for one in existing if one.node_id_text == move_request.source_node_id), None)
        if source is None:
            raise Conflict(f"Model {model.pk!r} is not placed on node {move_request.source_node_id!r}; reload.")
    else:
        source = queries.primary(model)
    if source is not None and source.shards > 1:
        raise ModelNotMovable(
            f"Model {model.pk!r} has a replica over {source.shards} nodes. Remove that replica and add another instead."
        )
    return source


def _input(move_request: MoveRequest, source: Placement | None) -> MoveInput:
    return MoveInput(
        mode=_mode(move_request, source),
        source=source.pk if source else None,
        source_node=source.node_id_text if source else "",
        target=new_uid(),
        gpu_uuids=move_request.gpu_uuids,
        generation=(source.generation if source else 0) + 1,
        running=source is not None and source.desired == RUNNING,
    )


def _mode(move_request: MoveRequest, source: Placement | None) -> str:
    if move_request.mode == move.STOP_FIRST or source is None:
        return move.STOP_FIRST
    serves = source.desired == RUNNING and source.observed in (READY, UNHEALTHY)
    if serves and not move.why_away(source.node_id_text):
        return move.HANDOVER
    if move_request.mode == move.HANDOVER:
        text = f"Model {source.model_id!r} does not serve on node {source.node_id_text!r}, so it cannot be handed"
        raise Conflict(f"{text} over; use the mode stop-first.")
    return move.STOP_FIRST


def _send_token(model: ModelDefinition, node_id: str, operation_id: str, token: str) -> dict[int, DownloadSpec]:
    """Pin the files that the target lacks, and send the token for them to its agent; return the sets by position."""
    listed = client.call(node_id, "GET", "folders", answer=FolderList).folders
    specs = {}
    for at, source in enumerate(sorted(model.sources.all(), key=lambda row: row.position)):
        if not folders.lacks(listed, source.folder, source.file, source.projector):
            continue
        specs[at] = spec_of(artifacts.request_for(model, source), token)
        body = TokenInput(token=SecretStr(token), nonce=secrets.token_hex(16))
        download_id = move.download_id(operation_id, at)
        key = f"{download_id}:token:{secrets.token_hex(6)}"
        client.call(node_id, "PUT", f"downloads/{download_id}/token", body, answer=TokenStored, operation_id=key)
    return specs


def gpus_at(node_id: str, indices: Sequence[int]) -> tuple[str, ...]:
    """Return the UUIDs of GPUs by their index on a node, by its last report. Raises PlacementInvalid."""
    if not indices:
        return ()
    node = Node.objects.filter(pk=node_id).first()
    known = node_queries.capabilities(node) if node is not None else None
    by_index = {gpu.index: gpu.uuid for gpu in known.gpus} if known is not None else {}
    if missing := [index for index in indices if index not in by_index]:
        text = f"Node {node_id!r} has no GPU {', '.join(map(str, missing))} in its last report; choose another."
        problem = {"code": "gpu_unknown", "message": text, "field": "gpuIndices"}
        raise PlacementInvalid(text, problems=[problem])
    return tuple(by_index[index] for index in indices)


def cancel(model_id: str, actor: Actor) -> Operation:
    """Cancel the open move of a model; its changes are undone.

    Raises NotFound, Conflict (too late, or none), MasterFenced.
    """
    with audit_log.refusals_recorded("model.move", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        _require_model(model_id)
        operation = _locked(model_id)
        if why := move.why_no_cancel(move.KIND.step(operation)):
            raise Conflict(why, fields={"stage": operation.stage})
        ledger.ask_to_cancel(operation)
        _record_request("model.move", actor, operation, "cancel")
    operation.refresh_from_db()
    return operation


def force_commit(model_id: str, confirm: str, actor: Actor, *, sure: Callable[[], None] = lambda: None) -> Operation:
    """Give up a source that does not serve, so that the move continues without it.

    `confirm` is the source's id. Raises NotFound, ConfirmationRequired before all else, then the errors of `sure`,
    Conflict (no move is open, or it does not wait for its source), MasterFenced.
    """
    _require_model(model_id)
    with audit_log.refusals_recorded("model.move.force-commit", actor, model_id=model_id), transaction.atomic():
        newest = last(model_id)
        source = move.plan_in(newest).source_node if newest else ""
        if not confirm.strip() or (source and confirm.strip() != source):
            raise ConfirmationRequired(f"Type {source or 'the id of its node'} to confirm the force-commit.")
        sure()
        fencing.require_unfenced()
        operation = _locked(model_id)
        if not can_force_commit(operation):
            raise Conflict(
                "A force-commit is possible only while the move waits for a source that does not serve.",
                fields={"stage": operation.stage},
            )
        text = f"Node {source} is given up: the move continues without it."
        if not ledger.steer(operation, move.KIND.step(operation).state.changed(forced=True), text):
            raise Conflict("The move has just continued; reload.", fields={"stage": operation.stage})
        _record_request("model.move.force-commit", actor, operation, text)
    operation.refresh_from_db()
    return operation


def can_force_commit(operation: Operation) -> bool:
    """Return whether a move waits for a source that does not serve."""
    at_it = operation.kind == move.NAME and operation.finished_at is None and operation.stage == move.STOPPING_SOURCE
    if not at_it or operation.cancel_requested_at is not None or move.KIND.step(operation).state.forced:
        return False
    return bool(move.why_away(move.plan_in(operation).source_node))


def consequence(operation: Operation) -> str:
    """Return the consequence of a force-commit, as sentences; "" when none is possible."""
    if not can_force_commit(operation):
        return ""
    source = move.plan_in(operation).source_node
    return (
        f"If {source} returns, the old engine may still be running there, without requests. Once {source} serves "
        "again, Mirbad stops that engine."
    )


def last(model_id: str) -> Operation | None:
    """Return the newest move of a model, open or ended."""
    return Operation.objects.filter(kind=move.NAME, target_kind=_TARGET, target_id=model_id).order_by("-id").first()


def _require_model(model_id: str) -> None:
    if not ModelDefinition.objects.filter(pk=model_id).exists():
        raise NotFound(f"Model {model_id!r} not found.")


def _locked(model_id: str) -> Operation:
    rows = unfinished().select_for_update()
    operation = rows.filter(kind=move.NAME, target_kind=_TARGET, target_id=model_id).first()
    if operation is None:
        raise Conflict(f"Model {model_id!r} is not being moved.")
    return operation


def _record_request(action: str, actor: Actor, operation: Operation, detail: str) -> None:
    audit_log.record(
        action,
        actor,
        node_id=operation.node_id_text,
        model_id=operation.model_id_text,
        operation_id=operation.pk,
        result="accepted",
        detail=detail,
    )


@dataclass(frozen=True, slots=True)
class Transfer:
    """A set of files that the move downloads, or has downloaded, to the target. None is not reported."""

    repository: str
    folder: str
    state: str
    done_bytes: int | None
    total_bytes: int | None
    bytes_per_second: int | None


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A move in its present state. `stage` is ``done``, ``failed`` or ``cancelled`` once it has ended.

    `start` is the reason why the model was not started on the target by a move that is done.
    """

    operation: Operation
    source_node_id: str
    target_node_id: str
    gpu_uuids: tuple[str, ...]
    mode: str
    running: bool
    stage: str
    paused: bool
    can_cancel: bool
    can_force_commit: bool
    consequence: str
    start: Mapping[str, Any]
    downloads: tuple[Transfer, ...]

    @property
    def open(self) -> bool:
        """True until the move has ended."""
        return self.operation.finished_at is None


def record(model_id: str) -> MoveRecord | None:
    """Return the record of the newest move of a model; None when it was never moved."""
    operation = last(model_id)
    return record_of(operation) if operation is not None else None


def record_of(operation: Operation) -> MoveRecord:
    """Return the record of a move."""
    plan = move.plan_in(operation)
    is_open = operation.finished_at is None
    ends = {SUCCEEDED: "done", FAILED: "failed", CANCELLED: "cancelled"}
    may_cancel = is_open and operation.cancel_requested_at is None
    return MoveRecord(
        operation=operation,
        source_node_id=plan.source_node,
        target_node_id=plan.arrival.node_id,
        gpu_uuids=plan.arrival.gpu_uuids,
        mode=plan.mode,
        running=plan.running,
        stage=operation.stage if is_open else ends[operation.outcome],
        paused=is_open and bool((operation.progress or {}).get("paused")),
        can_cancel=may_cancel and not move.why_no_cancel(move.KIND.step(operation)),
        can_force_commit=can_force_commit(operation),
        consequence=consequence(operation),
        start=dict((operation.result or {}).get("start") or {}),
        downloads=_transfers(operation),
    )


def _transfers(operation: Operation) -> tuple[Transfer, ...]:
    state = move.KIND.step(operation).state
    found = [Transfer(one.repository, one.folder, "ready", one.bytes, one.bytes, None) for one in state.brought]
    if state.spec is not None:
        progress = operation.progress or {}
        found.append(
            Transfer(
                state.spec.repository,
                state.spec.folder,
                "downloading" if operation.finished_at is None else "ended",
                progress.get("doneBytes"),
                progress.get("totalBytes") or state.spec.total_bytes,
                progress.get("bytesPerSecond"),
            )
        )
    return tuple(found)
