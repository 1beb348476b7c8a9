"""Rate limits of the enroll listener: per peer and for all together. Counted by socket peer, in memory."""

import ipaddress
from collections import OrderedDict, deque
from collections.abc import Callable

WINDOW_SECONDS = 60.0
_PEERS_KEPT = 10_000


def peer_group(address: str) -> str:
    """Return the key that one peer counts under: an IPv4 address, or the /64 that an IPv6 host owns anyway."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


class EnrollLimiter:
    """A sliding minute for each peer and one for all. `clock` counts seconds and never goes back."""

    def __init__(self, per_peer: int, overall: int, clock: Callable[[], float]) -> None:
        self._per_peer = per_peer
        self._overall = overall
        self._clock = clock
        self._all: deque[float] = deque()
        self._peers: OrderedDict[str, deque[float]] = OrderedDict()

    def admit(self, address: str) -> float:
        """Return 0 when the request may pass (it is then counted), else the seconds until one may."""
        now = self._clock()
        group = peer_group(address)
        times = self._peers.setdefault(group, deque())
        self._peers.move_to_end(group)
        if len(self._peers) > _PEERS_KEPT:
            self._peers.popitem(last=False)
        # A refused peer does not use up the shared limit, so that one peer cannot lock out the others.
        for queue, limit in ((times, self._per_peer), (self._all, self._overall)):
            while queue and queue[0] <= now - WINDOW_SECONDS:
                queue.popleft()
            if len(queue) >= limit:
                return queue[-limit] + WINDOW_SECONDS - now
        times.append(now)
        self._all.append(now)
        return 0.0
