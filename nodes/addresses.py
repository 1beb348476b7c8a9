"""Agent addresses: the ones that the master may connect to, and the ones of this machine."""

import errno
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable

import psutil

from mirbad.kernel.conf import settings
from mirbad.kernel.errors import InvalidRequest

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str], Iterable[str]]

_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?")
_THIS_NETWORK = ipaddress.ip_network("0.0.0.0/8")


class BadAddress(InvalidRequest):
    """The master must not connect to this address; the sentence gives the reason and the fix."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, problems=[{"code": "address_invalid", "message": detail, "field": "address"}])


def canonical(address: IPAddress) -> IPAddress:
    """Return an IPv4 address that is mapped into IPv6 as IPv4; any other address unchanged."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def resolve(host: str) -> list[str]:
    """Return the addresses of `host` from the resolver. Raises OSError."""
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})


def problem_of(address: IPAddress, *, loopback_allowed: bool) -> str | None:
    """Return the reason why `address` cannot be an agent's, as the end of a sentence; None when it can."""
    plain = canonical(address)
    if plain.is_loopback:
        return None if loopback_allowed else "is a loopback address, which is the master itself"
    if plain.is_unspecified or plain in _THIS_NETWORK:
        return "is not a host address"
    if plain.is_multicast or str(plain) == "255.255.255.255":
        return "is a multicast or broadcast address"
    if plain.is_link_local:
        return "is a link-local address, which is valid on one link only"
    if isinstance(plain, ipaddress.IPv4Address) and plain.is_reserved:
        return "is a reserved address"
    return None


def check(host: str, port: int, *, loopback_allowed: bool, resolver: Resolve = resolve) -> str:
    """Return `host` (an address or a DNS name) in the form that is stored. Raises BadAddress.

    A name is resolved once and every address behind it must pass; a port of the master itself is refused.
    """
    text = host.strip().strip("[]")
    try:
        found = [ipaddress.ip_address(text)]
        stored = str(canonical(found[0]))
    except ValueError:
        found = _resolved(text, resolver)
        stored = text.lower().removesuffix(".")
    for address in found:
        if "%" in str(address):
            raise BadAddress(f"The agent address {text} names a network interface. Use the machine's address.")
        if problem := problem_of(address, loopback_allowed=loopback_allowed):
            raise BadAddress(f"The agent address {text} {problem}. Use the machine's address.")
        if port in master_ports() and is_own(address):
            raise BadAddress(f"Port {port} on {text} belongs to the master. Use the port that the agent listens on.")
    return stored


def _resolved(name: str, resolver: Resolve) -> list[IPAddress]:
    if not _HOST_NAME.fullmatch(name) or name.replace(".", "").isdigit():
        raise BadAddress("The agent address must be an IP address or a host name, without scheme or port.")
    try:
        found = [ipaddress.ip_address(text) for text in resolver(name)]
    except (OSError, UnicodeError) as error:
        raise BadAddress(f"The host name {name} does not resolve on the master. Use an IP address.") from error
    if not found:
        raise BadAddress(f"The host name {name} does not resolve on the master. Use an IP address.")
    return found


def master_ports() -> frozenset[int]:
    """Return the ports on which this master serves."""
    configured = settings()
    return frozenset({configured.port, configured.enroll_port})


def is_own(address: IPAddress) -> bool:
    """Return whether `address` belongs to this machine: only such an address can be bound."""
    plain = canonical(address)
    if plain.is_loopback:
        return True
    family = socket.AF_INET6 if plain.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(plain), 0))
    except OSError as error:
        return error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
    return True


def own_addresses() -> frozenset[str]:
    """Return the addresses of this machine's interfaces, without link-local ones."""
    found = set()
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family in {socket.AF_INET, socket.AF_INET6} and "%" not in entry.address:
                address = ipaddress.ip_address(entry.address)
                if not address.is_link_local:
                    found.add(str(address))
    return frozenset(found)
