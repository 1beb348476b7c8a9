"""Which replica takes a request: the least busy, the familiar one if asked for, none that failed again and again."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from models_app.gateway.table import Route

FAILURES_TO_EJECT = 3
EJECT_SECONDS = 5.0
EJECT_LONGEST_SECONDS = 60.0
LOAD_BOUND = 1.25
"""A familiar replica is passed over when it has more than this many times the mean, and one, in flight."""
_PREFIX_BYTES = 512


@dataclass(slots=True)
class _Health:
    failures: int = 0
    ejections: int = 0
    until: float = 0.0
    probing: bool = False


class Balance:
    """Counts exchanges under way and failures, by placement. `now` is monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._flight: dict[str, int] = {}
        self._health: dict[str, _Health] = {}
        self._turn = 0

    @property
    def flight(self) -> Mapping[str, int]:
        """Exchanges under way by placement."""
        return self._flight

    @property
    def ejected(self) -> frozenset[str]:
        """Placements that get no requests now but probes."""
        return frozenset(placement for placement, health in self._health.items() if health.ejections)

    def pick(self, routes: Sequence[Route], familiar: bytes | None = None) -> Route:
        """One of `routes` (at least one). With `familiar`, equal values go to the same one while its load allows."""
        if len(routes) == 1:
            return routes[0]
        usable = [route for route in routes if self._may_take(route.placement_id)]
        if not usable:
            usable = list(routes)  # all failed: better one that may fail than none
        if familiar is not None:
            return self._familiar(usable, familiar)
        self._turn += 1
        turned = usable[self._turn % len(usable) :] + usable[: self._turn % len(usable)]
        return min(turned, key=lambda route: self._flight.get(route.placement_id, 0))

    def enter(self, placement_id: str) -> None:
        """An exchange begins."""
        self._flight[placement_id] = self._flight.get(placement_id, 0) + 1
        health = self._health.get(placement_id)
        if health is not None and health.ejections:
            health.probing = True

    def leave(self, placement_id: str) -> None:
        """An exchange is over, however."""
        left = self._flight[placement_id] - 1
        if left:
            self._flight[placement_id] = left
        else:
            del self._flight[placement_id]
        health = self._health.get(placement_id)
        if health is not None:
            health.probing = False

    def succeeded(self, placement_id: str) -> None:
        """The replica answered."""
        if self._health:
            self._health.pop(placement_id, None)

    def failed(self, placement_id: str) -> None:
        """The replica did not answer as it should. Some in a row eject it, for longer each time."""
        health = self._health.setdefault(placement_id, _Health())
        health.failures += 1
        if health.failures >= FAILURES_TO_EJECT or health.ejections:
            health.until = self._now() + min(EJECT_LONGEST_SECONDS, EJECT_SECONDS * 2**health.ejections)
            health.ejections = min(health.ejections + 1, 10)
            health.failures = 0

    def keep_only(self, placement_ids: frozenset[str]) -> None:
        """Forget placements that are no more."""
        for placement_id in [p for p in self._health if p not in placement_ids]:
            del self._health[placement_id]

    def _may_take(self, placement_id: str) -> bool:
        health = self._health.get(placement_id)
        if health is None or not health.ejections:
            return True
        return not health.probing and self._now() >= health.until  # half open: one at a time tries it

    def _familiar(self, usable: Sequence[Route], value: bytes) -> Route:
        mean = sum(self._flight.get(route.placement_id, 0) for route in usable) / len(usable)
        bound = LOAD_BOUND * mean + 1
        ranked = sorted(usable, key=lambda route: _rank(value, route.placement_id), reverse=True)
        for route in ranked:
            if self._flight.get(route.placement_id, 0) < bound:
                return route
        return ranked[0]


def _rank(value: bytes, placement_id: str) -> bytes:
    return hashlib.blake2b(value + placement_id.encode(), digest_size=8).digest()


def prompt_prefix(body: bytes) -> bytes | None:
    """The beginning of a request's messages or prompt, None when it has neither near its front."""
    for mark in (b'"messages"', b'"prompt"', b'"input"'):
        at = body.find(mark, 0, 64 * 1024)
        if at >= 0:
            return body[at : at + _PREFIX_BYTES]
    return None
