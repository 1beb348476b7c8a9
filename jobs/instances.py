"""Calls to an agent about the instance of one placement, with every refusal told as a failure of a step."""

from collections.abc import Callable
from typing import TypeVar

from agent.wire.errors import AgentCode
from agent.wire.instances import Forgotten, InstanceState, InstanceView, LaunchSpec, StopRequest
from agent.wire.status import NodeStatus
from jobs.base import Step
from jobs.errors import StepFailed
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.ids import new_operation_id
from models_app import running
from models_app.models import Placement
from nodes.errors import AgentRefused, NodeOffline
from nodes.link import client

FINAL = frozenset({InstanceState.EXITED, InstanceState.LOST})
# A refusal with one of these may be gone on the next try; all other 4xx stand until something changes.
PASSING = frozenset({AgentCode.START_CONFLICT, AgentCode.NOT_APPROVED, AgentCode.NOT_READY})
# The wish to run outlives these: the model is started when its node works again.
KEEPS_DESIRED = frozenset(
    {"node_offline", "node_incompatible", "node_pending_takeover", "master_fenced", "unavailable"}
)
SERVER_ERROR = 500
ERROR_TRIES = 4
STOP_GRACE_SECONDS = 10.0
_FORGET_SECONDS = 5.0

T = TypeVar("T")


def placement_of(step: Step) -> Placement:
    """The placement that the operation is about. StepFailed (final) when it is gone."""
    placement = Placement.objects.select_related("model").filter(pk=step.target_id).first()
    if placement is None:
        raise StepFailed("not_found", f"Model {step.model_id!r} stands on node {step.node_id!r} no more.", final=True)
    return placement


def look(step: Step) -> InstanceView | None:
    """What the node says of the instance now; None when it does not know it."""
    try:
        return _reach(step, lambda: client.call(step.node_id, "GET", _path(step), None, answer=InstanceView))
    except AgentRefused as refusal:
        if refusal.agent_code == AgentCode.NOT_FOUND:
            return None
        raise as_failure(step, refusal) from refusal


def launch(step: Step, spec: LaunchSpec, key: str) -> InstanceView:
    """Ask the node to run `spec`; a repeat under the same `key` does nothing and gets the same answer.

    Raises AgentRefused for the caller to weigh, StepFailed when the node cannot be reached.
    """
    return _reach(
        step,
        lambda: client.call(step.node_id, "PUT", _path(step), spec, answer=InstanceView, operation_id=key),
    )


def stop(step: Step, key: str) -> InstanceView | None:
    """Ask the node to stop the instance; None when it does not know it."""
    body = StopRequest(grace_seconds=STOP_GRACE_SECONDS)
    try:
        return _reach(
            step,
            lambda: client.call(
                step.node_id, "POST", f"{_path(step)}/stop", body, answer=InstanceView, operation_id=key
            ),
        )
    except AgentRefused as refusal:
        if refusal.agent_code == AgentCode.NOT_FOUND:
            return None
        raise as_failure(step, refusal) from refusal


def forget(node_id: str, instance_id: str) -> bool:
    """Have the node remove record and log of an instance that has ended; False when it is alive after all.

    Asked again it does nothing. Raises what `client.call` raises, AgentRefused for any other reason.
    """
    try:
        client.call(
            node_id, "DELETE", f"instances/{instance_id}", answer=Forgotten, operation_id=new_operation_id(),
            timeout_seconds=_FORGET_SECONDS,
        )  # fmt: skip
    except AgentRefused as refusal:
        if refusal.agent_code == AgentCode.INSTANCE_EXISTS:
            return False
        if refusal.agent_code != AgentCode.NOT_FOUND:
            raise
    return True


def refresh(step: Step) -> NodeStatus:
    """Read the node's whole status and write what it says of its placements."""
    try:
        status = _reach(step, lambda: client.call(step.node_id, "GET", "status", None, answer=NodeStatus))
    except AgentRefused as refusal:
        raise as_failure(step, refusal) from refusal
    running.observe(step.node_id, status)
    return status


def view_in(status: NodeStatus, step: Step) -> InstanceView | None:
    """The instance of the step's placement in `status`."""
    return next((view for view in status.instances if view.instance_id == step.target_id), None)


def turn_of(step: Step) -> int:
    """How many refusals this stage has received; they count into the idempotency key."""
    turns = step.state.get("turns", {})
    return int(turns.get(step.stage, 0)) if isinstance(turns, dict) else 0


def next_turn(step: Step) -> dict[str, dict[str, int]]:
    """State that counts one more refusal of this stage."""
    turns = step.state.get("turns", {})
    return {"turns": {**(turns if isinstance(turns, dict) else {}), step.stage: turn_of(step) + 1}}


def may_pass(refusal: AgentRefused) -> bool:
    """Whether a later try may fare better than `refusal`."""
    return refusal.agent_status >= SERVER_ERROR or refusal.agent_code in PASSING


def as_failure(step: Step, refusal: AgentRefused, *, final: bool | None = None) -> StepFailed:
    """`refusal` as the failure of a step, in the agent's own words."""
    ends = not may_pass(refusal) if final is None else final
    lines = refusal.fields.get("lastLines", ())
    return StepFailed(refusal.agent_code, f"Node {step.node_id!r}: {refusal.detail}", final=ends, lines=lines)


def _path(step: Step) -> str:
    return f"instances/{step.target_id}"


def _reach(step: Step, call: Callable[[], T]) -> T:
    try:
        return call()
    except MirbadError as error:
        if not error.retryable:
            raise
        state = "is offline" if error.code == NodeOffline.code else "cannot be worked with now"
        raise StepFailed(error.code, f"Node {step.node_id} {state}, waiting. {error.detail}", final=False) from error
