"""Stop an engine that is left over on a node on which its model has no place: stopping → done.

It looks again, before it asks, whether the engine is wanted after all. Nothing else on the node is touched.
"""

from datetime import datetime

from agent.wire.instances import LIVE_STATES
from audit import log as audit_log
from jobs import instances
from jobs.base import Cancelled, Done, Kind, Outcome, Step, Wait
from jobs.errors import StepFailed
from jobs.leftovers import Leftover, may_sweep, why_left
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from models_app import strays

NAME = "sweep"
STOPPING = "stopping"


def _stopping(step: Step) -> Outcome:
    if "asked" not in step.state:
        return _look_first(step)
    asked = instances.stop(step, step.key(instances.turn_of(step)))
    view = instances.look(step) if asked is not None else None
    if view is None or view.state in instances.FINAL:
        strays.forget(step.node_id, step.target_id)
        return Done("The engine that was left over has stopped.")
    allowed = settings().moves_stop_timeout
    if clock.now() - datetime.fromisoformat(str(step.state["asked"])) > allowed:
        text = f"The engine did not end within {allowed.total_seconds():.0f} s; look at node {step.node_id!r}."
        raise StepFailed("stop_timeout", text, final=True, lines=view.last_lines)
    return Wait(settings().moves_poll_interval.total_seconds(), {"text": "Stopping the engine."})


def _look_first(step: Step) -> Outcome:
    if step.cancel_requested:
        return Cancelled("Left as it is.")
    view = instances.look(step)
    if view is None or view.state not in LIVE_STATES:
        strays.forget(step.node_id, step.target_id)
        return Cancelled("It had ended already.")
    if not may_sweep():
        return Cancelled("Left alone: the fleet has one machine only.")
    if why := why_left(Leftover(step.node_id, step.target_id, view.model_id, view.operation_id)):
        return Cancelled(f"Left alone: {why}.")
    # Written down before the engine is asked, so that the audit tells of a stop whatever happens next.
    return Wait(0.0, {"text": "Stopping the engine."}, {"asked": clock.now().isoformat()})


def _ended(step: Step, outcome: str, code: str) -> None:
    if outcome == CANCELLED and "asked" not in step.state:
        return
    results = {SUCCEEDED: "succeeded", FAILED: "failed", CANCELLED: "failed"}
    audit_log.record(
        "model.stop",
        Actor(step.actor),
        node_id=step.node_id,
        model_id=step.model_id,
        operation_id=step.operation_id,
        target=step.target_id,
        result=results[outcome],
        error_code=code,
        detail="It was left over on a node on which the model has no place.",
    )


KIND = Kind(name=NAME, lane="run", stages={STOPPING: _stopping}, ended=_ended)
