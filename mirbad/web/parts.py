"""Values for view-models: badges, bars, and text for numbers. Pure; None is shown as "not reported"."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from mirbad.kernel import sizes

NOT_REPORTED = "not reported"

Tone = Literal["ok", "busy", "warn", "bad", "idle", "unknown"]


@dataclass(frozen=True, slots=True)
class Badge:
    """A state: text and icon tell it, the tone only supports them."""

    label: str
    tone: Tone
    icon: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A share of something. With `value` None the bar is empty and shows "not reported"."""

    label: str
    value: int | None
    maximum: int | None
    text: str
    short: str = ""
    judged: bool = True
    """False when a full bar is no reason for a warning, such as for a busy CPU."""

    @property
    def known(self) -> bool:
        """Return whether there is a value to draw."""
        return self.value is not None and bool(self.maximum)

    @property
    def percent(self) -> int | None:
        """Return whole percent, or None when unknown."""
        if self.value is None or not self.maximum:
            return None
        return round(100 * self.value / self.maximum)

    @property
    def high(self) -> int:
        """The value from which the bar is nearly full."""
        return round((self.maximum or 0) * 0.85)

    @property
    def very_high(self) -> int:
        """The value from which the bar is practically full."""
        return round((self.maximum or 0) * 0.95)


@dataclass(frozen=True, slots=True)
class Attention:
    """A problem that needs an operator, and the page on which to act."""

    tone: Tone
    icon: str
    title: str
    detail: str
    url: str
    action: str
    since: datetime | None = None


def memory_bar(label: str, used: int | None, total: int | None) -> Bar:
    """Return a bar of memory: ``12.1 of 24.0 GiB``."""
    if total is None:
        return Bar(label, None, None, NOT_REPORTED if used is None else f"{size(used)} used, total {NOT_REPORTED}")
    if used is None:
        return Bar(label, None, total, f"{size(total)}, use {NOT_REPORTED}")
    return Bar(label, used, total, f"{size(used)} of {size(total)}", _pair(used, total))


def percent_bar(label: str, percent: float | None, more: str = "") -> Bar:
    """Return a bar of a share that is known in percent only; `more` is shown beside it."""
    if percent is None:
        return Bar(label, None, None, NOT_REPORTED)
    text = f"{percent:.0f} %"
    return Bar(label, round(percent), 100, f"{text} · {more}" if more else text, text, judged=False)


def _pair(used: int, total: int) -> str:
    """Return ``12.1 / 24 GiB``: one unit for both, the total's."""
    words, unit = size(total).rsplit(" ", 1)
    scale = 1024 ** sizes.UNITS.index(unit)
    return f"{used / scale:.{0 if unit == 'B' else 1}f} / {words} {unit}"


def gpu_words(label: str, name: str | None, memory_bytes: int | None) -> str:
    """Return a GPU as a choice: ``GPU 1 · NVIDIA L4 · 24 GiB``; `label` is that of `agent.common.gpu_label`."""
    return f"{label} · {name or 'name not reported'} · {size(memory_bytes)}"


def size(value: Any) -> str:
    """Return bytes in binary units, three digits at most: ``145 MiB``, ``23.6 GiB``."""
    return NOT_REPORTED if value is None or isinstance(value, str) else sizes.size(value)


def span(value: Any) -> str:
    """Return a short duration: ``4.2 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d``."""
    if value is None:
        return NOT_REPORTED
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole // 60, "min", whole % 60, "s")
    if whole < 86400:
        return _two(whole // 3600, "h", whole % 3600 // 60, "min")
    return _two(whole // 86400, "d", whole % 86400 // 3600, "h") if whole < 7 * 86400 else f"{whole // 86400} d"


def _two(first: int, unit: str, second: int, small: str) -> str:
    return f"{first} {unit} {second} {small}" if second else f"{first} {unit}"


def ago(moment: datetime | None, now: datetime) -> str:
    """Return the time since `moment`, or until it."""
    if moment is None:
        return "never"
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 5:
        return "just now"
    words = _coarse(abs(seconds))
    return f"{words} ago" if seconds > 0 else f"in {words}"


def _coarse(seconds: float) -> str:
    for limit, divisor, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // divisor)} {unit}"
    return f"{int(seconds // 86400)} d"


def fingerprint(spki: str) -> tuple[str, ...]:
    """Return a SHA-256 in hex as 16 groups of 4, easy to compare by eye."""
    return tuple(spki[i : i + 4] for i in range(0, len(spki), 4))


def plural(count: int, one: str, many: str = "") -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"{count} {one if count == 1 else many or one + 's'}"
