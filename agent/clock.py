"""The only reader of time in the agent."""

import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path


def now() -> datetime:
    """Return the current time in UTC, aware."""
    return datetime.now(UTC)


def now_text() -> str:
    """Return the current time as RFC 3339 with milliseconds, the format of the wire."""
    return as_text(now())


def as_text(moment: datetime) -> str:
    """Return a moment as `now_text` does."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def monotonic() -> float:
    """Return the seconds of a clock that never goes back."""
    return time.monotonic()


@cache
def boot_id() -> str:
    """Return the id of this boot of the machine, in which `monotonic` and process ids are valid."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def init_ticks() -> int | None:
    """Return the start time of the first process of this machine, or of its container; a restart of it changes the
    value.

    None where that process is not visible.
    """
    try:
        return int(Path("/proc/1/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None
