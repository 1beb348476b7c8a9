"""The first stage of every move: the files and the image of the model are downloaded to the target."""

from agent.wire.capability import Delivery, Feature
from agent.wire.downloads import DownloadState
from agent.wire.images import PullRequest, PullState
from jobs.base import Cancelled, Go, Outcome
from jobs.errors import StepFailed
from jobs.kinds.move.plan import (
    SOURCE_STOPPED,
    STARTING_TARGET,
    STOPPING_SOURCE,
    MoveStep,
    Plan,
    TransferredSet,
    download_id,
    plan_of,
    poll,
)
from jobs.steps import artifacts, starting
from jobs.steps.moving import HANDOVER
from models_app import registry
from models_app.models import ModelDefinition, ModelSource
from nodes.models import Node

# A token may help against these.
_CLOSED = frozenset({"gated", "token_refused", "not_found", "repository_not_found"})
_HINT = "Start the move again with a Hugging Face token that may read it."


def downloading(step: MoveStep) -> Outcome:
    """Download the files that the target lacks, one source of the model after another, then the image."""
    plan = plan_of(step)
    at = step.state.at
    if step.cancel_requested:
        return _cancelled(step, at)
    node = starting.ready_node(step.node_id)
    model = ModelDefinition.objects.prefetch_related("sources").get(pk=step.model_id)
    sources = sorted(model.sources.all(), key=lambda source: source.position)
    if at >= len(sources):
        return _image(step, model, node) or _next(plan)
    spec = step.state.spec
    if spec is None:
        return _begin(step, plan, model, sources[at])
    try:
        # Each set has keys of its own in the node's journal.
        view, changes = artifacts.follow(step, download_id(step.operation_id, at), spec, part=str(at))
    except StepFailed as failure:
        raise _with_advice(failure) from failure
    state = step.state.changed(**changes)
    if view.state is not DownloadState.READY:
        shown = artifacts.progress(view)
        return poll(str(shown["text"]), state, **{name: value for name, value in shown.items() if name != "text"})
    if artifacts.lacks(step.node_id, sources[at]):
        text = f"{spec.repository} was downloaded to node {step.node_id}, but its folder {spec.folder} is not complete."
        raise StepFailed("download_failed", f"{text} Check the folder, then start the move again.", final=True)
    one = TransferredSet(repository=spec.repository, folder=spec.folder, bytes=spec.total_bytes)
    state = state.changed(at=at + 1, spec=None, brought=(*step.state.brought, one))
    return poll(f"{spec.repository} is on node {step.node_id}.", state)


def _begin(step: MoveStep, plan: Plan, model: ModelDefinition, source: ModelSource) -> Outcome:
    at = step.state.at
    spec = None
    if source.kind == ModelSource.HUGGING_FACE and artifacts.lacks(step.node_id, source):
        try:
            spec = plan.specs.get(at) or artifacts.pinned(model, source, _HINT)
        except StepFailed as failure:
            raise _with_advice(failure) from failure
    if spec is None:
        text = f"Node {step.node_id} has the weights." if source.folder else "There is nothing to download."
        return poll(text, step.state.changed(at=at + 1))
    text = f"Node {step.node_id} lacks the weights: downloading {spec.repository}."
    return poll(text, step.state.changed(spec=spec))


def _image(step: MoveStep, model: ModelDefinition, node: Node) -> Outcome | None:
    """Pull the image of the engine; None once it is on the node, or when the launch itself pulls it."""
    if model.delivery != Delivery.CONTAINER or not artifacts.offers(node.pk, Feature.IMAGES):
        return None
    image, digest = registry.image_of(model, node)
    if not image:
        return None
    view, turn = artifacts.pull(
        step.node_id,
        _pull_id(step),
        PullRequest(image=image, digest=digest or None),
        key=lambda turn: step.key(turn, "image"),
        turn=step.state.pulls,
    )
    if view.state is PullState.READY:
        return None
    text = view.text or f"Pulling the image {view.image}."
    bytes_ = {"doneBytes": view.done_bytes, "totalBytes": view.total_bytes}
    shown = {name: value for name, value in bytes_.items() if value is not None}
    return poll(text, step.state.changed(pulls=turn), **shown)


def _pull_id(step: MoveStep) -> str:
    return f"{step.operation_id}-image"


def _cancelled(step: MoveStep, at: int) -> Cancelled:
    if step.state.spec is not None:
        artifacts.cancel(step.node_id, download_id(step.operation_id, at), f"{step.key()}:cancel:{at}")
    if step.state.pulls:
        artifacts.cancel_pull(step.node_id, _pull_id(step), f"{step.key()}:cancel:image")
    return Cancelled("Cancelled before anything was changed; downloaded files stay on the node.")


def _next(plan: Plan) -> Go:
    text = f"Files and image are on node {plan.arrival.node_id}"
    if plan.mode == HANDOVER:
        return Go(STARTING_TARGET, f"{text}.")
    if plan.source is None:
        return Go(SOURCE_STOPPED, f"{text}; the model runs nowhere.")
    return Go(STOPPING_SOURCE, f"{text}; stopping the engine on node {plan.source_node}.")


def _with_advice(failure: StepFailed) -> StepFailed:
    if failure.step_code not in _CLOSED or _HINT in failure.detail:
        return failure
    return StepFailed(failure.step_code, f"{failure.detail} {_HINT}", final=failure.final)
