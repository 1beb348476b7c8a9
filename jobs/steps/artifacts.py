"""Calls to an agent about downloads and image pulls, with every refusal as a failure of the step."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import Field, PlainSerializer

from agent.wire.base import WireModel
from agent.wire.capability import Feature, ModelFolder
from agent.wire.downloads import DownloadSpec, DownloadState, DownloadView, FolderList
from agent.wire.errors import AgentCode
from agent.wire.images import PullRequest, PullState, PullView
from jobs.base import AnyStep, Cancelled, Go, I, Moment, OperationData, Outcome, Run, S, Step
from jobs.errors import StepFailed
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from mirbad.web import parts
from models_app.artifacts.download_request import DownloadRequest, spec_of
from models_app.artifacts.errors import Gated
from models_app.artifacts.folders import lacks as folder_lacks
from models_app.models import ModelDefinition, ModelSource
from nodes import queries as node_queries
from nodes.errors import AgentRefused, NodeOffline
from nodes.link import client

T = TypeVar("T")
M = TypeVar("M", bound=WireModel)

LOOK_SECONDS = 1.0
_SERVER_ERROR = 500
_NODE_AWAY = frozenset({"node_offline", "node_incompatible", "node_pending_takeover", "unavailable"})
_PASSING = frozenset({AgentCode.START_CONFLICT, AgentCode.NOT_APPROVED})


StoredSpec = Annotated[DownloadSpec, PlainSerializer(DownloadSpec.to_wire)]
"""A set of files, stored as the message to the agent."""


class TransferState(OperationData):
    """State of a kind that follows a download or a pull.

    `turn` counts requests to the node that its journal may hold; `answered_at` is when the node last answered.
    """

    turn: int = Field(default=0, alias="asked")
    answered_at: Moment | None = Field(default=None, alias="seen")


def look(node_id: str, download_id: str) -> DownloadView | None:
    """Return the node's present view of the download; None when the node does not know it. StepFailed."""
    path = f"downloads/{download_id}"
    try:
        return _reach(node_id, lambda: client.call(node_id, "GET", path, None, answer=DownloadView))
    except AgentRefused as refusal:
        if refusal.agent_code == AgentCode.NOT_FOUND:
            return None
        raise _failure(node_id, refusal) from refusal


def follow(
    step: Step[OperationData, TransferState], download_id: str, spec: DownloadSpec, part: str = ""
) -> tuple[DownloadView, dict[str, Any]]:
    """Have the node download `spec`; return its view, and changes of the state. StepFailed when the download failed.

    `part` names the download in keys of a stage that has several.
    """
    view, turn = look(step.node_id, download_id), step.state.turn
    if view is None:
        # A node without its records gets another request, under another key: its journal may hold the old response.
        view = begin(step.node_id, download_id, spec, step.key(turn, part))
        turn += 1
    if failure := ended(view):
        raise failure
    return view, {"turn": turn, "answered_at": clock.now()}


def last_contact(step: AnyStep) -> datetime:
    """Return when the stage began, or the later time at which the node last answered in it."""
    answered_at = step.state.answered_at if isinstance(step.state, TransferState) else None
    return max(step.stage_since, answered_at) if answered_at else step.stage_since


def pull(
    node_id: str, pull_id: str, pull: PullRequest, *, key: Callable[[int], str], turn: int
) -> tuple[PullView, int]:
    """Have the node pull an image, unless it has it; return its view, and the turn of the next request. StepFailed.

    `key` returns the idempotency key of a turn.
    """
    path = f"images/pull/{pull_id}"
    try:
        view = _reach(node_id, lambda: client.call(node_id, "GET", path, None, answer=PullView))
    except AgentRefused as refusal:
        if refusal.agent_code != AgentCode.NOT_FOUND:
            raise _failure(node_id, refusal) from refusal
        # A node keeps no pull over a restart of its agent: it gets another request, under another key.
        view = _mutate(node_id, "PUT", path, pull, key=key(turn), answer=PullView)
        turn += 1
    if view.state is PullState.FAILED:
        raise StepFailed(view.reason_code or "pull_failed", view.reason or "The pull failed.", final=True)
    if view.state is PullState.CANCELLED:
        raise StepFailed("cancelled", "The pull was cancelled on the node.", final=True)
    return view, turn


def cancel_pull(node_id: str, pull_id: str, key: str) -> None:
    """Have the node cancel a pull; an unknown one has ended. StepFailed."""
    try:
        _mutate(node_id, "POST", f"images/pull/{pull_id}/cancel", None, key=key, answer=PullView)
    except StepFailed as failure:
        if failure.step_code != AgentCode.NOT_FOUND:
            raise


def offers(node_id: str, feature: Feature) -> bool:
    """Return whether the node's agent reported `feature`."""
    known = node_queries.capabilities(node_queries.get(node_id))
    return known is not None and feature in known.features


def lacking(node_id: str, model: ModelDefinition) -> DownloadSpec | None:
    """Return the weights that the node lacks of a model with a repository; None when there is nothing to download.

    The hub is called only when something is missing. StepFailed, and the errors of `spec_of`.
    """
    source = min(model.sources.all(), key=lambda item: item.position, default=None)
    if source is None or source.kind != ModelSource.HUGGING_FACE or not lacks(node_id, source):
        return None
    return pinned(model, source, "Download it with a token on the page of downloads, then start the model again.")


def lacks(node_id: str, source: ModelSource) -> bool:
    """Return whether the node lacks files of `source`; False for a node that cannot download. StepFailed."""
    if not offers(node_id, Feature.DOWNLOADS):
        return False
    return folder_lacks(readable_folders(node_id), source.folder, source.file, source.projector)


def readable_folders(node_id: str) -> tuple[ModelFolder, ...]:
    """Return the model folders of the node, read now. StepFailed, also when its disk cannot be looked at."""
    listed = folders(node_id)
    if listed.problem:
        # Weights that cannot be looked at are not gone: nothing is downloaded in their place.
        changed = listed.problem_code == AgentCode.MODELS_ROOT_CHANGED
        code = AgentCode.MODELS_ROOT_CHANGED if changed else AgentCode.SOURCE_MISSING
        raise StepFailed(code, f"Node {node_id!r}: {listed.problem}", final=True)
    return listed.folders


def pinned(model: ModelDefinition, source: ModelSource, advice: str) -> DownloadSpec:
    """Return the files of `source` at their present commit on the hub. `advice` ends the error when they are gated.

    StepFailed, and the errors of `spec_of`.
    """
    try:
        return spec_of(request_for(model, source))
    except Gated as error:
        raise StepFailed(error.code, f"{error.detail} {advice}", final=True) from error


def request_for(model: ModelDefinition, source: ModelSource) -> DownloadRequest:
    """Return the request for the files that a model needs of its repository."""
    files = (source.file,) if source.file else ()
    return DownloadRequest(
        source.repository, source.revision, files, source.folder, model.allow_pickle, projector=source.projector
    )


def begin(node_id: str, download_id: str, spec: DownloadSpec, key: str) -> DownloadView:
    """Have the node begin a download; a repeat under `key` does nothing and gets the same response. StepFailed."""
    return _mutate(node_id, "PUT", f"downloads/{download_id}", spec, key=key, answer=DownloadView)


def cancel(node_id: str, download_id: str, key: str) -> None:
    """Have the node cancel a download; an unknown one has ended. StepFailed."""
    try:
        _mutate(node_id, "POST", f"downloads/{download_id}/cancel", None, key=key, answer=DownloadView)
    except StepFailed as failure:
        if failure.step_code != AgentCode.NOT_FOUND:
            raise


def folders(node_id: str) -> FolderList:
    """Return the model folders of the node, read now. StepFailed."""
    try:
        return _reach(node_id, lambda: client.call(node_id, "GET", "folders", None, answer=FolderList))
    except AgentRefused as refusal:
        raise _failure(node_id, refusal) from refusal


def progress(view: DownloadView) -> Mapping[str, Any]:
    """Return the progress of a download, as an operation shows it."""
    words = {
        DownloadState.WAITING: "Waiting for another download of this node.",
        DownloadState.CHECKING: "Checking the files on the node.",
        DownloadState.DOWNLOADING: f"Downloading, {view.files_done} of {view.files_total} files are verified",
        DownloadState.PLACING: "Putting the files in place.",
    }
    text = words.get(view.state, view.state.value)
    if view.state is DownloadState.WAITING and view.text:
        text = view.text
    if view.state is DownloadState.DOWNLOADING:
        speed = view.bytes_per_second
        text += f", {parts.size(round(speed))}/s." if speed is not None else "."
        if view.text:
            text = view.text
    shown: dict[str, Any] = {"text": text, "doneBytes": view.done_bytes, "totalBytes": view.total_bytes}
    if view.waits_until is not None:
        shown["waitsUntil"] = view.waits_until
    if view.bytes_per_second is not None:
        shown["bytesPerSecond"] = round(view.bytes_per_second)
    return shown


def pull_progress(view: PullView) -> Mapping[str, Any]:
    """Return the progress of a pull, as an operation shows it; unknown numbers are left out."""
    numbers = {"doneBytes": view.done_bytes, "totalBytes": view.total_bytes}
    return {"text": view.text or "Pulling the image.", **{name: n for name, n in numbers.items() if n is not None}}


def ended(view: DownloadView) -> StepFailed | None:
    """Return the failure of a download; None when it did not fail."""
    if view.state is DownloadState.FAILED:
        return StepFailed(view.reason_code or "download_failed", view.reason or "The download failed.", final=True)
    if view.state is DownloadState.CANCELLED:
        return StepFailed("cancelled", "The download was cancelled on the node.", final=True)
    return None


def check_node(then: str) -> Callable[[AnyStep], Outcome]:
    """Return the first stage of a transfer to a node: it continues at `then` once the node serves."""

    def run(step: AnyStep) -> Outcome:
        if step.cancel_requested:
            return Cancelled("Cancelled before anything was requested of the node.")
        try:
            node_queries.require_serving(step.node_id)
        except MirbadError as error:
            if not error.retryable:
                raise
            raise StepFailed(error.code, f"{error.detail} Waiting for it.", final=False) from error
        return Go(then, f"Node {step.node_id} is ready.")

    return run


def patient(stage: Run[I, S]) -> Run[I, S]:
    """Return `stage` with a limit for a node that is away: the launch timeout, counted from its last response."""

    def run(step: Step[I, S]) -> Outcome:
        try:
            return stage(step)
        except StepFailed as failed:
            late = clock.now() - last_contact(step) > settings().launch_timeout
            if failed.final or failed.step_code not in _NODE_AWAY or not late:
                raise
            text = "The node continues by itself once it is back; start the operation again to follow it."
            raise StepFailed(failed.step_code, f"{failed.detail} {text}", final=True) from failed

    return run


def _mutate(node_id: str, method: str, path: str, body: WireModel | None, *, key: str, answer: type[M]) -> M:
    try:
        return _reach(node_id, lambda: client.call(node_id, method, path, body, answer=answer, operation_id=key))
    except AgentRefused as refusal:
        raise _failure(node_id, refusal) from refusal


def _failure(node_id: str, refusal: AgentRefused) -> StepFailed:
    passing = refusal.agent_code in _PASSING or refusal.agent_status >= _SERVER_ERROR
    return StepFailed(refusal.agent_code, f"Node {node_id!r}: {refusal.detail}", final=not passing)


def _reach(node_id: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except MirbadError as error:
        if not error.retryable:
            raise
        state = "is offline" if error.code == NodeOffline.code else "cannot be worked with now"
        raise StepFailed(error.code, f"Node {node_id} {state}, waiting. {error.detail}", final=False) from error
