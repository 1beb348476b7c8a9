"""The choice of the replica that takes a request: least busy or by affinity key, without replicas that keep failing."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from models_app.gateway.table import RouteEntry

FAILURES_TO_EJECT = 3
EJECT_SECONDS = 5.0
EJECT_LONGEST_SECONDS = 60.0
LOAD_BOUND = 1.25
"""Affinity is ignored for a replica with at least this many times the mean of requests in flight, plus one."""
_PREFIX_BYTES = 512
_PREFIX_SEARCH_BYTES = 64 * 1024
_MAX_EJECTIONS = 10


@dataclass(slots=True)
class _ReplicaHealth:
    failures: int = 0
    ejections: int = 0
    ejected_until: float = 0.0
    probing: bool = False


class Balancer:
    """The load and the health of replicas, by placement id. `now` returns monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._in_flight: dict[str, int] = {}
        self._health: dict[str, _ReplicaHealth] = {}
        self._turn = 0

    @property
    def in_flight(self) -> Mapping[str, int]:
        """Return the requests in flight by placement id, without placements that have none."""
        return self._in_flight

    @property
    def ejected(self) -> frozenset[str]:
        """Return the placement ids that receive probes only."""
        return frozenset(placement for placement, health in self._health.items() if health.ejections)

    def pick(self, routes: Sequence[RouteEntry], affinity: bytes | None = None) -> RouteEntry:
        """Return one of `routes`, at least one. Equal `affinity` values get the same one while its load allows."""
        if len(routes) == 1:
            return routes[0]
        usable = [route for route in routes if self._may_take(route.placement_id)]
        if not usable:
            usable = list(routes)  # all are ejected: a request that may fail is better than one refused
        if affinity is not None:
            return self._pick_by_affinity(usable, affinity)
        self._turn += 1
        turned = usable[self._turn % len(usable) :] + usable[: self._turn % len(usable)]
        return min(turned, key=lambda route: self._in_flight.get(route.placement_id, 0))

    def enter(self, placement_id: str) -> bool:
        """Count a request that is sent to the placement. Return whether it is the probe of an ejected one."""
        self._in_flight[placement_id] = self._in_flight.get(placement_id, 0) + 1
        health = self._health.get(placement_id)
        if health is None or not health.ejections or health.probing:
            return False
        health.probing = True
        return True

    def leave(self, placement_id: str, *, probe: bool = True) -> None:
        """Count the end of a request, whether it succeeded or failed. `probe` is the result of `enter`."""
        left = self._in_flight[placement_id] - 1
        if left:
            self._in_flight[placement_id] = left
        else:
            del self._in_flight[placement_id]
        health = self._health.get(placement_id)
        if health is not None and probe:
            health.probing = False

    def succeeded(self, placement_id: str) -> None:
        """Forget the failures of a placement that responded."""
        if self._health:
            self._health.pop(placement_id, None)

    def failed(self, placement_id: str) -> None:
        """Count a failure. Several in a row eject the placement, each time for longer."""
        health = self._health.setdefault(placement_id, _ReplicaHealth())
        health.failures += 1
        if health.failures >= FAILURES_TO_EJECT or health.ejections:
            health.ejected_until = self._now() + min(EJECT_LONGEST_SECONDS, EJECT_SECONDS * 2**health.ejections)
            health.ejections = min(health.ejections + 1, _MAX_EJECTIONS)
            health.failures = 0

    def keep_only(self, placement_ids: frozenset[str]) -> None:
        """Forget the health of all other placements."""
        for placement_id in [p for p in self._health if p not in placement_ids]:
            del self._health[placement_id]

    def _may_take(self, placement_id: str) -> bool:
        health = self._health.get(placement_id)
        if health is None or not health.ejections:
            return True
        return not health.probing and self._now() >= health.ejected_until  # half open: one probe at a time

    def _pick_by_affinity(self, usable: Sequence[RouteEntry], affinity: bytes) -> RouteEntry:
        mean = sum(self._in_flight.get(route.placement_id, 0) for route in usable) / len(usable)
        bound = LOAD_BOUND * mean + 1
        # Rendezvous hashing: a replica that is added or removed moves only the keys that it wins or held.
        ranked = sorted(usable, key=lambda route: _rank(affinity, route.placement_id), reverse=True)
        # The least busy replica has no more than the mean, so one is always below the bound.
        return next(route for route in ranked if self._in_flight.get(route.placement_id, 0) < bound)


def _rank(affinity: bytes, placement_id: str) -> bytes:
    return hashlib.blake2b(affinity + placement_id.encode(), digest_size=8).digest()


def prompt_prefix(body: bytes | bytearray) -> bytes | None:
    """Return the first bytes of the messages or prompt of a request, None when it has neither near its start."""
    for name in (b'"messages"', b'"prompt"', b'"input"'):
        start = body.find(name, 0, _PREFIX_SEARCH_BYTES)
        if start >= 0:
            return bytes(body[start : start + _PREFIX_BYTES])
    return None
