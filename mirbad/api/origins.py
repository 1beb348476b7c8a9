"""The address of this master as the person's browser has it, and proxies that change it on the way."""

import ipaddress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http.request import validate_host
from django.utils.http import is_same_domain

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host (IPv6 without brackets) and port of an address."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        port = "" if self.has_own_port else f":{self.port}"
        return f"{self.scheme}://{bracketed(self.host)}{port}"

    @property
    def has_own_port(self) -> bool:
        """Return whether the port is the scheme's own, which addresses leave out."""
        return self.port == _PORTS[self.scheme]

    @property
    def is_listed(self) -> bool:
        """Return whether MIRBAD_HOSTS lists the host."""
        return validate_host(bracketed(self.host), settings.ALLOWED_HOSTS)


def bracketed(host: str) -> str:
    """Return `host` as a URL holds it: an IPv6 address in brackets and in its short form."""
    try:
        parsed = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower()
    return f"[{parsed}]" if parsed.version == 6 else str(parsed)


def parse(text: str) -> Origin | None:
    """Return the origin in the header ``Origin``, None when there is none."""
    try:
        parts = urlsplit(text)
        if parts.scheme not in _PORTS or not parts.hostname:
            return None
        return Origin(parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme])
    except ValueError:
        return None


def of(request: Any) -> Origin | None:
    """Return the address that a request arrived with, None for a host that is not listed."""
    try:
        return parse(f"{request.scheme}://{request.get_host()}")
    except DisallowedHost:
        return None


def browser(request: Any) -> str:
    """Return ``scheme://host[:port]`` as the browser has it: a proxy may have changed it on the way."""
    origin = parse(request.headers.get("Origin", ""))
    if origin is not None and origin.is_listed:
        return str(origin)
    return str(of(request) or f"{request.scheme}://127.0.0.1")


def may_open(origin: Origin | None, host: str) -> bool:
    """Return whether a page of `origin` may open a websocket to `host`: its own address, or one that is trusted."""
    if origin is None:
        return False
    own = parse(f"{origin.scheme}://{host}")
    if own is not None and own.is_listed and (own.port, bracketed(own.host)) == (origin.port, bracketed(origin.host)):
        return True
    scheme, _, netloc = str(origin).partition("://")
    trusted = (pattern.partition("://") for pattern in settings.CSRF_TRUSTED_ORIGINS)
    return any(given == scheme and is_same_domain(netloc, host.lstrip("*")) for given, _, host in trusted)


def proxy_fault(origin: Origin | None, arrived: Origin | None) -> str:
    """Return a sentence about the proxy that changed the address of the browser's page, empty when none seems to."""
    if origin is None or arrived is None or origin == arrived:
        return ""
    if bracketed(origin.host) != bracketed(arrived.host):
        if not origin.is_listed:
            return ""
        return (
            f"The browser is at {origin}, but the request arrived for {arrived}: a proxy replaced the header Host. "
            "Let it pass Host unchanged (nginx: proxy_set_header Host $http_host)."
        )
    same_port = arrived.port == origin.port or (arrived.has_own_port and origin.has_own_port)
    if origin.scheme != arrived.scheme and same_port:
        return (
            f"The browser is at {origin}, but the request arrived as {arrived.scheme}. "
            "Let the proxy send X-Forwarded-Proto, and list its address in MIRBAD_TRUSTED_PROXIES."
        )
    return (
        f"The browser is at {origin}, but the request arrived for {arrived}: a proxy lost the port {origin.port}. "
        "Let it pass Host unchanged (nginx: proxy_set_header Host $http_host)."
    )
