"""Requests the takeovers of the configuration: by a flag file in the data folder, or by an option.

A failed one is tried again after a wait that doubles, up to five minutes; every try is an operation of its own. A
master that stands down waits for an owner, whatever is configured.
"""

from datetime import datetime, timedelta
from pathlib import Path

import structlog

from jobs.kinds.takeover import NAME, TakeoverInput
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import takeover
from jobs.states import SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.ids import new_uid
from nodes import fencing

log = structlog.get_logger(__name__)

FLAG = "takeover"
FIRST_WAIT = timedelta(seconds=5)
LONGEST_WAIT = timedelta(minutes=5)

_logged: set[str] = set()


def look_once() -> int:
    """Request the due takeovers of flag file and option, and return how many."""
    if fencing.stands_down():
        return 0
    return _flag(settings().data / FLAG) + _option()


def is_coming() -> bool:
    """Return whether a takeover is open, or requested by the flag file or the option."""
    requested = settings().fencing_takeover or has_flag()
    return (requested and not fencing.stands_down()) or unfinished().filter(kind=NAME).exists()


def has_flag() -> bool:
    """Return whether the flag file requests a takeover; no query."""
    return (settings().data / FLAG).exists()


def at_start() -> bool:
    """Request a takeover for an option without an id, at every start of the master; return whether it did."""
    chosen = settings()
    if not chosen.fencing_takeover or chosen.fencing_takeover_id or fencing.stands_down():
        return False
    log.warning(
        "MIRBAD_FENCING_TAKEOVER is set without MIRBAD_FENCING_TAKEOVER_ID: this master takes over at every start"
    )
    return _request("option", f"start:{new_uid()}")


def _flag(path: Path) -> int:
    try:
        found = path.stat()
    except OSError:
        return 0
    # A new file is another request, even after one that completed and could not be deleted.
    key = f"flag:{found.st_ino}:{found.st_mtime_ns}"
    if _last(key, outcome=SUCCEEDED) is not None:
        _delete(path)
        return 0
    return int(_request_when_due("flag file", key))


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log_once(f"the flag file {path} cannot be deleted ({error.strerror}); its takeover completed")


def _option() -> int:
    chosen = settings()
    if not chosen.fencing_takeover:
        return 0
    one_time = chosen.fencing_takeover_id
    if one_time and fencing.is_done(one_time):
        _log_once(
            f"MIRBAD_FENCING_TAKEOVER is still set, but its takeover {one_time} already completed; "
            "remove it and MIRBAD_FENCING_TAKEOVER_ID"
        )
        return 0
    if one_time:
        return int(_request_when_due("option", f"option:{one_time}", one_time))
    # Without an id each start requests once (`at_start`); here that one is only tried again.
    newest = Operation.objects.filter(kind=NAME, input__key__startswith="start:").order_by("-id").first()
    return (
        int(_request_when_due("option", TakeoverInput.model_validate(newest.input).key))
        if newest and newest.outcome != SUCCEEDED
        else 0
    )


def _request_when_due(source: str, key: str, one_time_id: str = "") -> bool:
    newest = _last(key)
    if newest is not None and (newest.finished_at is None or clock.now() < _next_try(key, newest.finished_at)):
        return False
    return _request(source, key, one_time_id)


def _next_try(key: str, ended_at: datetime) -> datetime:
    failures = Operation.objects.filter(kind=NAME, input__key=key, finished_at__isnull=False).count()
    wait = min(LONGEST_WAIT, FIRST_WAIT * float(2 ** min(failures - 1, 10)))
    _log_once(
        f"The requested takeover failed {failures} time(s) in a row; next attempt in {wait.total_seconds():.0f} s."
    )
    return ended_at + wait


def _request(source: str, key: str, one_time_id: str = "") -> bool:
    try:
        operation = takeover.request_by_configuration(source, key, one_time_id)
    except MirbadError as error:
        _log_once(f"the takeover of the {source} has to wait: {error.detail}")
        return False
    return TakeoverInput.model_validate(operation.input).key == key


def _last(key: str, **having: str) -> Operation | None:
    return Operation.objects.filter(kind=NAME, input__key=key, **having).order_by("-id").first()


def _log_once(text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        log.warning(text)
