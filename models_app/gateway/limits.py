"""The limits of API keys and of one process, in its memory: token buckets, open requests, places, bytes. Pure."""

import math
from dataclasses import dataclass

from models_app.gateway import errors
from models_app.gateway.table import KeyEntry
from models_app.gateway.usage import TokenUsage

MINUTE_SECONDS = 60.0
BYTES_A_TOKEN = 4
PARALLEL_RETRY_SECONDS = 1
BODIES_RETRY_SECONDS = 2
_SCARCE_PART = 8
"""Places are scarce when an eighth of them or fewer is free."""
_FORGET_AT = 10_000


@dataclass(slots=True)
class _Bucket:
    """A token bucket for one minute; below zero after a response that used more than was left."""

    level: float
    at: float

    def fill(self, per_minute: int, now: float) -> None:
        self.level = min(float(per_minute), self.level + (now - self.at) * per_minute / MINUTE_SECONDS)
        self.at = now


@dataclass(slots=True)
class _KeyUse:
    last_at: float
    open: int = 0
    requests: _Bucket | None = None
    tokens: _Bucket | None = None


class KeyLimiter:
    """The use of keys with limits; keys without limits cost nothing. `now` is in monotonic seconds."""

    def __init__(self) -> None:
        self._uses: dict[int, _KeyUse] = {}

    def enter(self, key: KeyEntry, now: float) -> bool:
        """Admit a request. Return whether `leave` must be called for it. Raises GatewayError (429), which uses nothing.

        Tokens are counted when a response reports them, so the request that exceeds their limit is still admitted.
        """
        if key.requests_per_minute is None and key.tokens_per_minute is None and key.max_parallel is None:
            return False
        use = self._uses.get(key.id)
        if use is None:
            self._forget_idle(now)
            use = self._uses[key.id] = _KeyUse(now)
        use.last_at = now
        if key.max_parallel is not None and use.open >= key.max_parallel:
            raise errors.over_limit("concurrent requests", key.max_parallel, PARALLEL_RETRY_SECONDS)
        if (per_minute := key.tokens_per_minute) is not None:
            use.tokens = _filled(use.tokens, per_minute, now)
            if use.tokens.level <= 0:
                wait = (1 - use.tokens.level) * MINUTE_SECONDS / per_minute
                raise errors.over_limit("tokens per minute", per_minute, _whole_seconds(wait))
        if (per_minute := key.requests_per_minute) is not None:
            use.requests = _filled(use.requests, per_minute, now)
            if use.requests.level < 1:
                wait = (1 - use.requests.level) * MINUTE_SECONDS / per_minute
                raise errors.over_limit("requests per minute", per_minute, _whole_seconds(wait))
            use.requests.level -= 1
        use.open += 1
        return True

    def leave(self, key: KeyEntry, tokens: int) -> None:
        """End an admitted request that used `tokens`."""
        use = self._uses[key.id]
        use.open -= 1
        if use.tokens is not None:
            use.tokens.level -= tokens

    def _forget_idle(self, now: float) -> None:
        # After an idle minute the buckets of a key are full again. A token debt is forgotten with them: it is small.
        if len(self._uses) >= _FORGET_AT:
            self._uses = {k: u for k, u in self._uses.items() if u.open or now - u.last_at < MINUTE_SECONDS}


def _filled(bucket: _Bucket | None, per_minute: int, now: float) -> _Bucket:
    if bucket is None:
        return _Bucket(float(per_minute), now)
    bucket.fill(per_minute, now)
    return bucket


def _whole_seconds(seconds: float) -> int:
    return max(1, math.ceil(seconds - 1e-6))  # a rounding error must not add a second


def tokens_spent(used: TokenUsage | None, key: KeyEntry, sent_bytes: int | None, events: int, *, left: bool) -> int:
    """Return the tokens of a response that count towards the limit of `key`: as reported, else estimated.

    So a client that leaves early, or an engine that reports nothing, saves none. `sent_bytes` is the size of the body
    that an engine works on, None if none does; each of `events` carries about one token.
    """
    prompt, completion = (None, None) if used is None else (used.prompt, used.completion)
    if sent_bytes is not None and key.tokens_per_minute is not None:
        if prompt is None:
            prompt = min(sent_bytes // BYTES_A_TOKEN, key.tokens_per_minute)  # a debt of a minute at most
        if left or completion is None:
            completion = max(completion or 0, events)
    return (prompt or 0) + (completion or 0)


class RequestPlaces:
    """The requests in flight of one process. When few places are free, a key gets no more than its share of all."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._by_key: dict[int, int] = {}
        self.taken = 0

    def enter(self, key_id: int) -> None:
        """Take a place. Raises GatewayError (503)."""
        free = self.total - self.taken
        if free <= 0:
            raise errors.busy()
        own = self._by_key.get(key_id, 0)
        if free <= self.total // _SCARCE_PART and own >= self.total // max(2, len(self._by_key) + (not own)):
            raise errors.over_share()
        self._by_key[key_id] = own + 1
        self.taken += 1

    def leave(self, key_id: int) -> None:
        """Give the place back."""
        self.taken -= 1
        left = self._by_key[key_id] - 1
        if left:
            self._by_key[key_id] = left
        else:
            del self._by_key[key_id]


class BodyBudget:
    """The bytes of large request bodies that wait in this process's memory, in all and by key."""

    def __init__(self, total_bytes: int, key_bytes: int) -> None:
        self._total, self._each = total_bytes, key_bytes
        self._by_key: dict[int, int] = {}
        self.held = 0

    def take(self, key_id: int, size: int) -> None:
        """Count `size` more bytes. Raises GatewayError (429, 503), which counts nothing."""
        own = self._by_key.get(key_id, 0) + size
        if own > self._each:
            raise errors.over_limit("bytes of request bodies at a time", self._each, BODIES_RETRY_SECONDS)
        if self.held + size > self._total:
            raise errors.too_many_bodies(BODIES_RETRY_SECONDS)
        self._by_key[key_id] = own
        self.held += size

    def give_back(self, key_id: int, size: int) -> None:
        """Count `size` bytes less."""
        self.held -= size
        left = self._by_key[key_id] - size
        if left:
            self._by_key[key_id] = left
        else:
            del self._by_key[key_id]
