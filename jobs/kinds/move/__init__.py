"""Move a model to another node: two ways, each with its stages. See `handover` and `stop_first`.

A crash at any line repeats the stage; what a stage does may be done again.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from audit import log as audit_log
from jobs.base import Kind, Outcome, Stage, Step
from jobs.errors import StepFailed
from jobs.kinds.move import handover, stop_first
from jobs.kinds.move.bring import downloading
from jobs.kinds.move.plan import (
    DOWNLOADING,
    DRAINING_SOURCE,
    HANDOVER,
    IN_ORDER,
    MAY_CANCEL,
    NAME,
    PLACEMENT_COMMITTED,
    SOURCE_STOPPED,
    STARTING_TARGET,
    STOP_FIRST,
    STOPPING_SOURCE,
    TARGET_READY,
    UNDOING,
    Plan,
    download_id,
    patient,
    placement_at,
    plan_of,
    read,
    why_away,
)
from jobs.models import Operation
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from models_app import holds
from models_app.models import Placement
from models_app.placement import apply, reconcile
from models_app.placement import handover as placing

__all__ = [
    "DOWNLOADING",
    "DRAINING_SOURCE",
    "HANDOVER",
    "IN_ORDER",
    "KIND",
    "MAY_CANCEL",
    "NAME",
    "PLACEMENT_COMMITTED",
    "SOURCE_STOPPED",
    "STARTING_TARGET",
    "STOPPING_SOURCE",
    "STOP_FIRST",
    "TARGET_READY",
    "UNDOING",
    "Plan",
    "download_id",
    "hold_id",
    "plan_in",
    "shown_stages",
    "why_away",
    "why_no_cancel",
]


def hold_id(operation_id: str) -> str:
    """The id under which a move holds its model."""
    return f"move-{operation_id}"


def plan_in(operation: Operation) -> Plan:
    """What a move is to do."""
    return read(operation.input, operation.model_id_text, operation.node_id_text)


def shown_stages(frozen: Mapping[str, Any]) -> tuple[str, ...]:
    """The stages that a move with this input goes through, in their order."""
    skipped: set[str] = set()
    if not frozen["source"]:
        skipped |= {STOPPING_SOURCE, SOURCE_STOPPED}
    if not frozen["running"]:
        skipped.add(STARTING_TARGET)
    return tuple(stage for stage in IN_ORDER[frozen["mode"]] if stage not in skipped)


def why_no_cancel(stage: str, frozen: Mapping[str, Any]) -> str:
    """Why a move at `stage` cannot be cancelled any more; "" when it can."""
    if stage in MAY_CANCEL[frozen["mode"]]:
        return ""
    if stage == UNDOING:
        return "The move is being undone already."
    return "The model stands on the other node already; move it back instead."


def _by_mode(one: Stage, other: Stage) -> Stage:
    """`one` for a hand-over, `other` for a move that stops first."""

    def run(step: Step) -> Outcome:
        return (one if step.input["mode"] == HANDOVER else other)(step)

    return run


def _too_long(step: Step, failure: StepFailed) -> Outcome:
    text = f"{failure.detail} Node {step.node_id} was away for too long; nothing was changed. Start the move again."
    raise StepFailed(failure.step_code, text, final=True)


def _ended(step: Step, outcome: str, code: str) -> None:
    plan = plan_of(step)
    holds.release(step.model_id, hold_id(step.operation_id))
    if outcome != SUCCEEDED:
        _put_back(step, plan)
    for node_id in sorted({plan.source_node, step.node_id} - {""}):
        reconcile.note_missing_gpus(node_id)
    results = {SUCCEEDED: "succeeded", FAILED: "failed", CANCELLED: "failed"}
    audit_log.record(
        "model.move",
        Actor(step.actor),
        node_id=step.node_id,
        model_id=step.model_id,
        operation_id=step.operation_id,
        result=results[outcome],
        error_code=code or ("cancelled" if outcome == CANCELLED else ""),
        detail=f"{plan.mode}, from {plan.source_node or 'no node'} to {step.node_id}",
    )


def _put_back(step: Step, plan: Plan) -> None:
    """What an end in any stage must not leave behind: a second place, or a model that should run and is not wanted."""
    arrived = Placement.objects.filter(pk=plan.arrival.id).values_list("routed", flat=True).first()
    if arrived is False:
        placing.leave(plan.arrival.id)
    if arrived and plan.source is not None:
        placing.leave(plan.source)
    restarted = step.stage == UNDOING
    source = placement_at(plan.source)
    if source is not None and step.state.get(stop_first.STOPPED_BY_US) and not restarted:
        apply.want_running(source, "")


def _launch_time() -> timedelta:
    return settings().launch_timeout


def _start_time() -> timedelta:
    return settings().moves_start_target_timeout


def _stop_time() -> timedelta:
    return settings().moves_stop_timeout


KIND = Kind(
    name=NAME,
    lane="placement",
    stages={
        DOWNLOADING: patient(downloading, _launch_time, _too_long),
        STARTING_TARGET: _by_mode(
            patient(handover.starting_target, _start_time, handover.gave_up),
            patient(stop_first.starting_target, _start_time, stop_first.not_started),
        ),
        TARGET_READY: patient(handover.target_ready, _start_time, handover.gave_up),
        PLACEMENT_COMMITTED: _by_mode(handover.placement_committed, stop_first.placement_committed),
        DRAINING_SOURCE: patient(handover.draining_source, _stop_time, handover.drained_unseen),
        STOPPING_SOURCE: _by_mode(
            patient(handover.stopping_source, _stop_time, handover.never),
            patient(stop_first.stopping_source, _stop_time, handover.never),
        ),
        SOURCE_STOPPED: patient(stop_first.source_stopped, _start_time, stop_first.commit_undone),
        UNDOING: _by_mode(
            patient(handover.undoing, _stop_time, handover.undone),
            patient(stop_first.undoing, _stop_time, stop_first.gave_up),
        ),
    },
    ended=_ended,
    why_no_cancel=why_no_cancel,
)
