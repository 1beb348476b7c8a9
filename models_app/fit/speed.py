"""How fast a processor answers: a token reads every weight that works on it once, at the rate of the memory."""

_REACHED = 0.68
"""The part of the measured rate that an engine reaches."""

_TOKEN_SECONDS = 0.005
REPLY_TOKENS = 400
SLOW_SECONDS = 120.0
"""A reply of so many tokens that takes longer than this is asked about first."""


def tokens_per_second(active_bytes: int | None, bytes_per_second: int | None) -> float | None:
    """Tokens of one reply a second; None when the weights or the memory's rate are not known."""
    if active_bytes is None or not bytes_per_second:
        return None
    return 1.0 / (active_bytes / (_REACHED * bytes_per_second) + _TOKEN_SECONDS)


def reply_seconds(rate: float | None) -> float | None:
    """How long an ordinary reply takes at `rate` tokens a second."""
    return None if not rate else REPLY_TOKENS / rate


def is_slow(rate: float | None) -> bool:
    """Whether a reply takes minutes."""
    seconds = reply_seconds(rate)
    return seconds is not None and seconds > SLOW_SECONDS
