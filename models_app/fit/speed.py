"""The speed of a processor: a token reads every weight that works on it once, at the bandwidth of the memory."""

_REACHED = 0.68
"""The fraction of the measured bandwidth that an engine reaches."""

_TOKEN_SECONDS = 0.005
REPLY_TOKENS = 400
SLOW_SECONDS = 120.0
"""A reply of `REPLY_TOKENS` that takes longer needs a confirmation before the start."""


def reached_bytes_per_second(machine: int | None, core: int | None, threads: int | None) -> int | None:
    """Return the read rate of an engine with so many `threads`: a core's rate for each, at most the machine's."""
    return machine if machine is None or core is None or not threads else min(machine, core * threads)


def tokens_per_second(active_bytes: int | None, bytes_per_second: int | None) -> float | None:
    """Return the tokens per second of one reply; None when the weights or the memory's bandwidth are unknown."""
    if active_bytes is None or not bytes_per_second:
        return None
    return 1.0 / (active_bytes / (_REACHED * bytes_per_second) + _TOKEN_SECONDS)


def reply_seconds(rate: float | None) -> float | None:
    """Return the seconds that an ordinary reply takes at `rate` tokens per second."""
    return None if not rate else REPLY_TOKENS / rate


def is_slow(rate: float | None) -> bool:
    """Return whether a reply takes minutes."""
    seconds = reply_seconds(rate)
    return seconds is not None and seconds > SLOW_SECONDS
