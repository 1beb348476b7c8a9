"""The wait that a server asks for, in every form that servers use. Pure."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhd]))+")
_SPAN_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_PAIR = re.compile(r"(?:^|[;,\s])\s*([a-z]+)\s*=\s*([0-9]+(?:\.[0-9]+)?)(?![^;,\s])")
_EPOCH_SECONDS = 1e9
"""From this number on (the year 2001), a number is a moment and not a wait; a thousand times as much is in ms."""

_RESETS = (
    "ratelimit-reset",
    "x-ratelimit-reset",
    "x-rate-limit-reset",
    "x-ratelimit-reset-after",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
)


def seconds(headers: Mapping[str, str], status: int, now: datetime) -> float | None:
    """Return the seconds that a response asks to wait, at least 0; None when it asks for none.

    ``Retry-After`` counts with every status. The limits of a server are in its ordinary responses, too, so they count
    with 429 alone.
    """
    known: dict[str, str] = {}
    for name, value in headers.items():
        # A list may be sent in several lines.
        before = known.get(name.lower())
        known[name.lower()] = value.strip() if before is None else f"{before}, {value.strip()}"
    clock = _date(known.get("date", "")) or now
    found = _retry_after(known, clock)
    if found is None and status == 429:
        found = _rate_limit(known.get("ratelimit", ""))
        resets = [_reset(known[name], clock) for name in _RESETS if name in known] if found is None else []
        found = max((wait for wait in resets if wait is not None), default=found)
    return found


def _retry_after(known: Mapping[str, str], clock: datetime) -> float | None:
    exact = known.get("retry-after-ms", known.get("x-ms-retry-after-ms", ""))
    if _NUMBER.fullmatch(exact):
        return float(exact) / 1000
    return _reset(known.get("retry-after", ""), clock)


def _moment(text: str, clock: datetime) -> float | None:
    """Return the seconds to a number of seconds, a span such as ``1m30s``, or a date; a past one is 0."""
    if _NUMBER.fullmatch(text):
        return float(text)
    if _SPAN.fullmatch(text):
        return sum(float(count) * _UNITS[unit] for count, unit in _SPAN_PART.findall(text))
    date = _date(text)
    return None if date is None else max((date - clock).total_seconds(), 0.0)


def _reset(text: str, clock: datetime) -> float | None:
    """Return the seconds to `text`, which servers give as seconds, as a moment in seconds or ms, or as a date."""
    if not _NUMBER.fullmatch(text) or float(text) < _EPOCH_SECONDS:
        return _moment(text, clock)
    number = float(text)
    at = number / 1000 if number >= _EPOCH_SECONDS * 1000 else number
    return max(at - clock.timestamp(), 0.0)


def _rate_limit(text: str) -> float | None:
    """Return the wait in ``RateLimit``: ``"api";r=0;t=240`` and its list, or the older ``remaining=0, reset=240``.

    Of several policies those with nothing remaining count, the longest of them.
    """
    plain = _QUOTED.sub("_", text.lower())
    if "reset" in plain:
        pairs = dict(_PAIR.findall(plain))
        return float(pairs["reset"]) if "reset" in pairs else None
    policies = [dict(_PAIR.findall(policy)) for policy in plain.split(",")]
    waits = [(float(policy.get("r", "0")), float(policy["t"])) for policy in policies if "t" in policy]
    spent = [wait for remaining, wait in waits if remaining == 0]
    return max(spent or [wait for _, wait in waits], default=None)


def _date(text: str) -> datetime | None:
    """Return an HTTP date of any form, or an ISO one; None for another text."""
    if not text or len(text) > 64:
        return None
    try:
        found = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
        found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return found if math.isfinite(found.timestamp()) else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
