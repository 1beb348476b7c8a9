"""Calls to an agent about downloads, with every refusal told as a failure of a step."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from agent.wire.base import WireModel
from agent.wire.capability import Feature
from agent.wire.downloads import DownloadSpec, DownloadState, DownloadView, FolderList
from agent.wire.errors import AgentCode
from agent.wire.images import PullRequest, PullState, PullView
from jobs.base import Cancelled, Go, Outcome, Stage, Step
from jobs.errors import StepFailed
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from mirbad.web import parts
from models_app.artifacts.errors import Gated
from models_app.artifacts.folders import lacks as folder_lacks
from models_app.artifacts.wishes import Wish, spec_of
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


def look(step: Step, download_id: str) -> DownloadView | None:
    """What the node says of the download; None when it does not know it. StepFailed."""
    try:
        return _reach(
            step, lambda: client.call(step.node_id, "GET", f"downloads/{download_id}", None, answer=DownloadView)
        )
    except AgentRefused as refusal:
        if refusal.agent_code == AgentCode.NOT_FOUND:
            return None
        raise _failure(step, refusal) from refusal


def follow(step: Step, download_id: str, spec: DownloadSpec) -> tuple[DownloadView, dict[str, Any]]:
    """Have the node bring `spec`; the view now, and state to keep. StepFailed when it ended badly."""
    view, turn = look(step, download_id), int(step.state.get("asked", 0))
    if view is None:
        # A node that lost its records is asked anew, under a key of its own: the journal may still hold the old answer.
        view = begin(step, download_id, spec, step.key(turn))
        turn += 1
    if failure := ended(view):
        raise failure
    return view, {"asked": turn, "seen": clock.now().isoformat()}


def last_contact(step: Step) -> datetime:
    """When the stage began, or the node was last heard of in it, as `seen` tells."""
    heard = step.state.get("seen")
    return max(step.stage_since, datetime.fromisoformat(str(heard))) if heard else step.stage_since


def pull(step: Step, pull_id: str, wanted: PullRequest) -> tuple[PullView, dict[str, Any]]:
    """Have the node bring an image, unless it has it; the view now, and state to keep. StepFailed."""
    path, turn = f"images/pull/{pull_id}", int(step.state.get("asked", 0))
    try:
        view = _reach(step, lambda: client.call(step.node_id, "GET", path, None, answer=PullView))
    except AgentRefused as refusal:
        if refusal.agent_code != AgentCode.NOT_FOUND:
            raise _failure(step, refusal) from refusal
        # A node keeps no pull over a restart of its agent: asked anew, under a key of its own.
        key, turn = step.key(turn), turn + 1
        view = _mutate(step, "PUT", path, wanted, key=key, answer=PullView)
    if view.state is PullState.FAILED:
        raise StepFailed(view.reason_code or "pull_failed", view.reason or "The pull failed.", final=True)
    if view.state is PullState.CANCELLED:
        raise StepFailed("cancelled", "The pull was cancelled on the node.", final=True)
    return view, {"asked": turn}


def cancel_pull(step: Step, pull_id: str, key: str) -> None:
    """Have the node end a pull; one that it does not know has ended. StepFailed."""
    try:
        _mutate(step, "POST", f"images/pull/{pull_id}/cancel", None, key=key, answer=PullView)
    except StepFailed as failure:
        if failure.step_code != AgentCode.NOT_FOUND:
            raise


def offers(node_id: str, feature: Feature) -> bool:
    """Whether the node's agent said that it can do `feature`."""
    known = node_queries.capabilities(node_queries.get(node_id))
    return known is not None and feature in known.features


def lacking(step: Step, model: ModelDefinition) -> DownloadSpec | None:
    """What the node lacks of the weights of a model that names a repository; None when nothing is to be fetched.

    Only when something is missing is the hub asked. StepFailed, and what `spec_of` raises.
    """
    source = min(model.sources.all(), key=lambda item: item.position, default=None)
    if source is None or source.kind != ModelSource.HUGGING_FACE or not lacks(step, source):
        return None
    return pinned(model, source, "Download it with a token on the page of downloads, then start the model again.")


def lacks(step: Step, source: ModelSource) -> bool:
    """Whether the node lacks what `source` names; False for one whose agent brings nothing. StepFailed."""
    return offers(step.node_id, Feature.DOWNLOADS) and folder_lacks(folders(step).folders, source.folder, source.file)


def pinned(model: ModelDefinition, source: ModelSource, hint: str) -> DownloadSpec:
    """The set that `source` names, as the hub has it now. `hint` is what to do when it is not open.

    StepFailed, and what `spec_of` raises.
    """
    try:
        return spec_of(wish_for(model, source))
    except Gated as error:
        raise StepFailed(error.code, f"{error.detail} {hint}", final=True) from error


def wish_for(model: ModelDefinition, source: ModelSource) -> Wish:
    """What of its repository a model needs."""
    files = (source.file,) if source.file else ()
    return Wish(source.repository, source.revision, files, source.folder, model.allow_pickle)


def begin(step: Step, download_id: str, spec: DownloadSpec, key: str) -> DownloadView:
    """Ask the node for a set; a repeat under the same `key` does nothing and gets the same answer. StepFailed."""
    path = f"downloads/{download_id}"
    try:
        return _reach(step, lambda: client.call(step.node_id, "PUT", path, spec, answer=DownloadView, operation_id=key))
    except AgentRefused as refusal:
        raise _failure(step, refusal) from refusal


def cancel(step: Step, download_id: str, key: str) -> None:
    """Have the node end a download; one that it does not know has ended. StepFailed."""
    path = f"downloads/{download_id}/cancel"
    try:
        _reach(step, lambda: client.call(step.node_id, "POST", path, None, answer=DownloadView, operation_id=key))
    except AgentRefused as refusal:
        if refusal.agent_code != AgentCode.NOT_FOUND:
            raise _failure(step, refusal) from refusal


def folders(step: Step) -> FolderList:
    """The model folders of the node, read now. StepFailed."""
    try:
        return _reach(step, lambda: client.call(step.node_id, "GET", "folders", None, answer=FolderList))
    except AgentRefused as refusal:
        raise _failure(step, refusal) from refusal


def progress(view: DownloadView) -> Mapping[str, Any]:
    """How far a download is, as an operation shows it."""
    words = {
        DownloadState.WAITING: "Waiting for another download of this node.",
        DownloadState.CHECKING: "Looking at what the node has already.",
        DownloadState.DOWNLOADING: f"Downloading, {view.files_done} of {view.files_total} files are verified",
        DownloadState.PLACING: "Putting the files in place.",
    }
    text = words.get(view.state, view.state.value)
    if view.state is DownloadState.DOWNLOADING:
        speed = view.bytes_per_second
        text += f", {parts.size(round(speed))}/s." if speed is not None else "."
        if view.text:
            text = view.text
    shown: dict[str, Any] = {"text": text, "doneBytes": view.done_bytes, "totalBytes": view.total_bytes}
    if view.bytes_per_second is not None:
        shown["bytesPerSecond"] = round(view.bytes_per_second)
    return shown


def pull_progress(view: PullView) -> Mapping[str, Any]:
    """How far a pull is, as an operation shows it; what is not known is left out."""
    numbers = {"doneBytes": view.done_bytes, "totalBytes": view.total_bytes}
    return {"text": view.text or "The image comes.", **{name: n for name, n in numbers.items() if n is not None}}


def ended(view: DownloadView) -> StepFailed | None:
    """Why the download failed; None when it did not."""
    if view.state is DownloadState.FAILED:
        return StepFailed(view.reason_code or "download_failed", view.reason or "The download failed.", final=True)
    if view.state is DownloadState.CANCELLED:
        return StepFailed("cancelled", "The download was cancelled on the node.", final=True)
    return None


def _mutate(step: Step, method: str, path: str, body: WireModel | None, *, key: str, answer: type[M]) -> M:
    try:
        return _reach(step, lambda: client.call(step.node_id, method, path, body, answer=answer, operation_id=key))
    except AgentRefused as refusal:
        raise _failure(step, refusal) from refusal


def check_node(then: str) -> Stage:
    """The first stage of what a node is asked to bring: goes on to `then` once the node serves."""

    def run(step: Step) -> Outcome:
        if step.cancel_requested:
            return Cancelled("Ended before anything was asked of the node.")
        try:
            node_queries.require_serving(step.node_id)
        except MirbadError as error:
            if not error.retryable:
                raise
            raise StepFailed(error.code, f"{error.detail} Waiting for it.", final=False) from error
        return Go(then, f"Node {step.node_id} is asked for it.")

    return run


def patient(stage: Stage) -> Stage:
    """A node that cannot be worked with is waited for, but not for ever: counted from the last look that succeeded."""

    def run(step: Step) -> Outcome:
        try:
            return stage(step)
        except StepFailed as failed:
            late = clock.now() - last_contact(step) > settings().launch_timeout
            if failed.final or failed.step_code not in _NODE_AWAY or not late:
                raise
            text = "Once it is back it goes on by itself; start it again to follow it."
            raise StepFailed(failed.step_code, f"{failed.detail} {text}", final=True) from failed

    return run


def _failure(step: Step, refusal: AgentRefused) -> StepFailed:
    passing = refusal.agent_code in _PASSING or refusal.agent_status >= _SERVER_ERROR
    return StepFailed(refusal.agent_code, f"Node {step.node_id!r}: {refusal.detail}", final=not passing)


def _reach(step: Step, call: Callable[[], T]) -> T:
    try:
        return call()
    except MirbadError as error:
        if not error.retryable:
            raise
        state = "is offline" if error.code == NodeOffline.code else "cannot be worked with now"
        raise StepFailed(error.code, f"Node {step.node_id} {state}, waiting. {error.detail}", final=False) from error
