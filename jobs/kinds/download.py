"""Download a set of files to a node: checking → downloading → done, or cancelling → the end.

The node does the work and continues by itself while the master is away; this follows it.
"""

from agent.wire.downloads import DownloadState
from jobs.base import Audit, Cancelled, Display, Done, Go, Kind, OperationData, Outcome, Stage, Step, Wait
from jobs.steps import artifacts
from jobs.steps.artifacts import StoredSpec, TransferState
from mirbad.web import parts

NAME = "download"
CHECKING = "checking"
DOWNLOADING = "downloading"
CANCELLING = "cancelling"


class DownloadInput(OperationData):
    """The set of files, frozen when it was requested."""

    spec: StoredSpec


DownloadStep = Step[DownloadInput, TransferState]


def _downloading(step: DownloadStep) -> Outcome:
    if step.cancel_requested:
        return Go(CANCELLING, "Cancelling the download.")
    view, changes = artifacts.follow(step, step.operation_id, step.input.spec)
    if view.state is DownloadState.READY:
        size = parts.size(view.total_bytes)
        text = f"{view.files_total} files, {size}, are verified and in the folder {view.folder}."
        return Done(text, {"folder": view.folder, "bytes": view.total_bytes, "commit": view.commit})
    return Wait(artifacts.LOOK_SECONDS, artifacts.progress(view), step.state.changed(**changes))


def _cancelling(step: DownloadStep) -> Outcome:
    artifacts.cancel(step.node_id, step.operation_id, step.key())
    return Cancelled("The download is cancelled; what was downloaded is kept for the next one.")


def _repository(step: DownloadStep) -> str:
    return step.input.spec.repository


KIND = Kind(
    name=NAME,
    title="Download",
    concurrency_group="work",
    Input=DownloadInput,
    State=TransferState,
    stages=(
        Stage(CHECKING, "Check the node", artifacts.patient(artifacts.check_node(DOWNLOADING))),
        Stage(DOWNLOADING, "Download the files", artifacts.patient(_downloading)),
        Stage(CANCELLING, "Cancel the download", artifacts.patient(_cancelling), aside=True),
    ),
    audit=Audit("download", target=_repository),
    display=Display(heading="Download of", subject=_repository),
)
