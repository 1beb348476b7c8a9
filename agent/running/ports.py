"""Free ports for engines, on loopback."""

import random
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from agent.deliveries.base import DeliveryFailed

LOOPBACK = "127.0.0.1"
_FIRST = 20_000
_TRIES = 200
_TAKEN = re.compile(r"address already in use|couldn't bind|could not bind|cannot listen|errno 98", re.IGNORECASE)


def _end() -> int:
    """Return the first port of the kernel's range for outgoing connections, which would compete with engines."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768
    return first if first > _FIRST + 1_000 else 60_000


def is_free(port: int) -> bool:
    """Return whether nothing listens on the port on any address."""
    for host in (LOOPBACK, "0.0.0.0"):  # noqa: S104  a check, not a listener
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


def are_reported_taken(lines: Iterable[str]) -> bool:
    """Return whether an engine wrote in `lines` that its port is taken."""
    return any(_TAKEN.search(line) for line in lines)


def choose_within(first: int, last: int, taken: set[int]) -> int:
    """Choose a free port from `first` to `last` that is not in `taken`. DeliveryFailed when there is none."""
    free = [port for port in range(first, last + 1) if port not in taken]
    # Not the first one: a peer of the last user may still connect there.
    random.shuffle(free)
    for port in free:
        if is_free(port):
            return port
    raise DeliveryFailed(
        f"No port between {first} and {last} is free on this node for the rendezvous of shards (rendezvous_ports).",
        code="port_unavailable",
    )


def choose(taken: set[int]) -> int:
    """Choose a free port that is not in `taken`. DeliveryFailed when none is found."""
    end = _end()
    for _ in range(_TRIES):
        port = random.randrange(_FIRST, end)  # noqa: S311  not a secret
        if port not in taken and is_free(port):
            return port
    raise DeliveryFailed(f"No free port was found between {_FIRST} and {end} on this node.", code="port_unavailable")
