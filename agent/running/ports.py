"""Free ports for engines, on loopback."""

import random
import socket
from pathlib import Path

from agent.deliveries.base import DeliveryFailed

LOOPBACK = "127.0.0.1"
_FIRST = 20_000
_TRIES = 200


def _end() -> int:
    """The first port that the kernel gives to outgoing connections, which may take it before an engine listens."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768
    return first if first > _FIRST + 1_000 else 60_000


def is_free(port: int) -> bool:
    """Whether nothing listens on the port on any address."""
    for host in (LOOPBACK, "0.0.0.0"):  # noqa: S104  a look, not a listener
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


def choose_within(first: int, last: int, taken: set[int]) -> int:
    """A port from `first` to `last` that nothing listens on and that is not in `taken`. DeliveryFailed when none is."""
    free = [port for port in range(first, last + 1) if port not in taken]
    # Not the first one: what ended a moment ago may still be looked for there.
    random.shuffle(free)
    for port in free:
        if is_free(port):
            return port
    raise DeliveryFailed(
        f"No port is free between {first} and {last} on this node, where shards meet (rendezvous_ports).",
        code="port_unavailable",
    )


def choose(taken: set[int]) -> int:
    """A port that nothing listens on and that is not in `taken`. DeliveryFailed when none is found."""
    end = _end()
    for _ in range(_TRIES):
        port = random.randrange(_FIRST, end)  # noqa: S311  not a secret
        if port not in taken and is_free(port):
            return port
    raise DeliveryFailed(f"No free port was found between {_FIRST} and {end} on this node.", code="port_unavailable")
