"""Addresses to listen on."""

import socket

EVERY_ADDRESS = "::"
"""Every IPv6 and every IPv4 address."""


def host_of(bind: str) -> str:
    """Return the host for `create_server`: "" for every address, since a socket on ``::`` takes no IPv4 there."""
    bare = bind[1:-1] if bind.startswith("[") and bind.endswith("]") else bind
    return "" if bare == EVERY_ADDRESS else bare


def sockets_of(bind: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    """Return family and address of each socket that a server on `bind` opens. Raises socket.gaierror."""
    found = socket.getaddrinfo(host_of(bind) or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((int(family), tuple(address)) for family, _, _, _, address in found))
