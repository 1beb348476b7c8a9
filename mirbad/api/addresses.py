"""The address of the client, through the proxies that the operator trusts and no others."""

import ipaddress
from functools import lru_cache
from typing import Any

from mirbad.kernel.conf import settings

UNKNOWN = "unknown"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(maxsize=4)
def networks(names: tuple[str, ...]) -> tuple[Network, ...]:
    """`MIRBAD_TRUSTED_PROXIES` as networks. ValueError names the entry that is none."""
    return tuple(ipaddress.ip_network(name, strict=False) for name in names)


def _is_trusted(address: str, trusted: tuple[Network, ...]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(mapped in network for network in trusted)


def known_client_address(request: Any) -> str | None:
    """`client_address`, or None where there is none (a unix socket): a column of addresses takes no word for it."""
    address = client_address(request)
    return None if address == UNKNOWN else address


def client_address(request: Any) -> str:
    """The peer's address, or, when the peer is a trusted proxy, the nearest untrusted one of ``X-Forwarded-For``.

    Read from the right: whatever a client writes into the header itself stands left of what our proxies add. An entry
    that is no address ends the walk at the last address that is known.
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
