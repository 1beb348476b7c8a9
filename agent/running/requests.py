"""The relayed requests of each engine: those in progress, and those that its connection broke off.

When an engine ends, they are the requests that may have ended it.
"""

from collections import deque
from collections.abc import Callable

from agent import clock
from agent.wire.instances import BrokenRequest

SUSPECT_SECONDS = 30.0
"""Time after which a broken request has nothing to do with the end of its engine. A large one needs some to exit."""

MOST_SUSPECTS = 64


class EngineRequests:
    """Requests by instance. `on_broken` is called with the instance's id when its engine broke off a request.

    Belongs to the event loop of the relay.
    """

    def __init__(self) -> None:
        self.on_broken: Callable[[str], None] | None = None
        self._open: dict[str, dict[int, BrokenRequest]] = {}
        self._broken: dict[str, deque[tuple[float, BrokenRequest]]] = {}

    def begin(self, instance_id: str, request: BrokenRequest) -> None:
        """Add a request that is sent to the engine."""
        self._open.setdefault(instance_id, {})[id(request)] = request

    def end(self, instance_id: str, request: BrokenRequest) -> None:
        """Remove a request whose response has ended, or whose client has disconnected."""
        requests = self._open[instance_id]
        del requests[id(request)]
        if not requests:
            del self._open[instance_id]

    def broke(self, instance_id: str, request: BrokenRequest) -> None:
        """Note that the engine received the request and closed the connection before its response was complete."""
        self._broken.setdefault(instance_id, deque(maxlen=MOST_SUSPECTS)).append((clock.monotonic(), request))
        if self.on_broken is not None:
            self.on_broken(instance_id)

    def suspects(self, instance_id: str) -> tuple[BrokenRequest, ...]:
        """Return the requests that the engine had when it ended, and forget the broken ones."""
        since = clock.monotonic() - SUSPECT_SECONDS
        broken = [request for at, request in self._broken.pop(instance_id, ()) if at >= since]
        found = {id(request): request for request in broken} | self._open.get(instance_id, {})
        return tuple(found.values())[:MOST_SUSPECTS]
