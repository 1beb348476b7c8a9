"""What a start of an engine takes, whoever asks for it: checks, the key of the order, refusals, progress, its end."""

import hashlib
from datetime import timedelta

from agent.wire.capability import Capabilities
from agent.wire.instances import InstanceState, InstanceView, LaunchSpec
from jobs import instances
from jobs.base import Step, Wait
from jobs.errors import StepFailed
from mirbad.kernel import clock
from mirbad.kernel.errors import MirbadError
from models_app.models import Placement
from models_app.placement import apply, feasible
from nodes import queries as node_queries
from nodes.errors import AgentRefused
from nodes.models import Node


def ready_node(step: Step, *, draining: bool = False) -> Node:
    """The step's node, which serves and takes work; with `draining`, one that takes none will do.

    StepFailed, not final while it may come back.
    """
    require = node_queries.require_serving if draining else node_queries.require_placeable
    try:
        return require(step.node_id)
    except MirbadError as error:
        if not error.retryable:
            raise
        raise StepFailed(error.code, f"{error.detail} Waiting for it.", final=False) from error


def check_capabilities(step: Step, placement: Placement, node: Node) -> None:
    """Pass when the node can run the model on these GPUs, as far as it has said. StepFailed (final)."""
    capabilities: Capabilities | None = apply.facts_of(node).capabilities
    if capabilities is None:
        return
    model = placement.model
    if problem := feasible.runtime_problem(model.runtime, model.delivery, node.pk, capabilities):
        raise StepFailed(problem.code, problem.message, final=True)
    if missing := feasible.missing_gpus(placement.gpu_uuids, capabilities):
        text = f"GPU {', '.join(missing)} is not on node {node.pk!r} any more; choose the model's GPUs again."
        raise StepFailed("gpu_missing", text, final=True)


def key_of(step: Step, spec: LaunchSpec) -> str:
    """The idempotency key of an order to run `spec` in this stage.

    The agent refuses a known key with another body, so a definition that was saved between two tries gets its own.
    Secrets stay out: the hash of the configuration, which is among the rest, changes with them.
    """
    parts = spec.model_dump_json(exclude={"secret_env"})
    return f"{step.key(instances.turn_of(step))}:{hashlib.sha256(parts.encode()).hexdigest()[:12]}"


def refused(
    step: Step, refusal: AgentRefused, allowed: timedelta, *, tries: int | None = instances.ERROR_TRIES
) -> Wait:
    """When to try again what the agent refused. StepFailed (final) when that is no use.

    A start beside others is tried for as long as `allowed`, an error of the agent `tries` times at most.
    """
    if not instances.may_pass(refusal) or late(step, allowed):
        raise instances.as_failure(step, refusal, final=True)
    server_error = refusal.agent_status >= instances.SERVER_ERROR
    if server_error and tries is not None and instances.turn_of(step) + 1 >= tries:
        raise instances.as_failure(step, refusal, final=True)
    # The agent keeps its answer under the key of this try, so the next one needs another key, written down first.
    return Wait(min(1.0 + instances.turn_of(step), 5.0), {"text": refusal.detail}, instances.next_turn(step))


def died(view: InstanceView) -> StepFailed:
    """Why an engine that ended never was ready."""
    if view.stop_requested:
        return StepFailed("stopped_meanwhile", "The engine was stopped while it started.", final=True)
    reason = view.reason
    if not reason:
        code = f" with exit code {view.exit_code}" if view.exit_code is not None else ""
        reason = f"The engine ended{code} before it was ready."
    return StepFailed(view.reason_code or "engine_exited", reason, final=True, lines=view.last_lines)


def progress(view: InstanceView) -> dict[str, object]:
    """How far a start is, as an operation shows it."""
    words = {
        InstanceState.PREPARING: "Preparing the engine.",
        InstanceState.STARTING: "Starting the engine.",
        InstanceState.LOADING: "Loading the weights.",
        InstanceState.UNHEALTHY: "The engine runs but does not answer as it should.",
        InstanceState.STOPPING: "The engine is ending.",
    }
    shown: dict[str, object] = {"text": words.get(view.state, view.state.value)}
    if view.progress is not None:
        shown["text"] = view.progress.text or shown["text"]
        shown["doneBytes"] = view.progress.done_bytes
        shown["totalBytes"] = view.progress.total_bytes
    return {name: value for name, value in shown.items() if value is not None}


def late(step: Step, allowed: timedelta) -> bool:
    """Whether the stage lasts longer than `allowed`."""
    return clock.now() - step.stage_since > allowed
