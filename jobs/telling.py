"""What is told of an operation, on pages and on ``/api`` alike: what it waits for, and whether it can be cancelled."""

from datetime import datetime

from jobs.kinds import GO_ON_FENCED, KINDS
from jobs.models import Operation
from mirbad.kernel.redact import redact

WORKING = "A worker does this stage now."


def waits_for(operation: Operation, now: datetime, *, fenced: bool = False) -> str:
    """One or two sentences; "" when it is over. `fenced` says that this master may command no node."""
    if operation.finished_at is not None:
        return ""
    if fenced and operation.kind not in GO_ON_FENCED:
        return "Nodes obey another master: it goes on after a takeover."
    when = _when(operation, now)
    if detail := str((operation.error or {}).get("detail") or ""):
        return f"{redact(detail)} {_tries(operation)}{when}"
    text = redact(str((operation.progress or {}).get("text") or ""))
    if not text:
        return when
    sentence = text if text.endswith((".", "!", "?")) else f"{text}."
    return f"{sentence} {when}" if when == _FREE else text


def why_no_cancel(operation: Operation) -> str:
    """Why it cannot be cancelled, as a sentence; "" when it can."""
    if operation.finished_at is not None:
        return "The operation is over already."
    if operation.cancel_requested_at is not None:
        return "It was asked to end already."
    kind = KINDS.get(operation.kind)
    return kind.why_no_cancel(operation.stage, operation.input) if kind is not None else ""


_FREE = "It waits for a free worker."
_LATE_SECONDS = 5.0


def _when(operation: Operation, now: datetime) -> str:
    if operation.lease_expires_at is not None and operation.lease_expires_at > now:
        return WORKING
    seconds = (operation.next_run_at - now).total_seconds()
    if seconds > 0:
        return f"It looks again in {max(1, round(seconds))} s."
    return _FREE if seconds < -_LATE_SECONDS else "A worker takes it up now."


def _tries(operation: Operation) -> str:
    return f"That was try {operation.attempt} of this stage. " if operation.attempt else ""
