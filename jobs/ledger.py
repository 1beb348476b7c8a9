"""The ledger of operations: who may take a step, and what it led to. Every write is one conditional UPDATE.

A worker claims a step (fence + 1, a lease), does one effect outside any transaction, and writes what follows only
while its fence stands. Zero rows means that another worker has the operation: LeaseLost.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from jobs import events
from jobs.base import STEP, Cancelled, Done, Go, Kind, Outcome, Step, Wait
from jobs.errors import LeaseLost, StepFailed
from jobs.models import Operation, OperationEvent
from jobs.queries import due, unfinished
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from mirbad.kernel.ids import new_operation_id
from mirbad.kernel.redact import redact
from mirbad.tasking.tasks import enqueue

_TEXT = 1000
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")
_LINES_KEPT = 60


@dataclass(frozen=True, slots=True)
class Subject:
    """What an operation is about. `kind` and `id` are its target; at most one is open a lane and target."""

    kind: str
    id: str
    node_id: str = ""
    model_id: str = ""


def create(
    kind: Kind,
    stage: str,
    subject: Subject,
    actor: Actor,
    text: str,
    frozen: Mapping[str, Any] | None = None,
    *,
    operation_id: str = "",
) -> Operation:
    """A new operation in the caller's transaction; its bell rings on commit. `frozen` is its input.

    `operation_id` is one from `new_operation_id` that was needed before; empty makes one. IntegrityError when its lane
    already has an open operation on that target.
    """
    now = clock.now()
    operation = Operation.objects.create(
        id=operation_id or new_operation_id(),
        kind=kind.name,
        lane=kind.lane,
        target_kind=subject.kind,
        target_id=subject.id,
        node_id_text=subject.node_id,
        model_id_text=subject.model_id,
        actor=actor.name,
        input=dict(frozen or {}),
        stage=stage,
        stage_since=now,
        next_run_at=now,
    )
    _tell(operation.pk, stage, text, now)
    events.changed(operation.pk)
    enqueue(STEP, operation.pk)
    return operation


def claim(operation_id: str, owner: str) -> Step | None:
    """Take the due step of an operation for the lease's length; None when it is not due, held, or over.

    `owner` must be new for every claim: it is how the row is found again on a database without RETURNING.
    """
    now = clock.now()
    taken = Operation.objects.filter(due(now), pk=operation_id).update(
        fence=F("fence") + 1, lease_owner=owner, lease_expires_at=now + settings().operation_lease
    )
    if not taken:
        return None
    row = Operation.objects.filter(pk=operation_id, lease_owner=owner).first()
    return _step(row) if row is not None else None


def write(step: Step, outcome: Outcome, kind: Kind) -> float | None:
    """Write what the step led to; the seconds until the next one is due, None when the operation is over.

    Raises LeaseLost when the step's fence stands no more; then nothing was written.
    """
    now = clock.now()
    with transaction.atomic():
        if isinstance(outcome, Go):
            _update(
                step,
                stage=outcome.stage,
                stage_since=now,
                attempt=0,
                next_run_at=now,
                progress={},
                error={},
                state={**step.state, **outcome.state},
            )
            _tell(step.operation_id, outcome.stage, outcome.text or outcome.stage, now)
            events.changed(step.operation_id)
            return 0.0
        if isinstance(outcome, Done) and _was_asked_meanwhile(step):
            # Whoever asked was told that it is obeyed: the stage is done again, and decides with that knowledge.
            outcome = Wait(0.0)
        if isinstance(outcome, Wait):
            return _write_wait(step, outcome, now)
        _write_end(step, outcome, kind, now)
        return None


def write_failure(step: Step, failure: StepFailed, kind: Kind) -> float | None:
    """Write that the step failed: for good, or to be tried again after a pause that grows with the attempts.

    Returns and raises as `write` does.
    """
    now = clock.now()
    error: dict[str, Any] = {"code": failure.step_code, "detail": redact(failure.detail)}
    if failure.lines:
        error["lines"] = [redact(line) for line in failure.lines[-_LINES_KEPT:]]
    with transaction.atomic():
        if failure.final:
            _update(step, outcome=FAILED, finished_at=now, progress={}, error=error)
            _tell(step.operation_id, step.stage, error["detail"], now)
            kind.ended(step, FAILED, failure.step_code)
            events.changed(step.operation_id)
            return None
        pause = backoff_seconds(step.attempt)
        before = Operation.objects.filter(pk=step.operation_id).values_list("error", flat=True).first()
        _update(
            step,
            attempt=step.attempt + 1,
            next_run_at=now + timedelta(seconds=pause),
            error=error,
            progress={"text": error["detail"]},
        )
        if before != error:
            _tell(step.operation_id, step.stage, error["detail"], now)
            events.changed(step.operation_id)
        return pause


def backoff_seconds(attempt: int) -> float:
    """The pause before try `attempt` + 2: half a second, doubling up to five."""
    return float(min(5.0, 0.5 * 2 ** min(attempt, 10)))


def ask_to_cancel(operation: Operation) -> bool:
    """Note that someone wants `operation` to end, in the caller's transaction; its next stage obeys.

    False when it is over, or was asked before.
    """
    now = clock.now()
    asked = unfinished().filter(pk=operation.pk, cancel_requested_at__isnull=True)
    # Whatever it waits for, the wish is a reason to look now.
    if not asked.update(cancel_requested_at=now, next_run_at=now):
        return False
    _tell(operation.pk, operation.stage, "Asked to end.", now)
    events.changed(operation.pk)
    enqueue(STEP, operation.pk)
    return True


def steer(operation: Operation, state: Mapping[str, Any], text: str) -> bool:
    """Add to what the stages of `operation` know, in the caller's transaction; False when it is at another stage now.

    A worker that is at the stage loses its lease, and the stage is done again with what was added.
    """
    now = clock.now()
    row = unfinished().filter(pk=operation.pk, stage=operation.stage, fence=operation.fence)
    if not row.update(
        fence=F("fence") + 1,
        lease_owner="",
        lease_expires_at=None,
        next_run_at=now,
        state={**operation.state, **state},
    ):
        return False
    _tell(operation.pk, operation.stage, text, now)
    events.changed(operation.pk)
    enqueue(STEP, operation.pk)
    return True


def supersede(operation: Operation, text: str) -> bool:
    """End `operation` at once, in the caller's transaction, since another one takes its place; False when it is over.

    A worker that is at it loses its lease, so what it learns is not written. Its kind's ending is not called.
    """
    now = clock.now()
    ended = unfinished().filter(pk=operation.pk)
    if not ended.update(
        outcome=CANCELLED,
        finished_at=now,
        fence=F("fence") + 1,
        lease_owner="",
        lease_expires_at=None,
        progress={},
        error={"code": "superseded", "detail": text},
    ):
        return False
    _tell(operation.pk, operation.stage, text, now)
    events.changed(operation.pk)
    return True


def abandon(operation: Operation, text: str) -> bool:
    """End an operation that must not go on, in the caller's transaction; a worker at its step loses it. False if over.

    What its kind writes when it ends is not written: nothing of it is to count here.
    """
    now = clock.now()
    rows = unfinished().filter(pk=operation.pk)
    ended = rows.update(
        outcome=CANCELLED, finished_at=now, fence=F("fence") + 1, lease_owner="", lease_expires_at=None, progress={}
    )
    if not ended:
        return False
    _tell(operation.pk, operation.stage, text, now)
    events.changed(operation.pk)
    return True


def due_ids(limit: int = 500, *, kinds: Collection[str] | None = None) -> list[str]:
    """Ids of operations that are due and that nobody holds, the longest waiting first; None is every kind."""
    rows = Operation.objects.filter(due(clock.now()))
    if kinds is not None:
        rows = rows.filter(kind__in=kinds)
    return list(rows.order_by("next_run_at").values_list("pk", flat=True)[:limit])


def _was_asked_meanwhile(step: Step) -> bool:
    """Whether someone asked the operation to end while the step was done; the row stays locked to the end of this."""
    if step.cancel_requested:
        return False
    row = unfinished().select_for_update().filter(pk=step.operation_id, fence=step.fence)
    return row.values_list("cancel_requested_at", flat=True).first() is not None


def _write_wait(step: Step, outcome: Wait, now: datetime) -> float:
    progress = dict(outcome.progress)
    before = Operation.objects.filter(pk=step.operation_id).values_list("progress", flat=True).first() or {}
    next_run = now + timedelta(seconds=outcome.seconds)
    state = {**step.state, **outcome.state}
    _update(step, attempt=0, next_run_at=next_run, progress=progress, error={}, state=state)
    text = str(progress.get("text", ""))
    if text and _shape(text) != _shape(str(before.get("text", ""))):
        _tell(step.operation_id, step.stage, text, now)
    if progress != before:
        events.changed(step.operation_id)
    return outcome.seconds


def _shape(text: str) -> str:
    # A counter that runs is progress, which is shown where it stands; only another sentence is a new line.
    return _NUMBERS.sub("#", text)


def _write_end(step: Step, outcome: Done | Cancelled, kind: Kind, now: datetime) -> None:
    done = isinstance(outcome, Done)
    result = dict(outcome.result) if isinstance(outcome, Done) else {}
    ending = {"outcome": SUCCEEDED, "stage": "done"} if done else {"outcome": CANCELLED}
    _update(step, finished_at=now, progress={}, error={}, result=result, **ending)
    _tell(step.operation_id, "done" if done else step.stage, outcome.text, now)
    kind.ended(step, SUCCEEDED if done else CANCELLED, "")
    events.changed(step.operation_id)


def _update(step: Step, **columns: Any) -> None:
    row = unfinished().filter(pk=step.operation_id, stage=step.stage, fence=step.fence)
    if not row.update(lease_owner="", lease_expires_at=None, **columns):
        raise LeaseLost(f"Another worker has taken over {step.operation_id} at {step.stage}.")


def _tell(operation_id: str, stage: str, text: str, now: datetime) -> None:
    OperationEvent.objects.create(operation_id=operation_id, time=now, stage=stage, text=redact(text)[:_TEXT])


def _step(row: Operation) -> Step:
    return Step(
        operation_id=row.pk,
        kind=row.kind,
        stage=row.stage,
        fence=row.fence,
        attempt=row.attempt,
        target_id=row.target_id,
        node_id=row.node_id_text,
        model_id=row.model_id_text,
        actor=row.actor,
        input=row.input,
        state=row.state,
        created_at=row.created_at,
        stage_since=row.stage_since or row.created_at,
        cancel_requested=row.cancel_requested_at is not None,
    )
