"""The connections of each client address: at most so many, and an idle one makes space for a new one."""

import ipaddress
from collections.abc import Sequence
from typing import Protocol

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class IdleClosable(Protocol):
    """A connection that can be closed while no request is in progress. `used`: a request ended since the last look."""

    used: bool

    def close_idle(self) -> bool:
        """Close the connection if no request is in progress. Return whether it was closed."""


class SocketLimit:
    """The open connections by address. Addresses in `exempt` networks, which are proxies, have no limit."""

    def __init__(self, per_address: int, exempt: Sequence[str] = ()) -> None:
        self._limit = per_address
        self._exempt = [ipaddress.ip_network(name, strict=False) for name in exempt]
        self._open: dict[str, dict[IdleClosable, None]] = {}

    def enter(self, address: str, connection: IdleClosable) -> bool:
        """Count a connection. Return False, and count nothing, if the address has too many and none is idle."""
        key = self._key(address)
        if key is None:
            return True
        held = self._open.setdefault(key, {})
        if len(held) >= self._limit:
            idle = self._close_one(held)
            if idle is None:
                return False
            del held[idle]
        held[connection] = None
        return True

    def _close_one(self, held: dict[IdleClosable, None]) -> IdleClosable | None:
        """Close the connection that is idle for the longest time, nearly: those used since the last look get a turn."""
        for other in list(held):
            if other.used:
                other.used = False
                held[other] = held.pop(other)
            elif other.close_idle():
                return other
        return next((other for other in held if other.close_idle()), None)

    def leave(self, address: str, connection: IdleClosable) -> None:
        """Forget a connection, counted or not."""
        key = self._key(address)
        held = self._open.get(key) if key is not None else None
        if held is not None and key is not None:
            held.pop(connection, None)
            if not held:
                del self._open[key]

    def _key(self, address: str) -> str | None:
        """Return the name under which `address` is counted: an IPv6 client has a whole /64. None: no limit."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return None
        found = getattr(found, "ipv4_mapped", None) or found
        if any(found in network for network in self._exempt):
            return None
        return str(found) if found.version == 4 else str(ipaddress.ip_network((int(found), 64), strict=False))
