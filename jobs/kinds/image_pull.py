"""Bring a container image to a node: checking → pulling → done, or cancelling → the end.

The node's Docker Engine does the work; this follows it, and asks again when its agent was restarted.
"""

from agent.wire.images import PullRequest, PullState
from audit import log as audit_log
from jobs import artifacts
from jobs.base import Cancelled, Done, Go, Kind, Outcome, Step, Wait
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor

NAME = "image-pull"
CHECKING = "checking"
PULLING = "pulling"
CANCELLING = "cancelling"


def _pulling(step: Step) -> Outcome:
    if step.cancel_requested:
        return Go(CANCELLING, "Ending the pull.")
    view, state = artifacts.pull(step, step.operation_id, PullRequest(image=str(step.input["reference"])))
    if view.state is PullState.READY:
        return Done(f"{view.image} is on node {step.node_id}.", {"image": view.image})
    return Wait(artifacts.LOOK_SECONDS, artifacts.pull_progress(view), state | {"seen": clock.now().isoformat()})


def _cancelling(step: Step) -> Outcome:
    artifacts.cancel_pull(step, step.operation_id, step.key())
    return Cancelled("The pull has ended; layers that had come whole are kept by Docker for the next one.")


def _ended(step: Step, outcome: str, code: str) -> None:
    results = {SUCCEEDED: "succeeded", FAILED: "failed", CANCELLED: "failed"}
    audit_log.record(
        "download",
        Actor(step.actor),
        node_id=step.node_id,
        operation_id=step.operation_id,
        target=str(step.input.get("reference", "")),
        result=results[outcome],
        error_code=code or ("cancelled" if outcome == CANCELLED else ""),
        detail="container image",
    )


KIND = Kind(
    name=NAME,
    lane="work",
    stages={
        CHECKING: artifacts.patient(artifacts.check_node(PULLING)),
        PULLING: artifacts.patient(_pulling),
        CANCELLING: artifacts.patient(_cancelling),
    },
    ended=_ended,
)
