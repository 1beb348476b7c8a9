"""Bring a set of files to a node: checking → downloading → done, or cancelling → the end.

The node does the work and goes on by itself while the master is away; this follows it.
"""

from agent.wire.downloads import DownloadSpec, DownloadState
from audit import log as audit_log
from jobs import artifacts
from jobs.base import Cancelled, Done, Go, Kind, Outcome, Step, Wait
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel.actor import Actor
from mirbad.web import parts

NAME = "download"
CHECKING = "checking"
DOWNLOADING = "downloading"
CANCELLING = "cancelling"


def _downloading(step: Step) -> Outcome:
    if step.cancel_requested:
        return Go(CANCELLING, "Ending the download.")
    view, state = artifacts.follow(step, step.operation_id, DownloadSpec.model_validate(step.input["spec"]))
    if view.state is DownloadState.READY:
        took = parts.size(view.total_bytes)
        text = f"{view.files_total} files, {took}, are verified and in the folder {view.folder}."
        return Done(text, {"folder": view.folder, "bytes": view.total_bytes, "commit": view.commit})
    return Wait(artifacts.LOOK_SECONDS, artifacts.progress(view), state)


def _cancelling(step: Step) -> Outcome:
    artifacts.cancel(step, step.operation_id, step.key())
    return Cancelled("The download has ended; what had come is kept for the next one.")


def _ended(step: Step, outcome: str, code: str) -> None:
    results = {SUCCEEDED: "succeeded", FAILED: "failed", CANCELLED: "failed"}
    audit_log.record(
        "download",
        Actor(step.actor),
        node_id=step.node_id,
        operation_id=step.operation_id,
        target=str(step.input.get("spec", {}).get("repository", "")),
        result=results[outcome],
        error_code=code or ("cancelled" if outcome == CANCELLED else ""),
    )


KIND = Kind(
    name=NAME,
    lane="work",
    stages={
        CHECKING: artifacts.patient(artifacts.check_node(DOWNLOADING)),
        DOWNLOADING: artifacts.patient(_downloading),
        CANCELLING: artifacts.patient(_cancelling),
    },
    ended=_ended,
)
