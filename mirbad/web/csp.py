"""The content security policy of every page: only this host, nothing inline."""

from collections.abc import Callable

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.response import HttpResponseBase

HEADER = "Content-Security-Policy"


def policy(socket_origin: str = "") -> str:
    """The header's value; `socket_origin` (``ws://host``) is for browsers whose 'self' leaves out websockets."""
    connect = f"'self' {socket_origin}".strip()
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        f"connect-src {connect}; img-src 'self' data:; font-src 'self'; manifest-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


class ContentSecurityPolicyMiddleware:
    """Adds the policy to every answer that does not bring its own."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The answer of the rest, with the header."""
        response = self.get_response(request)
        if HEADER not in response:
            response[HEADER] = policy(_socket_origin(request))
        return response


def _socket_origin(request: HttpRequest) -> str:
    try:
        return f"{'wss' if request.is_secure() else 'ws'}://{request.get_host()}"
    except DisallowedHost:
        return ""
