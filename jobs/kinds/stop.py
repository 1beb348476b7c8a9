"""Stop a model: stopping → done. While the node cannot be reached it waits: the request is not lost."""

from datetime import timedelta

from pydantic import Field

from jobs.base import Audit, Cancelled, Done, Kind, Moment, NoData, Outcome, Stage, Step, Wait
from jobs.errors import StepFailed
from jobs.steps import instances
from jobs.steps.instances import CountsTurns, engine_of
from mirbad.kernel import clock
from mirbad.kernel.conf import settings

NAME = "stop"
STOPPING = "stopping"
_LOOK_SECONDS = 0.5


class StopState(CountsTurns):
    """`requested_at` is when the node accepted the stop first."""

    requested_at: Moment | None = Field(default=None, alias="asked")


StopStep = Step[NoData, StopState]


def _stopping(step: StopStep) -> Outcome:
    engine = engine_of(step)
    if step.cancel_requested and step.state.requested_at is None and not _has_ended(step):
        return Cancelled("Cancelled before the node was reached; the engine may still run there.")
    instances.placement_of(engine, step.model_id)
    view = instances.stop(engine, step.key(instances.turn_of(step)))
    if view is None:
        instances.refresh(step.node_id)
        return Done("The engine has stopped.")
    since = step.state.requested_at or clock.now()
    allowed = settings().stop_timeout + timedelta(seconds=instances.STOP_GRACE_SECONDS)
    if clock.now() - since > allowed:
        text = f"The engine did not stop within {allowed.total_seconds():.0f} s; check node {step.node_id!r}."
        raise StepFailed("stop_timeout", text, final=True, lines=view.last_lines)
    return Wait(_LOOK_SECONDS, {"text": "Stopping the engine."}, step.state.changed(requested_at=since))


def _has_ended(step: StopStep) -> bool:
    """Return whether an earlier try of this stage has stopped the engine; False when the node does not answer."""
    try:
        view = instances.look(engine_of(step))
    except StepFailed:
        return False
    return view is None or view.state in instances.FINAL


KIND = Kind(
    name=NAME,
    title="Stop",
    concurrency_group="run",
    Input=NoData,
    State=StopState,
    stages=(Stage(STOPPING, "Stop the engine", _stopping),),
    audit=Audit("model.stop"),
)
