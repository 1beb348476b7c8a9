"""The first stage of every move: all that the model is made of comes to the target."""

from dataclasses import replace

from agent.wire.capability import Delivery, Feature
from agent.wire.downloads import DownloadSpec, DownloadState
from agent.wire.images import PullRequest, PullState
from jobs import artifacts, starting
from jobs.base import Cancelled, Go, Outcome, Step
from jobs.errors import StepFailed
from jobs.kinds.move.plan import (
    HANDOVER,
    SOURCE_STOPPED,
    STARTING_TARGET,
    STOPPING_SOURCE,
    Plan,
    at_target,
    download_id,
    plan_of,
    poll,
)
from models_app import registry
from models_app.models import ModelDefinition, ModelSource
from nodes.models import Node

# What a token may cure.
_CLOSED = frozenset({"gated", "token_refused", "not_found", "repository_not_found"})
_HINT = "Start the move again with a Hugging Face token that may read it."


def downloading(step: Step) -> Outcome:
    """Every source of the model is complete on the target."""
    plan = plan_of(step)
    at = int(step.state.get("at", 0))
    if step.cancel_requested:
        return _ended(step, at)
    node = starting.ready_node(at_target(step, plan))
    model = ModelDefinition.objects.prefetch_related("sources").get(pk=step.model_id)
    sources = sorted(model.sources.all(), key=lambda source: source.position)
    if at >= len(sources):
        return _image(step, model, node) or _next(plan)
    if not step.state.get("spec"):
        return _begin(step, plan, model, sources[at])
    spec = DownloadSpec.model_validate(step.state["spec"])
    # Each set has keys of its own in the node's journal.
    own = replace(step, stage=f"{step.stage}-{at}")
    try:
        view, state = artifacts.follow(own, download_id(step.operation_id, at), spec)
    except StepFailed as failure:
        raise _told(failure) from failure
    if view.state is not DownloadState.READY:
        shown = artifacts.progress(view)
        return poll(str(shown["text"]), state, **{name: value for name, value in shown.items() if name != "text"})
    if artifacts.lacks(step, sources[at]):
        text = f"{spec.repository} came to node {step.node_id} and yet its folder {spec.folder} is not complete."
        raise StepFailed("download_failed", f"{text} Look at the folder there, then start the move again.", final=True)
    one = {"repository": spec.repository, "folder": spec.folder, "bytes": spec.total_bytes}
    brought = [*step.state.get("brought", ()), one]
    return poll(
        f"{spec.repository} is on node {step.node_id}.", {**state, "at": at + 1, "spec": None, "brought": brought}
    )


def _begin(step: Step, plan: Plan, model: ModelDefinition, source: ModelSource) -> Outcome:
    at = int(step.state.get("at", 0))
    spec = None
    if source.kind == ModelSource.HUGGING_FACE and artifacts.lacks(step, source):
        try:
            spec = plan.specs.get(at) or artifacts.pinned(model, source, _HINT)
        except StepFailed as failure:
            raise _told(failure) from failure
    if spec is None:
        text = f"Node {step.node_id} has the weights." if source.folder else "There is nothing to bring."
        return poll(text, {"at": at + 1})
    return poll(f"Node {step.node_id} lacks the weights: downloading {spec.repository}.", {"spec": spec.to_wire()})


def _image(step: Step, model: ModelDefinition, node: Node) -> Outcome | None:
    """The image that the engine runs in comes, too; None once it is there or the launch itself brings it."""
    if model.delivery != Delivery.CONTAINER or not artifacts.offers(node.pk, Feature.IMAGES):
        return None
    image, digest = registry.image_of(model, node)
    if not image:
        return None
    pull = replace(step, stage=f"{step.stage}-image", state={**step.state, "asked": step.state.get("pulls", 0)})
    view, state = artifacts.pull(pull, _pull_id(step), PullRequest(image=image, digest=digest or None))
    if view.state is PullState.READY:
        return None
    text = view.text or f"Pulling the image {view.image}."
    bytes_ = {"doneBytes": view.done_bytes, "totalBytes": view.total_bytes}
    shown = {name: value for name, value in bytes_.items() if value is not None}
    return poll(text, {"pulls": state["asked"]}, **shown)


def _pull_id(step: Step) -> str:
    return f"{step.operation_id}-image"


def _ended(step: Step, at: int) -> Cancelled:
    if step.state.get("spec"):
        artifacts.cancel(step, download_id(step.operation_id, at), f"{step.key()}:cancel:{at}")
    if step.state.get("pulls"):
        artifacts.cancel_pull(step, _pull_id(step), f"{step.key()}:cancel:image")
    return Cancelled("Ended before anything was changed; what had come to the node is kept.")


def _next(plan: Plan) -> Go:
    node = plan.arrival.node_id
    if plan.mode == HANDOVER:
        return Go(STARTING_TARGET, f"Node {node} has all that the model is made of.")
    if plan.source is None:
        return Go(SOURCE_STOPPED, f"Node {node} has all that the model is made of; it runs nowhere.")
    return Go(STOPPING_SOURCE, f"Node {node} has all that the model is made of; stopping it on {plan.source_node}.")


def _told(failure: StepFailed) -> StepFailed:
    if failure.step_code not in _CLOSED or _HINT in failure.detail:
        return failure
    return StepFailed(failure.step_code, f"{failure.detail} {_HINT}", final=failure.final)
