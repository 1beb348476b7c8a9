"""Carry on a configuration import whose rows are written: downloading → starting → done.

It watches; `jobs.requests.restore` opens a download at a time for each node, and then the starts, one at a time for
each node, as models start with the master. Each model is held until it is done, and released whatever the outcome. A
model that cannot be downloaded or started is left stopped, and the timeline says why; the others go on.
"""

from django.db import transaction

from jobs import ledger
from jobs.base import Audit, Cancelled, Display, Done, Go, Kind, Outcome, Stage, Step, Wait
from jobs.steps import restoring
from jobs.steps.restoring import RestoreInput, RestoreState
from mirbad.kernel.conf import settings
from mirbad.kernel.roles import OWNER
from mirbad.tasking.tasks import TaskSignal
from mirbad.web import parts

NAME = restoring.RESTORE
DOWNLOADING = "downloading"
STARTING = "starting"
OPEN_NEXT = TaskSignal("jobs.restore")
"""Enqueued when the next download or start may be opened; a tick does the same for signals that were lost."""

RestoreStep = Step[RestoreInput, RestoreState]

_SHOWN = 20


def _downloading(step: RestoreStep) -> Outcome:
    if not step.cancel_requested and not restoring.unfetched(step.input, step.state):
        if not step.input.nodes:
            return _done(step)
        return Go(STARTING, "The weights of all models are settled.")
    return _working(step)


def _working(step: RestoreStep) -> Outcome:
    left = restoring.held(step.operation_id)
    if step.cancel_requested:
        return _ending(step, left)
    fetching = restoring.unfetched(step.input, step.state)
    if not left and not fetching:
        return _done(step)
    OPEN_NEXT.enqueue(step.operation_id)
    total = len(step.input.models)
    text = f"{total - len(left)} of {total} models are done."
    if fetching:
        text += f" Downloading on {parts.plural(len(fetching), 'node', 'nodes')}."
    if waits := sorted({**step.state.away, **step.state.start_waits}):
        text += f" Waiting for {', '.join(waits[:_SHOWN])}."
    return Wait(settings().moves_poll_interval.total_seconds(), {"text": text})


def _done(step: RestoreStep) -> Done:
    left = len(step.state.left)
    text = step.input.summary
    if left:
        text += f" {parts.plural(left, 'model is', 'models are')} left stopped; the timeline says why."
    return Done(text, {"leftStopped": list(step.state.left)})


def _ending(step: RestoreStep, left: frozenset[str]) -> Outcome:
    """Cancel the open downloads; what was written stays, and a start that runs goes on by itself."""
    downloads = restoring.open_downloads()
    if downloads:
        for download in downloads:
            with transaction.atomic():
                ledger.ask_to_cancel(download)
        return Wait(settings().moves_poll_interval.total_seconds(), {"text": "Waiting for the downloads to end."})
    going = restoring.starting(left)
    names = sorted(left - going)
    text = "Cancelled. All models, keys and settings that were imported stay."
    if going:
        text += f" Starts that were under way go on: {', '.join(sorted(going)[:_SHOWN])}."
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        text += f" Not downloaded, or not started: {', '.join(names[:_SHOWN])}{more}."
    return Cancelled(text)


def _release(step: RestoreStep, _outcome: str, _code: str) -> None:
    restoring.release_all(step.operation_id)


def _backup(step: RestoreStep) -> str:
    return step.input.backup


def _asked_by(step: RestoreStep, _: str) -> str:
    return f"configuration import; asked by {step.input.asked_by}"


KIND = Kind(
    name=NAME,
    title="Configuration import",
    concurrency_group="placement",
    role=OWNER,
    Input=RestoreInput,
    State=RestoreState,
    stages=(
        Stage(DOWNLOADING, "Download the weights", _downloading),
        Stage(STARTING, "Start the models", _working),
    ),
    audit=Audit("restore", target=_backup, detail=_asked_by),
    on_end=_release,
    display=Display(
        heading="Configuration import of",
        subject=_backup,
        cancelling="What was imported stays; the rest is not started.",
    ),
)
