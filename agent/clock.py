"""The only reader of time in the agent."""

import time
from datetime import UTC, datetime


def now() -> datetime:
    """The present moment, aware, in UTC."""
    return datetime.now(UTC)


def now_text() -> str:
    """The present moment as RFC 3339 with milliseconds, as it goes on the wire."""
    return now().isoformat(timespec="milliseconds").replace("+00:00", "Z")


def monotonic() -> float:
    """Seconds of a clock that never goes back."""
    return time.monotonic()
