"""What a value of a setting may look like. Each check takes text, returns it, and raises ValueError with what to do.

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
_IMAGE = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")
_SHORTEST_SECRET_KEY = 32


def parse_duration(value: object) -> object:
    """``30s``, ``10m``, ``24h``, ``1h30m`` as a timedelta; anything else is left to the model to refuse."""
    if isinstance(value, str) and value.strip():
        text = value.strip()
        parts = _DURATION.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            try:
                return timedelta(seconds=sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts))
            except OverflowError:
                raise ValueError("this is longer than any time that can be counted") from None
        raise ValueError("give a duration such as 30s, 10m or 24h")
    return value


def split(value: object) -> object:
    """A list with commas as a tuple; anything else is left to the model to refuse."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def is_host(text: str) -> bool:
    """Whether `text` is a name of a machine or an address, without scheme and port."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST.fullmatch(text) is not None
    return True


def bind(text: str) -> str:
    """An address to listen on."""
    if not is_host(text):
        raise ValueError("give an address of this machine, such as 127.0.0.1 or 0.0.0.0")
    return text


def hosts(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names under which the master is opened: a host, ``.domain`` for all below it, ``[v6]``, or ``*``."""
    for name in names:
        bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name.removeprefix(".")
        if name != "*" and not is_host(bare):
            raise ValueError(f"give names and addresses without http:// and port, with commas; {name!r} is none")
    return names


def proxies(names: tuple[str, ...]) -> tuple[str, ...]:
    """Addresses or networks of proxies, never all of them."""
    for name in names:
        try:
            network = ipaddress.ip_network(name, strict=False)
        except ValueError:
            raise ValueError(f"give addresses or networks, with commas; {name!r} is none") from None
        if network.prefixlen == 0:
            raise ValueError(f"{name} trusts every address, so anyone could claim to be another client")
    return names


def secret_key(text: str) -> str:
    """A key that is long enough, or none."""
    if text and len(text) < _SHORTEST_SECRET_KEY:
        raise ValueError(
            f"give at least {_SHORTEST_SECRET_KEY} characters, or unset it: the master makes one in its data folder"
        )
    return text


def image(text: str) -> str:
    """A container image by digest, or none."""
    if text and not _IMAGE.fullmatch(text):
        raise ValueError("give repository@sha256:… with all 64 hex digits")
    return text


def database_url(text: str) -> str:
    """A URL of PostgreSQL, or none."""
    form = "give postgres://user:password@host:5432/name (special characters of the password percent-encoded)"
    if text:
        parts = _parts(text, {"postgres", "postgresql"}, form)
        if len(parts.path) <= len("/"):
            raise ValueError(form)
    return text


def redis_url(text: str) -> str:
    """A URL of Redis, or none."""
    form = "give redis://:password@host:6379/0, rediss://… or unix:///path"
    if text:
        parts = _parts(text, {"redis", "rediss", "unix"}, form)
        if not (parts.path if parts.scheme == "unix" else parts.hostname):
            raise ValueError(form)
    return text


def enroll_url(text: str) -> str:
    """The address of the enroll listener as nodes dial it, or none."""
    form = "give https://host:8443"
    if text and not _parts(text, {"https"}, form).hostname:
        raise ValueError(form)
    return text


def bundle_url(text: str) -> str:
    """The address of the pages as nodes dial it, or none."""
    form = "give https://host or http://host:8080"
    if text and not _parts(text, {"http", "https"}, form).hostname:
        raise ValueError(form)
    return text


def _parts(text: str, schemes: Iterable[str], form: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port  # read for its check alone
    except ValueError:
        raise ValueError(form) from None
    if parts.scheme not in schemes:
        raise ValueError(form)
    return parts
