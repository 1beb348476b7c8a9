"""Checks of setting values. Each takes text, returns it, and raises ValueError with the fix.

No sentence repeats the value of a secret.
"""

import ipaddress
import re
from collections.abc import Iterable
from datetime import timedelta
from urllib.parse import SplitResult, urlsplit

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_HOST = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
)
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_WITH_PORT = re.compile(r"(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<plain>[^:\[\]]+)):(?P<port>[0-9]{1,5})")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s,]+")
_IMAGE = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")
_SHORTEST_SECRET_KEY = 32


def parse_duration(value: object) -> object:
    """Parse ``30s``, ``10m``, ``24h``, ``1h30m`` to a timedelta; anything else is left to the model to refuse."""
    if isinstance(value, str) and value.strip():
        text = value.strip()
        parts = _DURATION.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            try:
                return timedelta(seconds=sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts))
            except OverflowError:
                raise ValueError("the duration is too long") from None
        raise ValueError("use a duration such as 30s, 10m or 24h")
    return value


def split(value: object) -> object:
    """Split a list with commas to a tuple; anything else is left to the model to refuse."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def is_host(text: str) -> bool:
    """Return whether `text` is a host name or an address, without scheme and port."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST.fullmatch(text) is not None
    return True


def bind(text: str) -> str:
    """Check an address to listen on, and return it in its short form without brackets."""
    form = "use an address of this machine: 127.0.0.1, 192.0.2.10, 0.0.0.0 for all of IPv4, or :: for all"
    try:
        parsed = ipaddress.ip_address(text[1:-1] if text.startswith("[") and text.endswith("]") else text)
    except ValueError:
        # A last part of digits makes a shortened address, such as 127.1, which no URL can hold.
        if not _HOST.fullmatch(text) or _NUMBER.fullmatch(text.rpartition(".")[2]):
            raise ValueError(form) from None
        return text.lower()
    address = getattr(parsed, "ipv4_mapped", None) or parsed
    if address.is_multicast or address.is_link_local or "%" in str(address) or str(address) == "255.255.255.255":
        raise ValueError(f"{address} belongs to one link or to a group; {form}")
    return str(address)


def bind_and_port(text: str) -> tuple[str, str]:
    """Split ``[::]:8000`` and ``0.0.0.0:8000`` into address and port; the port is empty when `text` has none."""
    found = _WITH_PORT.fullmatch(text.strip())
    return (found["bracketed"] or found["plain"], found["port"]) if found else (text.strip(), "")


def hosts(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check the names of the master: a host, ``.domain`` for all below it, an address, or ``*``.

    An IPv6 address may be given with or without brackets; it is returned in its short form with brackets.
    """
    for name in names:
        bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name.removeprefix(".")
        if name != "*" and not is_host(bare):
            raise ValueError(f"{name!r} is not valid; use names or addresses without http:// and port, with commas")
    return tuple(_in_brackets(name) for name in names)


def _in_brackets(name: str) -> str:
    return f"[{ipaddress.IPv6Address(name.strip('[]'))}]" if ":" in name else name


def proxies(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check addresses or networks of proxies, never all of them."""
    for name in names:
        try:
            network = ipaddress.ip_network(name, strict=False)
        except ValueError:
            raise ValueError(f"{name!r} is not valid; use addresses or networks, with commas") from None
        if network.prefixlen == 0:
            raise ValueError(f"{name} trusts every address, so anyone could pose as another client")
    return names


def origins(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check origins of web pages as browsers send them, or ``*`` for all."""
    for name in names:
        if name != "*" and not _ORIGIN.fullmatch(name):
            raise ValueError(f"{name!r} is not an origin; write https://chat.example or http://localhost:3000, or *")
    return tuple(name.lower() for name in names)


def secret_key(text: str) -> str:
    """Check that a key is long enough, or empty."""
    if text and len(text) < _SHORTEST_SECRET_KEY:
        raise ValueError(
            f"use at least {_SHORTEST_SECRET_KEY} characters, or unset it: the master creates one in its data folder"
        )
    return text


def image(text: str) -> str:
    """Check a container image by digest, or empty."""
    if text and not _IMAGE.fullmatch(text):
        raise ValueError("use repository@sha256:… with all 64 hex digits")
    return text


def database_url(text: str) -> str:
    """Check a URL of PostgreSQL, or empty."""
    form = "use postgres://user:password@host:5432/name (special characters of the password percent-encoded)"
    if text:
        parts = _parts(text, {"postgres", "postgresql"}, form)
        if len(parts.path) <= len("/"):
            raise ValueError(form)
    return text


def redis_url(text: str) -> str:
    """Check a URL of Redis, or empty."""
    form = "use redis://:password@host:6379/0, rediss://… or unix:///path"
    if text:
        parts = _parts(text, {"redis", "rediss", "unix"}, form)
        if not (parts.path if parts.scheme == "unix" else parts.hostname):
            raise ValueError(form)
    return text


def enroll_url(text: str) -> str:
    """Check the URL of the enroll listener for nodes, or empty."""
    form = "use https://host:8443"
    if text and not _parts(text, {"https"}, form).hostname:
        raise ValueError(form)
    return text


def bundle_url(text: str) -> str:
    """Check the URL of the pages for nodes, or empty."""
    form = "use https://host or http://host:8080"
    if text and not _parts(text, {"http", "https"}, form).hostname:
        raise ValueError(form)
    return text


def _parts(text: str, schemes: Iterable[str], form: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port  # parsed for its checks alone
    except ValueError:
        raise ValueError(form) from None
    if parts.scheme not in schemes:
        raise ValueError(form)
    return parts
