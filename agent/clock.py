"""The only reader of time in the agent."""

import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path


def now() -> datetime:
    """The present moment, aware, in UTC."""
    return datetime.now(UTC)


def now_text() -> str:
    """The present moment as RFC 3339 with milliseconds, as it goes on the wire."""
    return now().isoformat(timespec="milliseconds").replace("+00:00", "Z")


def monotonic() -> float:
    """Seconds of a clock that never goes back."""
    return time.monotonic()


@cache
def boot_id() -> str:
    """The id of this boot of the machine, which `monotonic` and process ids belong to."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def init_ticks() -> int | None:
    """When the first process of this machine, or of the container that it is, began: a restart of it changes this.

    None where that process cannot be seen.
    """
    try:
        return int(Path("/proc/1/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None
