"""Stop a model: stopping → done. While the node cannot be reached it waits: what was asked is not forgotten."""

from datetime import datetime, timedelta

from audit import log as audit_log
from jobs import instances
from jobs.base import Cancelled, Done, Kind, Outcome, Step, Wait
from jobs.errors import StepFailed
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings

NAME = "stop"
STOPPING = "stopping"
_LOOK_SECONDS = 0.5


def _stopping(step: Step) -> Outcome:
    if step.cancel_requested and "asked" not in step.state and not _has_ended(step):
        return Cancelled("Given up before the node was reached; the engine may still run there.")
    instances.placement_of(step)
    asked = instances.stop(step, step.key(instances.turn_of(step)))
    view = instances.look(step) if asked is not None else None
    if view is None or view.state in instances.FINAL:
        instances.refresh(step)
        return Done("The engine has stopped.")
    since = step.state.get("asked") or clock.now().isoformat()
    allowed = settings().stop_timeout + timedelta(seconds=instances.STOP_GRACE_SECONDS)
    if clock.now() - datetime.fromisoformat(str(since)) > allowed:
        text = f"The engine did not end within {allowed.total_seconds():.0f} s; look at node {step.node_id!r}."
        raise StepFailed("stop_timeout", text, final=True, lines=view.last_lines)
    return Wait(_LOOK_SECONDS, {"text": "Stopping the engine."}, {"asked": since})


def _has_ended(step: Step) -> bool:
    """Whether an earlier try of this stage has stopped it; False when the node cannot say."""
    try:
        view = instances.look(step)
    except StepFailed:
        return False
    return view is None or view.state in instances.FINAL


def _ended(step: Step, outcome: str, code: str) -> None:
    results = {SUCCEEDED: "succeeded", FAILED: "failed", CANCELLED: "failed"}
    audit_log.record(
        "model.stop",
        Actor(step.actor),
        node_id=step.node_id,
        model_id=step.model_id,
        operation_id=step.operation_id,
        result=results[outcome],
        error_code=code or ("cancelled" if outcome == CANCELLED else ""),
    )


KIND = Kind(name=NAME, lane="run", stages={STOPPING: _stopping}, ended=_ended)
