"""What people and loops ask of moves: to move a model, to give that up, to give up its source. And how one stands."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.db import IntegrityError, transaction
from pydantic import SecretStr

from agent.wire.downloads import DownloadSpec, FolderList, TokenInput, TokenKept
from audit import log as audit_log
from jobs import artifacts, ledger
from jobs.kinds import move
from jobs.models import Operation
from jobs.queries import open_operation, unfinished
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound
from mirbad.kernel.ids import new_operation_id, new_uid
from models_app import holds, queries
from models_app.artifacts import folders
from models_app.artifacts.wishes import spec_of
from models_app.errors import ModelNotMovable, PlacementInvalid
from models_app.models import ModelDefinition, ModelSource, Placement
from models_app.placement import handover
from models_app.states import READY, RUNNING, UNHEALTHY
from nodes import fencing
from nodes import queries as node_queries
from nodes.errors import ConfirmationRequired
from nodes.link import client
from nodes.models import Node

Mode = Literal["auto", "handover", "stop-first"]
_TARGET = "model"


@dataclass(frozen=True, slots=True)
class Wish:
    """Where a model is to go. `source_node_id` says which of its replicas; empty is the one that stands for it."""

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
    """Move a model to another node; asked twice while it is under way, it is the same operation.

    ``auto`` hands a model that runs over without a pause, and stops first what cannot be handed over. The hub token
    goes to the target's agent alone, into its memory alone. `on_behalf_of` is an operation that may hold the model.
    Raises NotFound, ModelBusy, ModelNotMovable, InvalidRequest (it is there already), PlacementInvalid, Conflict,
    NodeRevoked, NodeDraining, NodeOffline and the other states of a target that does not serve, what `spec_of` raises
    with a token, MasterFenced.
    """
    wish = Wish(model_id, node_id, tuple(gpu_uuids), mode, source_node_id)
    with audit_log.refusals_recorded("model.move", actor, model_id=model_id, node_id=node_id):
        if (standing := _standing(wish)) is not None:
            return standing
        operation_id = new_operation_id()
        specs: dict[int, DownloadSpec] = {}
        try:
            if hub_token:
                with transaction.atomic():
                    model, _ = _checked(wish, on_behalf_of)
                specs = _hand_over(model, node_id, operation_id, hub_token)
            return _open(wish, operation_id, specs, actor, on_behalf_of)
        except Conflict:
            # The same was asked for at the same moment: that one is meant.
            if (standing := _standing(wish)) is not None:
                return standing
            raise


def _standing(wish: Wish) -> Operation | None:
    found = open_operation(move.KIND.lane, _TARGET, wish.model_id)
    if found is None or found.kind != move.NAME or found.cancel_requested_at is not None or found.stage == move.UNDOING:
        return None
    asked = (found.node_id_text, tuple(found.input["gpuUuids"]))
    return found if asked == (wish.node_id, wish.gpu_uuids) else None


def _open(
    wish: Wish, operation_id: str, specs: Mapping[int, DownloadSpec], actor: Actor, on_behalf_of: str
) -> Operation:
    try:
        with transaction.atomic():
            model, source = _checked(wish, on_behalf_of)
            frozen = _frozen(wish, model, source)
            frozen |= {"specs": {str(at): spec.to_wire() for at, spec in specs.items()}, "onBehalfOf": on_behalf_of}
            subject = ledger.Subject(_TARGET, model.pk, wish.node_id, model.pk)
            text = f"Move to node {wish.node_id} requested."
            made = ledger.create(move.KIND, move.DOWNLOADING, subject, actor, text, frozen, operation_id=operation_id)
            if on_behalf_of:
                holds.release(model.pk, on_behalf_of)
            holds.take(model.pk, "move", move.hold_id(made.pk), f"a move to node {wish.node_id}")
            audit_log.record(
                "model.move",
                actor,
                node_id=wish.node_id,
                model_id=model.pk,
                operation_id=made.pk,
                result="accepted",
                detail=f"{frozen['mode']}, from {frozen['sourceNode'] or 'no node'} to {wish.node_id}",
            )
            return made
    except IntegrityError as error:
        raise Conflict(f"Something else began on model {wish.model_id!r} just now; look again.") from error


def _checked(wish: Wish, on_behalf_of: str) -> tuple[ModelDefinition, Placement | None]:
    """The model and the placement that is moved, in the caller's transaction, once every rule allows it."""
    fencing.require_unfenced()
    holds.require_free(wish.model_id, unless=on_behalf_of)
    model = ModelDefinition.objects.prefetch_related("sources", "placements").get(pk=wish.model_id)
    source = _source(model, wish)
    if any(row.kind != ModelSource.HUGGING_FACE for row in model.sources.all()):
        raise ModelNotMovable(
            f"The weights of model {model.pk!r} come from a folder of its node, so no other node can fetch them. Put "
            "them on the other node and add the model there."
        )
    if any(placement.node_id_text == wish.node_id for placement in model.placements.all()):
        raise InvalidRequest(
            f"Model {model.pk!r} stands on node {wish.node_id!r} already; edit it to choose other GPUs there."
        )
    if Node.objects.filter(pk=wish.node_id).exists():
        node_queries.require_placeable(wish.node_id)
    handover.check(model, wish.node_id, wish.gpu_uuids)
    if source is not None and (opened := open_operation("run", "placement", str(source.pk))) is not None:
        raise Conflict(
            f"Model {model.pk!r} is being started or stopped on node {source.node_id_text!r}; wait for that to end.",
            fields={"operationId": opened.pk},
        )
    return model, source


def _source(model: ModelDefinition, wish: Wish) -> Placement | None:
    standing = queries.placements_of(model)
    if wish.source_node_id:
        source = next((one for one in standing if one.node_id_text == wish.source_node_id), None)
        if source is None:
            raise Conflict(f"Model {model.pk!r} does not stand on node {wish.source_node_id!r}; reload.")
    else:
        source = queries.primary(model)
    if source is not None and source.shards > 1:
        raise ModelNotMovable(
            f"Model {model.pk!r} runs on {source.shards} nodes as one. Remove that replica and add another instead."
        )
    return source


def _frozen(wish: Wish, model: ModelDefinition, source: Placement | None) -> dict[str, Any]:
    running = source is not None and source.desired == RUNNING
    mode = _mode(wish, source)
    return {
        "mode": mode,
        "source": str(source.pk) if source else "",
        "sourceNode": source.node_id_text if source else "",
        "target": str(new_uid()),
        "gpuUuids": list(wish.gpu_uuids),
        "generation": (source.generation if source else 0) + 1,
        "running": running,
    }


def _mode(wish: Wish, source: Placement | None) -> str:
    if wish.mode == move.STOP_FIRST or source is None:
        return move.STOP_FIRST
    serves = source.desired == RUNNING and source.observed in (READY, UNHEALTHY)
    if serves and not move.why_away(source.node_id_text):
        return move.HANDOVER
    if wish.mode == move.HANDOVER:
        text = f"Model {source.model_id!r} does not serve on node {source.node_id_text!r}, so there is nothing to hand"
        raise Conflict(f"{text} over; move it with the mode stop-first.")
    return move.STOP_FIRST


def _hand_over(model: ModelDefinition, node_id: str, operation_id: str, token: str) -> dict[int, DownloadSpec]:
    """Pin what the target lacks with the token, and give it to that node's agent for these downloads; by position."""
    listed = client.call(node_id, "GET", "folders", answer=FolderList).folders
    specs = {}
    for at, source in enumerate(sorted(model.sources.all(), key=lambda row: row.position)):
        if not folders.lacks(listed, source.folder, source.file):
            continue
        specs[at] = spec_of(artifacts.wish_for(model, source), token)
        body = TokenInput(token=SecretStr(token), nonce=secrets.token_hex(16))
        download_id = move.download_id(operation_id, at)
        key = f"{download_id}:token:{secrets.token_hex(6)}"
        client.call(node_id, "PUT", f"downloads/{download_id}/token", body, answer=TokenKept, operation_id=key)
    return specs


def gpus_at(node_id: str, indices: Sequence[int]) -> tuple[str, ...]:
    """The UUIDs of GPUs by their index on a node, as it last reported. Raises PlacementInvalid."""
    if not indices:
        return ()
    node = Node.objects.filter(pk=node_id).first()
    known = node_queries.capabilities(node) if node is not None else None
    by_index = {gpu.index: gpu.uuid for gpu in known.gpus} if known is not None else {}
    if missing := [index for index in indices if index not in by_index]:
        text = f"Node {node_id!r} has no GPU {', '.join(map(str, missing))}, as it last reported; choose another."
        problem = {"code": "gpu_unknown", "message": text, "field": "gpuIndices"}
        raise PlacementInvalid(text, problems=[problem])
    return tuple(by_index[index] for index in indices)


def cancel(model_id: str, actor: Actor) -> Operation:
    """Give up the open move of a model; what it did is undone.

    Raises NotFound, Conflict (too late, or none), MasterFenced.
    """
    with audit_log.refusals_recorded("model.move", actor, model_id=model_id), transaction.atomic():
        fencing.require_unfenced()
        _require_model(model_id)
        operation = _locked(model_id)
        if why := move.why_no_cancel(operation.stage, operation.input):
            raise Conflict(why, fields={"stage": operation.stage})
        ledger.ask_to_cancel(operation)
        _say("model.move", actor, operation, "cancel")
    operation.refresh_from_db()
    return operation


def force_commit(model_id: str, confirm: str, actor: Actor, *, sure: Callable[[], None] = lambda: None) -> Operation:
    """Give up a source that does not serve, so that the move goes on without it.

    `confirm` is the source's id. Raises NotFound, ConfirmationRequired before all else, then what `sure` raises,
    Conflict (it is not being moved, or does not wait for its source), MasterFenced.
    """
    _require_model(model_id)
    with audit_log.refusals_recorded("model.move.force-commit", actor, model_id=model_id), transaction.atomic():
        newest = last(model_id)
        source = move.plan_in(newest).source_node if newest else ""
        if not confirm.strip() or (source and confirm.strip() != source):
            raise ConfirmationRequired(f"Type {source or 'the id of its node'} to confirm that it is given up.")
        sure()
        fencing.require_unfenced()
        operation = _locked(model_id)
        if not can_force_commit(operation):
            raise Conflict(
                "A move can be committed by force only while it waits for a source that does not serve.",
                fields={"stage": operation.stage},
            )
        text = f"Node {source} is given up: the move goes on without it."
        if not ledger.steer(operation, {"forced": True}, text):
            raise Conflict("The move went on just now; look again.", fields={"stage": operation.stage})
        _say("model.move.force-commit", actor, operation, text)
    operation.refresh_from_db()
    return operation


def can_force_commit(operation: Operation) -> bool:
    """Whether a move waits for a source that does not serve."""
    at_it = operation.kind == move.NAME and operation.finished_at is None and operation.stage == move.STOPPING_SOURCE
    if not at_it or operation.cancel_requested_at is not None or operation.state.get("forced"):
        return False
    return bool(move.why_away(move.plan_in(operation).source_node))


def consequence(operation: Operation) -> str:
    """What a force-commit leads to, in words; "" when there is none to speak of."""
    if not can_force_commit(operation):
        return ""
    source = move.plan_in(operation).source_node
    return (
        f"If {source} comes back, the old engine may still be running there until it is stopped; no request is sent "
        f"to it. Once {source} serves again, Mirbad stops that engine by itself."
    )


def last(model_id: str) -> Operation | None:
    """The newest move of a model, open or over."""
    return Operation.objects.filter(kind=move.NAME, target_kind=_TARGET, target_id=model_id).order_by("-id").first()


def _require_model(model_id: str) -> None:
    if not ModelDefinition.objects.filter(pk=model_id).exists():
        raise NotFound(f"There is no model {model_id!r}.")


def _locked(model_id: str) -> Operation:
    rows = unfinished().select_for_update()
    operation = rows.filter(kind=move.NAME, target_kind=_TARGET, target_id=model_id).first()
    if operation is None:
        raise Conflict(f"Model {model_id!r} is not being moved.")
    return operation


def _say(action: str, actor: Actor, operation: Operation, detail: str) -> None:
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
class Brought:
    """A set that the move brings, or has brought, to the target. None is not reported."""

    repository: str
    folder: str
    state: str
    done_bytes: int | None
    total_bytes: int | None
    bytes_per_second: int | None


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """How a move stands. `stage` is the spec's word, ``failed`` and ``cancelled`` once it ended so.

    `start` tells why the model was not started on the target, when the move is done all the same.
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
    downloads: tuple[Brought, ...]

    @property
    def open(self) -> bool:
        """Whether it is under way."""
        return self.operation.finished_at is None


def record(model_id: str) -> MoveRecord | None:
    """The newest move of a model as it stands; None when it was never moved."""
    operation = last(model_id)
    return record_of(operation) if operation is not None else None


def record_of(operation: Operation) -> MoveRecord:
    """A move as it stands."""
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
        can_cancel=may_cancel and not move.why_no_cancel(operation.stage, operation.input),
        can_force_commit=can_force_commit(operation),
        consequence=consequence(operation),
        start=dict((operation.result or {}).get("start") or {}),
        downloads=_brought(operation),
    )


def _brought(operation: Operation) -> tuple[Brought, ...]:
    found = [
        Brought(one["repository"], one["folder"], "ready", one["bytes"], one["bytes"], None)
        for one in operation.state.get("brought", ())
    ]
    spec = operation.state.get("spec")
    if spec:
        progress = operation.progress or {}
        found.append(
            Brought(
                spec["repository"],
                spec["folder"],
                "downloading" if operation.finished_at is None else "ended",
                progress.get("doneBytes"),
                progress.get("totalBytes") or sum(file["sizeBytes"] for file in spec["files"]),
                progress.get("bytesPerSecond"),
            )
        )
    return tuple(found)
