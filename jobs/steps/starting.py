"""Parts of every start of an engine: checks, the key of the request, refusals, progress, its end."""

import hashlib
from datetime import timedelta

from agent.wire.capability import Capabilities
from agent.wire.instances import InstanceState, InstanceView, LaunchSpec
from jobs.base import AnyStep, OperationData, Step, Wait
from jobs.errors import StepFailed
from jobs.steps import instances
from jobs.steps.instances import CountsTurns
from mirbad.kernel import clock
from mirbad.kernel.errors import MirbadError
from models_app import registry
from models_app.models import Placement
from models_app.placement import apply, feasible, fit_preview
from nodes import queries as node_queries
from nodes.errors import AgentRefused
from nodes.models import Node


def ready_node(node_id: str, *, draining: bool = False) -> Node:
    """Return a node that serves and takes new models; with `draining`, one that takes none is accepted, too.

    StepFailed, not final while the node may return.
    """
    require = node_queries.require_serving if draining else node_queries.require_placeable
    try:
        return require(node_id)
    except MirbadError as error:
        if not error.retryable:
            raise
        raise StepFailed(error.code, f"{error.detail} Waiting for it.", final=False) from error


def check_capabilities(placement: Placement, node: Node) -> None:
    """Pass when the node can run the model on these GPUs, by its last report. StepFailed (final)."""
    capabilities: Capabilities | None = apply.facts_of(node).capabilities
    if capabilities is None:
        return
    model = placement.model
    if problem := feasible.runtime_problem(model.runtime, model.delivery, node.pk, capabilities):
        raise StepFailed(problem.code, problem.message, final=True)
    if missing := feasible.missing_gpus(placement.gpu_uuids, capabilities):
        text = f"GPU {', '.join(missing)} is not on node {node.pk!r} any more; choose the model's GPUs again."
        raise StepFailed("gpu_missing", text, final=True)
    if unusable := feasible.unusable_gpus(placement.gpu_uuids, capabilities):
        raise StepFailed("gpu_unusable", f"Node {node.pk!r}: {' '.join(unusable.values())}", final=True)


def spec_for(placement: Placement, node: Node, *, force: bool = False) -> LaunchSpec:
    """Return the launch spec with the best estimate of its memory, which counts as promised from here on.

    Raises as `registry.launch_spec`.
    """
    spec = registry.launch_spec(placement, node, force=force, ask=True)
    apply.note_promise(placement, fit_preview.promise_of(spec.estimate, placement.gpu_uuids, node))
    return spec


def key_of(step: Step[OperationData, CountsTurns], spec: LaunchSpec) -> str:
    """Return the idempotency key of a request to run `spec` in this stage.

    The agent refuses a known key with another body, so a definition that was saved between two tries gets its own.
    Secrets stay out: the hash of the configuration, which is among the rest, changes with them.
    """
    parts = spec.model_dump_json(exclude={"secret_env"})
    return f"{step.key(instances.turn_of(step))}:{hashlib.sha256(parts.encode()).hexdigest()[:12]}"


def refused(
    step: Step[OperationData, CountsTurns],
    node_id: str,
    refusal: AgentRefused,
    allowed: timedelta,
    *,
    tries: int | None = instances.ERROR_TRIES,
) -> Wait:
    """Return the pause until the next try of a start that the agent refused. StepFailed (final) when there is none.

    A start beside others is tried for as long as `allowed`, an error of the agent `tries` times at most.
    """
    if not instances.may_pass(refusal) or late(step, allowed):
        raise instances.as_failure(node_id, refusal, final=True)
    server_error = refusal.agent_status >= instances.SERVER_ERROR
    if server_error and tries is not None and instances.turn_of(step) + 1 >= tries:
        raise instances.as_failure(node_id, refusal, final=True)
    # The agent keeps its response under the key of this try, so the next one needs another key, written down first.
    pause = min(1.0 + instances.turn_of(step), 5.0)
    return Wait(pause, {"text": refusal.detail}, step.state.changed(turns=instances.next_turn(step)))


STOPPED_MEANWHILE = "stopped_meanwhile"


def died(view: InstanceView) -> StepFailed:
    """Return the failure of a start after its engine ended before it was ready."""
    if view.stop_requested:
        return StepFailed(STOPPED_MEANWHILE, "The engine was stopped while it started.", final=True)
    reason = view.reason
    if not reason:
        code = f" with exit code {view.exit_code}" if view.exit_code is not None else ""
        reason = f"The engine ended{code} before it was ready."
    return StepFailed(view.reason_code or "engine_exited", reason, final=True, lines=view.last_lines)


def progress(view: InstanceView) -> dict[str, object]:
    """Return the progress of a start, as an operation shows it."""
    words = {
        InstanceState.PREPARING: "Preparing the engine.",
        InstanceState.STARTING: "Starting the engine.",
        InstanceState.LOADING: "Loading the weights.",
        InstanceState.UNHEALTHY: "The engine runs but fails its health check.",
        InstanceState.STOPPING: "The engine is stopping.",
    }
    shown: dict[str, object] = {"text": words.get(view.state, view.state.value)}
    if view.progress is not None:
        shown["text"] = view.progress.text or shown["text"]
        shown["doneBytes"] = view.progress.done_bytes
        shown["totalBytes"] = view.progress.total_bytes
    return {name: value for name, value in shown.items() if value is not None}


def late(step: AnyStep, allowed: timedelta) -> bool:
    """Return whether the stage lasts longer than `allowed`."""
    return clock.now() - step.stage_since > allowed
