"""Calls to an agent about one engine, with every refusal as a failure of the step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceForgotten, InstanceState, InstanceView, LaunchSpec, StopRequest
from agent.wire.status import NodeStatus
from jobs.base import AnyStep, OperationData, Step
from jobs.errors import StepFailed
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.ids import new_operation_id
from models_app import running
from models_app.models import Placement
from nodes.errors import AgentRefused, NodeOffline
from nodes.link import client

FINAL = frozenset({InstanceState.EXITED, InstanceState.LOST})
# A refusal with one of these may be gone on the next try; all other 4xx stay until something changes.
PASSING = frozenset({AgentCode.START_CONFLICT, AgentCode.NOT_APPROVED, AgentCode.NOT_READY})
# The desired state outlives these: the model is started when its node works again.
KEEPS_DESIRED = frozenset(
    {"node_offline", "node_incompatible", "node_pending_takeover", "master_fenced", "unavailable"}
) | {AgentCode.MODELS_ROOT_CHANGED.value}
SERVER_ERROR = 500
ERROR_TRIES = 4
STOP_GRACE_SECONDS = 10.0
_FORGET_SECONDS = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine in the calls about it: its node, and the id of its instance there, which is its placement's."""

    node_id: str
    instance_id: str


def engine_of(step: AnyStep) -> Engine:
    """Return the engine of the placement that the operation is about."""
    return Engine(step.node_id, step.target_id)


def placement_of(engine: Engine, model_id: str) -> Placement:
    """Return the placement of an engine with its model. StepFailed (final) when the placement is gone."""
    placement = Placement.objects.select_related("model").filter(pk=engine.instance_id).first()
    if placement is None:
        raise StepFailed("not_found", f"Model {model_id!r} is no longer placed on node {engine.node_id!r}.", final=True)
    return placement


def look(engine: Engine) -> InstanceView | None:
    """Return the node's present view of the engine; None when the node does not know it. StepFailed."""
    try:
        return _reach(
            engine.node_id, lambda: client.call(engine.node_id, "GET", _path(engine), None, answer=InstanceView)
        )
    except AgentRefused as refusal:
        if refusal.agent_code == AgentCode.NOT_FOUND:
            return None
        raise as_failure(engine.node_id, refusal) from refusal


def launch(engine: Engine, spec: LaunchSpec, key: str) -> InstanceView:
    """Have the node run `spec`; a repeat under the same `key` does nothing and gets the same response.

    Raises AgentRefused for the caller to weigh, StepFailed when the node cannot be reached.
    """
    return _reach(
        engine.node_id,
        lambda: client.call(engine.node_id, "PUT", _path(engine), spec, answer=InstanceView, operation_id=key),
    )


def stop(engine: Engine, key: str) -> InstanceView | None:
    """Have the node stop the engine, then look; None once nothing of it runs. StepFailed.

    A repeat under the same `key` stops nothing again.
    """
    body, path = StopRequest(grace_seconds=STOP_GRACE_SECONDS), f"{_path(engine)}/stop"
    try:
        _reach(
            engine.node_id,
            lambda: client.call(engine.node_id, "POST", path, body, answer=InstanceView, operation_id=key),
        )
    except AgentRefused as refusal:
        if refusal.agent_code == AgentCode.NOT_FOUND:
            return None
        raise as_failure(engine.node_id, refusal) from refusal
    view = look(engine)
    return None if view is None or view.state in FINAL else view


def forget(engine: Engine) -> bool:
    """Have the node remove record and log of an engine that has ended; False when it is alive after all.

    A repeat does nothing. Raises what `client.call` raises, AgentRefused for any other reason.
    """
    try:
        client.call(
            engine.node_id, "DELETE", _path(engine), answer=InstanceForgotten, operation_id=new_operation_id(),
            timeout_seconds=_FORGET_SECONDS,
        )  # fmt: skip
    except AgentRefused as refusal:
        if refusal.agent_code == AgentCode.INSTANCE_EXISTS:
            return False
        if refusal.agent_code != AgentCode.NOT_FOUND:
            raise
    return True


def refresh(node_id: str) -> NodeStatus:
    """Read the node's whole status and write the observed state of its placements. StepFailed."""
    try:
        status = _reach(node_id, lambda: client.call(node_id, "GET", "status", None, answer=NodeStatus))
    except AgentRefused as refusal:
        raise as_failure(node_id, refusal) from refusal
    running.observe(node_id, status)
    return status


def view_in(status: NodeStatus, engine: Engine) -> InstanceView | None:
    """Return the view of the engine in `status`."""
    return next((view for view in status.instances if view.instance_id == engine.instance_id), None)


class CountsTurns(OperationData):
    """State of a kind that repeats refused calls under another key. `turns` counts refusals by stage."""

    turns: Mapping[str, int] = {}


def turn_of(step: Step[OperationData, CountsTurns], stage: str = "") -> int:
    """Return how many refusals a stage has received, the present one when none is named; part of the key."""
    return step.state.turns.get(stage or step.stage, 0)


def next_turn(step: Step[OperationData, CountsTurns], stage: str = "") -> dict[str, int]:
    """Return the `turns` with one more refusal of a stage, the present one when none is named."""
    return {**step.state.turns, stage or step.stage: turn_of(step, stage) + 1}


def may_pass(refusal: AgentRefused) -> bool:
    """Return whether a later try may succeed in spite of `refusal`."""
    return refusal.agent_status >= SERVER_ERROR or refusal.agent_code in PASSING


def as_failure(node_id: str, refusal: AgentRefused, *, final: bool | None = None) -> StepFailed:
    """Return `refusal` as the failure of a step, in the agent's own words."""
    ends = not may_pass(refusal) if final is None else final
    lines = refusal.fields.get("lastLines", ())
    return StepFailed(refusal.agent_code, f"Node {node_id!r}: {refusal.detail}", final=ends, lines=lines)


def _path(engine: Engine) -> str:
    return f"instances/{engine.instance_id}"


def _reach(node_id: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except MirbadError as error:
        if not error.retryable:
            raise
        state = "is offline" if error.code == NodeOffline.code else "cannot be worked with now"
        raise StepFailed(error.code, f"Node {node_id} {state}, waiting. {error.detail}", final=False) from error
