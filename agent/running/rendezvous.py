"""The rendezvous of a shard as seen from this machine: its own address on the way there, its adapters by kind."""

import contextlib
import socket
from pathlib import Path

import psutil

from agent import fabrics
from agent.runtimes.base import LocalRendezvous
from agent.wire.instances import Rendezvous

_ANY_PORT = 9


def localize(rendezvous: Rendezvous, port: int, sysfs: Path) -> LocalRendezvous:
    """Return `rendezvous` with this machine's details. `port` is that of rank 0. Blocks for a name lookup only."""
    own = own_address(rendezvous.address)
    devices = set(fabrics.infiniband(sysfs))
    return LocalRendezvous(
        name=rendezvous.meeting,
        rank=rendezvous.rank,
        world_size=rendezvous.world_size,
        address=rendezvous.address,
        port=port,
        own_address=own,
        interface=interface_of(own) if own else None,
        devices=tuple(adapter for adapter in rendezvous.adapters if adapter in devices),
        interfaces=tuple(adapter for adapter in rendezvous.adapters if adapter not in devices),
    )


def own_address(towards: str) -> str | None:
    """Return this machine's address on the route to `towards`, None when there is no route. Sends nothing."""
    try:
        family, _, _, _, target = socket.getaddrinfo(towards, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_of(address: str) -> str | None:
    """Return the network interface that has `address`, None when none has."""
    with contextlib.suppress(OSError, psutil.Error):
        for name, entries in psutil.net_if_addrs().items():
            if any(entry.address.partition("%")[0] == address for entry in entries):
                return name
    return None
