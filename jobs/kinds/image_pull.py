"""Pull a container image to a node: checking → pulling → done, or cancelling → the end.

The node's Docker Engine does the work; this follows it, and requests it again when the agent was restarted.
"""

from agent.wire.images import PullRequest, PullState
from jobs.base import Audit, Cancelled, Display, Done, Go, Kind, OperationData, Outcome, Stage, Step, Wait
from jobs.steps import artifacts
from jobs.steps.artifacts import TransferState
from mirbad.kernel import clock

NAME = "image-pull"
CHECKING = "checking"
PULLING = "pulling"
CANCELLING = "cancelling"


class ImagePullInput(OperationData):
    """The image by its full reference."""

    reference: str


ImagePullStep = Step[ImagePullInput, TransferState]


def _pulling(step: ImagePullStep) -> Outcome:
    if step.cancel_requested:
        return Go(CANCELLING, "Cancelling the pull.")
    wanted = PullRequest(image=step.input.reference)
    view, turn = artifacts.pull(step.node_id, step.operation_id, wanted, key=step.key, turn=step.state.turn)
    if view.state is PullState.READY:
        return Done(f"{view.image} is on node {step.node_id}.", {"image": view.image})
    state = step.state.changed(turn=turn, answered_at=clock.now())
    return Wait(artifacts.LOOK_SECONDS, artifacts.pull_progress(view), state)


def _cancelling(step: ImagePullStep) -> Outcome:
    artifacts.cancel_pull(step.node_id, step.operation_id, step.key())
    return Cancelled("The pull is cancelled; Docker keeps the complete layers for the next one.")


def _reference(step: ImagePullStep) -> str:
    return step.input.reference


KIND = Kind(
    name=NAME,
    title="Image pull",
    concurrency_group="work",
    Input=ImagePullInput,
    State=TransferState,
    stages=(
        Stage(CHECKING, "Check the node", artifacts.patient(artifacts.check_node(PULLING))),
        Stage(PULLING, "Pull the image", artifacts.patient(_pulling)),
        Stage(CANCELLING, "Cancel the pull", artifacts.patient(_cancelling), aside=True),
    ),
    audit=Audit("download", target=_reference, detail=lambda *_: "container image"),
    display=Display(subject=_reference),
)
