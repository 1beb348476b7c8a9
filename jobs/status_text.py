"""Status texts of operations, for pages and ``/api`` alike: the wait, and the reason against a cancellation."""

from datetime import datetime

from agent.common.redaction import redact
from jobs.kinds import CONTINUE_FENCED, read
from jobs.models import Operation
from jobs.queries import LONGEST_PAUSE

WORKING = "In progress."


def waits_for(operation: Operation, now: datetime, *, fenced: bool = False) -> str:
    """Return the reason for the wait of an operation, as sentences; "" when it is over. `fenced`: the master is."""
    if operation.finished_at is not None:
        return ""
    if fenced and operation.kind not in CONTINUE_FENCED:
        return "Nodes obey another master: it continues after a takeover."
    when = _when(operation, now)
    if detail := str((operation.error or {}).get("detail") or ""):
        return f"{redact(detail)} {_tries(operation)}{when}"
    text = redact(str((operation.progress or {}).get("text") or ""))
    if not text:
        return when
    sentence = text if text.endswith((".", "!", "?")) else f"{text}."
    return f"{sentence} {when}" if when == _FREE else text


def why_no_cancel(operation: Operation) -> str:
    """Return why an operation cannot be cancelled, as a sentence; "" when it can."""
    if operation.finished_at is not None:
        return "The operation has already ended."
    if operation.cancel_requested_at is not None:
        return "It is being cancelled already."
    known = read(operation)
    return known[0].why_no_cancel(known[1]) if known is not None else ""


_FREE = "Waiting for a free worker."
_LATE_SECONDS = 5.0


def _when(operation: Operation, now: datetime) -> str:
    if operation.lease_expires_at is not None and operation.lease_expires_at > now:
        return WORKING
    seconds = (operation.next_run_at - now).total_seconds()
    if 0 < seconds <= LONGEST_PAUSE.total_seconds():
        return f"Next check in {max(1, round(seconds))} s."
    return _FREE if abs(seconds) > _LATE_SECONDS else "Starting now."


def _tries(operation: Operation) -> str:
    return f"Attempt {operation.attempt} of this stage failed. " if operation.attempt else ""
