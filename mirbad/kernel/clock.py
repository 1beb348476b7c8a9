"""The only reader of time in the master."""

import time
from datetime import UTC, datetime


def now() -> datetime:
    """Return the present time, aware, in UTC."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Return the seconds of a clock that never goes back; for durations inside one process only."""
    return time.monotonic()
