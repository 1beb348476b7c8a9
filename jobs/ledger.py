"""The ledger of operations: claims of steps, and writes of their results. Every write is one conditional UPDATE.

A worker claims a step (fence + 1, a lease), does one effect outside any transaction, and writes the result only while
its fence is the row's. Zero rows means that another worker has the operation: LeaseLost.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import transaction
from django.db.models import F
from pydantic import ValidationError

from agent.common.redaction import redact
from audit import log as audit_log
from jobs import events
from jobs.base import STEP, AnyKind, Cancelled, Done, Go, I, Kind, OperationData, Outcome, S, Wait
from jobs.errors import LeaseLost, StepFailed
from jobs.models import Operation, OperationEvent
from jobs.queries import LONGEST_PAUSE, due, unfinished
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from mirbad.kernel.ids import new_operation_id
from mirbad.tasking.tasks import enqueue_on_commit

log = structlog.get_logger(__name__)

_TEXT = 1000
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")
_LINES_KEPT = 60


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of an operation. `kind` and `id` are its target: at most one is open per group and target."""

    kind: str
    id: str
    node_id: str = ""
    model_id: str = ""


def create(
    kind: Kind[I, S],
    stage: str,
    subject: Subject,
    actor: Actor,
    text: str,
    data: I | None = None,
    *,
    operation_id: str = "",
) -> Operation:
    """Create an operation in the caller's transaction; it is enqueued on commit. `data` is its input.

    `operation_id` is one from `new_operation_id` that was needed before; empty creates one. Raises IntegrityError when
    its concurrency group already has an open operation on that target.
    """
    now = clock.now()
    operation = Operation.objects.create(
        id=operation_id or new_operation_id(),
        kind=kind.name,
        concurrency_group=kind.concurrency_group,
        target_kind=subject.kind,
        target_id=subject.id,
        node_id_text=subject.node_id,
        model_id_text=subject.model_id,
        actor=actor.name,
        person=actor.person[:150],
        role=actor.role[:10],
        address=actor.address[:64],
        input=data.to_json() if data is not None else {},
        stage=stage,
        stage_since=now,
        next_run_at=now,
    )
    _add_event(operation.pk, stage, text, now)
    events.changed(operation.pk)
    enqueue_on_commit(STEP, operation.pk)
    return operation


def claim(operation_id: str, owner: str) -> Operation | None:
    """Take the due step of an operation for the lease's length; None when it is not due, held, or over.

    The row is returned as it was at the claim, for `write` and `write_failure`: nobody changes it.
    `owner` must be new for every claim: it is how the row is found again on a database without RETURNING.
    """
    now = clock.now()
    taken = Operation.objects.filter(due(now), pk=operation_id).update(
        fence=F("fence") + 1, lease_owner=owner, lease_expires_at=now + settings().operation_lease
    )
    if not taken:
        return None
    return Operation.objects.filter(pk=operation_id, lease_owner=owner).first()


def write(claimed: Operation, outcome: Outcome, kind: AnyKind) -> float | None:
    """Write the result of a step; return the seconds until the next one is due, None when the operation is over.

    Raises LeaseLost when another worker has claimed the operation; then nothing was written.
    """
    now = clock.now()
    with transaction.atomic():
        if isinstance(outcome, Go):
            _update(
                claimed,
                stage=outcome.stage,
                stage_since=now,
                attempt=0,
                next_run_at=now,
                progress={},
                error={},
                state=_merged(claimed, outcome.state),
            )
            _add_event(claimed.pk, outcome.stage, outcome.text or outcome.stage, now)
            events.changed(claimed.pk)
            return 0.0
        if isinstance(outcome, Done) and _was_cancelled_meanwhile(claimed):
            # The person was promised that the operation ends: the stage is done again, and decides with that knowledge.
            outcome = Wait(0.0)
        if isinstance(outcome, Wait):
            return _write_wait(claimed, outcome, now)
        _write_end(claimed, outcome, kind, now)
        return None


def write_failure(claimed: Operation, failure: StepFailed, kind: AnyKind) -> float | None:
    """Write that the step failed: for good, or to be tried again after a pause that grows with the attempts.

    Returns and raises as `write` does.
    """
    now = clock.now()
    error: dict[str, Any] = {"code": failure.step_code, "detail": redact(failure.detail)}
    if failure.lines:
        error["lines"] = [redact(line) for line in failure.lines[-_LINES_KEPT:]]
    with transaction.atomic():
        if failure.final:
            _update(claimed, outcome=FAILED, finished_at=now, progress={}, error=error)
            _add_event(claimed.pk, claimed.stage, error["detail"], now)
            _end(claimed, kind, FAILED, failure.step_code)
            events.changed(claimed.pk)
            return None
        pause = backoff_seconds(claimed.attempt)
        before = Operation.objects.filter(pk=claimed.pk).values_list("error", flat=True).first()
        _update(
            claimed,
            attempt=claimed.attempt + 1,
            next_run_at=now + timedelta(seconds=pause),
            error=error,
            progress={"text": error["detail"]},
        )
        if before != error:
            _add_event(claimed.pk, claimed.stage, error["detail"], now)
            events.changed(claimed.pk)
        return pause


def backoff_seconds(attempt: int) -> float:
    """Return the pause before try `attempt` + 2: half a second, doubling up to five."""
    return float(min(5.0, 0.5 * 2 ** min(attempt, 10)))


def ask_to_cancel(operation: Operation) -> bool:
    """Record a request to cancel `operation`, in the caller's transaction; its next step obeys.

    False when the operation is over, or was cancelled before.
    """
    now = clock.now()
    rows = unfinished().filter(pk=operation.pk, cancel_requested_at__isnull=True)
    # Whatever it waits for, the request is a reason to look now.
    if not rows.update(cancel_requested_at=now, next_run_at=now):
        return False
    _add_event(operation.pk, operation.stage, "Asked to end.", now)
    events.changed(operation.pk)
    enqueue_on_commit(STEP, operation.pk)
    return True


def steer(operation: Operation, state: OperationData, text: str) -> bool:
    """Replace the state of `operation`, in the caller's transaction; False when it is at another stage now.

    A worker that is at the stage loses its lease, and the stage is done again with the new state.
    """
    now = clock.now()
    row = unfinished().filter(pk=operation.pk, stage=operation.stage, fence=operation.fence)
    if not row.update(
        fence=F("fence") + 1,
        lease_owner="",
        lease_expires_at=None,
        next_run_at=now,
        state=_merged(operation, state),
    ):
        return False
    _add_event(operation.pk, operation.stage, text, now)
    events.changed(operation.pk)
    enqueue_on_commit(STEP, operation.pk)
    return True


def note(operation: Operation, texts: Sequence[str]) -> None:
    """Add lines to the timeline of `operation` at its present stage, in the caller's transaction."""
    now = clock.now()
    OperationEvent.objects.bulk_create(
        [
            OperationEvent(operation=operation, time=now, stage=operation.stage, text=redact(text)[:_TEXT])
            for text in texts
        ],
        batch_size=200,
    )
    if texts:
        events.changed(operation.pk)


def supersede(operation: Operation, text: str) -> bool:
    """End `operation` at once, in the caller's transaction, since another one replaces it; False when it is over.

    A worker at one of its steps loses its lease, so its result is not written. Neither is its audit line.
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
    _add_event(operation.pk, operation.stage, text, now)
    events.changed(operation.pk)
    return True


def abandon(operation: Operation, text: str) -> bool:
    """End an operation that must not continue, in the caller's transaction; a worker at a step loses it. False if over.

    Its audit line is not written, nor anything else that its kind writes at the end: nothing of it counts here.
    """
    now = clock.now()
    rows = unfinished().filter(pk=operation.pk)
    ended = rows.update(
        outcome=CANCELLED, finished_at=now, fence=F("fence") + 1, lease_owner="", lease_expires_at=None, progress={}
    )
    if not ended:
        return False
    _add_event(operation.pk, operation.stage, text, now)
    events.changed(operation.pk)
    return True


def due_ids(limit: int = 500, *, kinds: Collection[str] | None = None) -> list[str]:
    """Return the ids of operations that are due and not leased, the longest waiting first; None is every kind."""
    rows = Operation.objects.filter(due(clock.now()))
    if kinds is not None:
        rows = rows.filter(kind__in=kinds)
    return list(rows.order_by("next_run_at").values_list("pk", flat=True)[:limit])


def _merged(operation: Operation, state: OperationData | None) -> dict[str, Any]:
    """Return the stored state with `state` in it; keys that this version does not know stay."""
    return operation.state if state is None else {**operation.state, **state.to_json()}


def _was_cancelled_meanwhile(claimed: Operation) -> bool:
    """Return whether someone cancelled the operation during the step; locks its row until the transaction ends."""
    if claimed.cancel_requested_at is not None:
        return False
    row = unfinished().select_for_update().filter(pk=claimed.pk, fence=claimed.fence)
    return row.values_list("cancel_requested_at", flat=True).first() is not None


def _write_wait(claimed: Operation, outcome: Wait, now: datetime) -> float:
    progress = dict(outcome.progress)
    before = Operation.objects.filter(pk=claimed.pk).values_list("progress", flat=True).first() or {}
    pause = min(outcome.seconds, LONGEST_PAUSE.total_seconds())
    next_run = now + timedelta(seconds=pause)
    state = _merged(claimed, outcome.state)
    _update(claimed, attempt=0, next_run_at=next_run, progress=progress, error={}, state=state)
    text = str(progress.get("text", ""))
    if text and _shape(text) != _shape(str(before.get("text", ""))):
        _add_event(claimed.pk, claimed.stage, text, now)
    if progress != before:
        events.changed(claimed.pk)
    return pause


def _shape(text: str) -> str:
    # A running counter is progress, which pages show in place; only another sentence is a new line of the timeline.
    return _NUMBERS.sub("#", text)


def _write_end(claimed: Operation, outcome: Done | Cancelled, kind: AnyKind, now: datetime) -> None:
    done = isinstance(outcome, Done)
    result = dict(outcome.result) if isinstance(outcome, Done) else {}
    ending = {"outcome": SUCCEEDED, "stage": "done"} if done else {"outcome": CANCELLED}
    _update(claimed, finished_at=now, progress={}, error={}, result=result, **ending)
    _add_event(claimed.pk, "done" if done else claimed.stage, outcome.text, now)
    _end(claimed, kind, SUCCEEDED if done else CANCELLED, "")
    events.changed(claimed.pk)


def _end(claimed: Operation, kind: AnyKind, outcome: str, code: str) -> None:
    """Write the rest of the end of an operation: the writes of its kind, and its audit line."""
    try:
        step = kind.step(claimed)
    except ValidationError:
        # Of another version: it cannot continue, and its end must not fail for the same reason for ever.
        log.exception("an operation ends whose data cannot be read", operation=claimed.pk, kind=claimed.kind)
        return
    if kind.on_end is not None:
        kind.on_end(step, outcome, code)
    audit = kind.audit
    if not audit.applies(step, outcome):
        return
    failed = outcome == FAILED or (outcome == CANCELLED and audit.cancelled_is_failed)
    audit_log.record(
        audit.action_of(step),
        claimed.requested_by,
        node_id=claimed.node_id_text,
        model_id=claimed.model_id_text,
        operation_id=claimed.pk,
        target=audit.target(step),
        result="failed" if failed else "succeeded",
        error_code=code or ("cancelled" if failed and outcome == CANCELLED else ""),
        detail=audit.detail(step, outcome),
    )


def _update(claimed: Operation, **columns: Any) -> None:
    row = unfinished().filter(pk=claimed.pk, stage=claimed.stage, fence=claimed.fence)
    if not row.update(lease_owner="", lease_expires_at=None, **columns):
        raise LeaseLost(f"Another worker has claimed {claimed.pk} at {claimed.stage}.")


def _add_event(operation_id: str, stage: str, text: str, now: datetime) -> None:
    OperationEvent.objects.create(operation_id=operation_id, time=now, stage=stage, text=redact(text)[:_TEXT])
