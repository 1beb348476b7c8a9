"""The content security policy of every page: only this host, nothing inline; and the isolation of its windows."""

import ipaddress
from collections.abc import Callable

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.request import split_domain_port
from django.http.response import HttpResponseBase

HEADER = "Content-Security-Policy"
OPENER_HEADER = "Cross-Origin-Opener-Policy"


def policy(socket_origin: str = "") -> str:
    """Return the header's value; `socket_origin` (``ws://host``) is for browsers whose 'self' excludes websockets."""
    connect = f"'self' {socket_origin}".strip()
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        f"connect-src {connect}; img-src 'self' data:; font-src 'self'; manifest-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


class ContentSecurityPolicyMiddleware:
    """Adds the policies to every response without its own."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response of the rest, with the headers."""
        response = self.get_response(request)
        if HEADER not in response:
            response[HEADER] = policy(_socket_origin(request))
        if _is_trustworthy(request):
            response.headers.setdefault(OPENER_HEADER, "same-origin")
        return response


def _is_trustworthy(request: HttpRequest) -> bool:
    """Return whether browsers respect an opener policy here; over plain HTTP on a LAN they only warn of it, on every
    page.
    """
    if request.is_secure():
        return True
    try:
        name = split_domain_port(request.get_host())[0].strip("[]")
    except DisallowedHost:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _socket_origin(request: HttpRequest) -> str:
    try:
        return f"{'wss' if request.is_secure() else 'ws'}://{request.get_host()}"
    except DisallowedHost:
        return ""
