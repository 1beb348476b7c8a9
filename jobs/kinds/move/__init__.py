"""Move a model to another node, in one of two modes with stages of their own: see `handover` and `stop_first`.

A crash at any line repeats the stage; each of its effects may be repeated.
"""

from datetime import timedelta

from jobs.base import Audit, Display, Kind, Outcome, Stage
from jobs.errors import StepFailed
from jobs.kinds.move import handover, stop_first
from jobs.kinds.move.bring import downloading
from jobs.kinds.move.plan import (
    DOWNLOADING,
    DRAINING_SOURCE,
    NAME,
    PLACEMENT_COMMITTED,
    SOURCE_STOPPED,
    STARTING_TARGET,
    STOPPING_SOURCE,
    TARGET_READY,
    UNDOING,
    MoveRun,
    MoveState,
    MoveStep,
    Plan,
    download_id,
    path,
    patient,
    placement_at,
    plan_of,
    why_away,
    why_no_cancel,
)
from jobs.models import Operation
from jobs.states import SUCCEEDED
from jobs.steps.moving import HANDOVER, STOP_FIRST, MoveInput
from mirbad.kernel.conf import settings
from models_app import holds
from models_app.models import Placement
from models_app.placement import apply, gpu_conditions
from models_app.placement import relocate as placing

__all__ = [
    "DOWNLOADING",
    "DRAINING_SOURCE",
    "HANDOVER",
    "KIND",
    "NAME",
    "PLACEMENT_COMMITTED",
    "SOURCE_STOPPED",
    "STARTING_TARGET",
    "STOPPING_SOURCE",
    "STOP_FIRST",
    "TARGET_READY",
    "UNDOING",
    "MoveInput",
    "MoveState",
    "Plan",
    "download_id",
    "hold_id",
    "plan_in",
    "why_away",
    "why_no_cancel",
]


def hold_id(operation_id: str) -> str:
    """Return the id under which a move holds its model."""
    return f"move-{operation_id}"


def plan_in(operation: Operation) -> Plan:
    """Return the plan of a move."""
    return plan_of(KIND.step(operation))


def _by_mode(one: MoveRun, other: MoveRun) -> MoveRun:
    """Return a stage that is `one` in a hand-over, and `other` in a move that stops first."""

    def run(step: MoveStep) -> Outcome:
        return (one if step.input.mode == HANDOVER else other)(step)

    return run


def _too_long(step: MoveStep, failure: StepFailed) -> Outcome:
    text = f"{failure.detail} Node {step.node_id} was away for too long; nothing was changed. Start the move again."
    raise StepFailed(failure.step_code, text, final=True)


def _release(step: MoveStep, outcome: str, _: str) -> None:
    plan = plan_of(step)
    holds.release(step.model_id, hold_id(step.operation_id))
    if outcome != SUCCEEDED:
        _put_back(step, plan)
    for node_id in sorted({plan.source_node, step.node_id} - {""}):
        gpu_conditions.refresh(node_id)


def _put_back(step: MoveStep, plan: Plan) -> None:
    """Undo the remains of an end in any stage: a second placement, or a stopped model that is to run."""
    arrived = Placement.objects.filter(pk=plan.arrival.id).values_list("routed", flat=True).first()
    if arrived is False:
        placing.leave(plan.arrival.id)
    if arrived and plan.source is not None:
        placing.leave(plan.source)
    restarted = step.stage == UNDOING
    source = placement_at(plan.source)
    if source is not None and step.state.stopped and not restarted:
        apply.set_desired_running(source, "")


def _way(step: MoveStep, _: str) -> str:
    return f"{step.input.mode}, from {step.input.source_node or 'no node'} to {step.node_id}"


def _where(step: MoveStep) -> str:
    source = step.input.source_node
    return f"from {source} to {step.node_id}" if source else f"to {step.node_id}"


def _commit_words(step: MoveStep) -> str:
    return f"Switch to {step.node_id}" if step.input.source_node else f"Place it on {step.node_id}"


def _stopped_words(step: MoveStep) -> str:
    return f"Stopped on {step.input.source_node}" if step.input.source_node else f"Place it on {step.node_id}"


def _launch_time() -> timedelta:
    return settings().launch_timeout


def _start_time() -> timedelta:
    return settings().moves_start_target_timeout


def _stop_time() -> timedelta:
    return settings().moves_stop_timeout


KIND = Kind(
    name=NAME,
    title="Move",
    concurrency_group="placement",
    Input=MoveInput,
    State=MoveState,
    stages=(
        Stage(DOWNLOADING, "Download the weights", patient(downloading, _launch_time, _too_long)),
        Stage(
            STOPPING_SOURCE,
            lambda step: f"Stop it on {step.input.source_node or 'its node'}",
            _by_mode(
                patient(handover.stopping_source, _stop_time, handover.never),
                patient(stop_first.stopping_source, _stop_time, handover.never),
            ),
        ),
        Stage(
            SOURCE_STOPPED, _stopped_words, patient(stop_first.source_stopped, _start_time, stop_first.commit_undone)
        ),
        Stage(
            STARTING_TARGET,
            lambda step: f"Start it on {step.node_id}",
            _by_mode(
                patient(handover.starting_target, _start_time, handover.gave_up),
                patient(stop_first.starting_target, _start_time, stop_first.not_started),
            ),
        ),
        Stage(
            TARGET_READY,
            lambda step: f"Ready on {step.node_id}",
            patient(handover.target_ready, _start_time, handover.gave_up),
        ),
        Stage(
            PLACEMENT_COMMITTED, _commit_words, _by_mode(handover.placement_committed, stop_first.placement_committed)
        ),
        Stage(
            DRAINING_SOURCE,
            lambda step: f"Finish requests on {step.input.source_node}",
            patient(handover.draining_source, _stop_time, handover.drained_unseen),
        ),
        Stage(
            UNDOING,
            "Undo the move",
            _by_mode(
                patient(handover.undoing, _stop_time, handover.undone),
                patient(stop_first.undoing, _stop_time, stop_first.gave_up),
            ),
            aside=True,
        ),
    ),
    audit=Audit("model.move", detail=_way),
    on_end=_release,
    why_no_cancel=why_no_cancel,
    display=Display(
        where=_where,
        path=path,
        node_ids=lambda step: (step.node_id, step.input.source_node),
    ),
)
