"""The limits of keys, in the memory of one process: buckets that fill evenly, and a count of open requests. Pure."""

import math
from dataclasses import dataclass, field

from models_app.gateway import refusals
from models_app.gateway.table import Key

MINUTE_SECONDS = 60.0
PARALLEL_RETRY_SECONDS = 1
_FORGET_AT = 10_000


@dataclass(slots=True)
class _Bucket:
    """Holds up to a minute's worth; may go below zero when more was used than was known before."""

    level: float
    at: float

    def fill(self, per_minute: int, now: float) -> None:
        self.level = min(float(per_minute), self.level + (now - self.at) * per_minute / MINUTE_SECONDS)
        self.at = now


@dataclass(slots=True)
class _Use:
    open: int = 0
    requests: _Bucket | None = None
    tokens: _Bucket | None = None
    seen_at: float = field(default=0.0)


class Limiter:
    """Counts what keys with limits use. `now` is monotonic seconds; keys without limits cost nothing."""

    def __init__(self) -> None:
        self._uses: dict[int, _Use] = {}

    def enter(self, key: Key, now: float) -> bool:
        """Let one request in; whether `leave` is due. Raises Refusal (429), which uses nothing up.

        Tokens are counted when an answer reports them, so the request that crosses that limit is still let in.
        """
        if key.requests_per_minute is None and key.tokens_per_minute is None and key.max_parallel is None:
            return False
        use = self._uses.get(key.id)
        if use is None:
            use = self._make_room(now)[key.id] = _Use()
        use.seen_at = now
        if key.max_parallel is not None and use.open >= key.max_parallel:
            raise refusals.over_limit("requests at a time", key.max_parallel, PARALLEL_RETRY_SECONDS)
        if (per_minute := key.tokens_per_minute) is not None:
            use.tokens = _filled(use.tokens, per_minute, now)
            if use.tokens.level <= 0:
                wait = (1 - use.tokens.level) * MINUTE_SECONDS / per_minute
                raise refusals.over_limit("tokens a minute", per_minute, _whole(wait))
        if (per_minute := key.requests_per_minute) is not None:
            use.requests = _filled(use.requests, per_minute, now)
            if use.requests.level < 1:
                wait = (1 - use.requests.level) * MINUTE_SECONDS / per_minute
                raise refusals.over_limit("requests a minute", per_minute, _whole(wait))
            use.requests.level -= 1
        use.open += 1
        return True

    def leave(self, key: Key, tokens: int) -> None:
        """A request that was let in is over and has used `tokens`."""
        use = self._uses[key.id]
        use.open -= 1
        if use.tokens is not None:
            use.tokens.level -= tokens

    def _make_room(self, now: float) -> dict[int, _Use]:
        # Who was silent for a minute has full buckets again, unless it is in debt; that debt is small change.
        if len(self._uses) >= _FORGET_AT:
            self._uses = {k: u for k, u in self._uses.items() if u.open or now - u.seen_at < MINUTE_SECONDS}
        return self._uses


def _filled(bucket: _Bucket | None, per_minute: int, now: float) -> _Bucket:
    if bucket is None:
        return _Bucket(float(per_minute), now)
    bucket.fill(per_minute, now)
    return bucket


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds - 1e-6))  # what rounding left over is not a second more
