"""The address of the client, through the proxies that the operator trusts and no others."""

import ipaddress
from functools import lru_cache
from typing import Any

from mirbad.kernel.conf import settings

UNKNOWN = "unknown"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(maxsize=4)
def networks(names: tuple[str, ...]) -> tuple[Network, ...]:
    """Return `MIRBAD_TRUSTED_PROXIES` as networks. ValueError names an invalid entry."""
    return tuple(ipaddress.ip_network(name, strict=False) for name in names)


def _is_trusted(address: str, trusted: tuple[Network, ...]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(mapped in network for network in trusted)


def known_client_address(request: Any) -> str | None:
    """Return `client_address`, or None where there is none (a Unix socket): a column of addresses accepts no text for
    it.
    """
    address = client_address(request)
    return None if address == UNKNOWN else address


def client_address(request: Any) -> str:
    """Return the peer's address, or, when the peer is a trusted proxy, the nearest untrusted one of
    ``X-Forwarded-For``.

    Read from the right: entries that a client writes into the header itself are left of those that our proxies add. An
    entry that is not an address ends the search at the last address known.
    """
    peer = str(request.META.get("REMOTE_ADDR") or UNKNOWN)
    trusted = networks(settings().trusted_proxies)
    if not _is_trusted(peer, trusted):
        return peer
    for entry in reversed(str(request.META.get("HTTP_X_FORWARDED_FOR", "")).split(",")):
        candidate = entry.strip()
        try:
            ipaddress.ip_address(candidate)
        except ValueError:
            return peer
        peer = candidate
        if not _is_trusted(candidate, trusted):
            return peer
    return peer
