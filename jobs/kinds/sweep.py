"""Stop an orphan: stopping → done.

Before it asks for the stop, it checks again that nobody needs the engine. Nothing else on the node is touched.
"""

from pydantic import Field

from agent.wire.instances import LIVE_STATES
from jobs.base import Audit, Cancelled, Done, Kind, Moment, NoData, Outcome, Stage, Step, Wait
from jobs.errors import StepFailed
from jobs.states import CANCELLED
from jobs.steps import instances
from jobs.steps.instances import CountsTurns, engine_of
from jobs.steps.orphans import OrphanEngine, may_sweep, why_kept
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from models_app import orphans

NAME = "sweep"
STOPPING = "stopping"


class SweepState(CountsTurns):
    """`requested_at` is when the stop was decided."""

    requested_at: Moment | None = Field(default=None, alias="asked")


SweepStep = Step[NoData, SweepState]


def _stopping(step: SweepStep) -> Outcome:
    if step.state.requested_at is None:
        return _check_first(step)
    view = instances.stop(engine_of(step), step.key(instances.turn_of(step)))
    if view is None:
        orphans.forget(step.node_id, step.target_id)
        return Done("The orphan has stopped.")
    allowed = settings().moves_stop_timeout
    if clock.now() - step.state.requested_at > allowed:
        text = f"The engine did not stop within {allowed.total_seconds():.0f} s; check node {step.node_id!r}."
        raise StepFailed("stop_timeout", text, final=True, lines=view.last_lines)
    return Wait(settings().moves_poll_interval.total_seconds(), {"text": "Stopping the engine."})


def _check_first(step: SweepStep) -> Outcome:
    if step.cancel_requested:
        return Cancelled("Cancelled; the engine keeps running.")
    view = instances.look(engine_of(step))
    if view is None or view.state not in LIVE_STATES:
        orphans.forget(step.node_id, step.target_id)
        return Cancelled("It had ended already.")
    if not may_sweep():
        return Cancelled("Kept: the fleet has one machine only.")
    if why := why_kept(OrphanEngine(step.node_id, step.target_id, view.model_id, view.operation_id)):
        return Cancelled(f"Kept: {why}.")
    # Written down before the stop is requested, so that the audit log has a stop whatever happens next.
    return Wait(0.0, {"text": "Stopping the engine."}, step.state.changed(requested_at=clock.now()))


def _was_stopped(step: SweepStep, outcome: str) -> bool:
    return outcome != CANCELLED or step.state.requested_at is not None


KIND = Kind(
    name=NAME,
    title="Clean up",
    concurrency_group="run",
    Input=NoData,
    State=SweepState,
    stages=(Stage(STOPPING, "Stop the engine", _stopping),),
    audit=Audit(
        "model.stop",
        target=lambda step: step.target_id,
        detail=lambda *_: "An orphan: the model is not placed on this node.",
        applies=_was_stopped,
    ),
)
