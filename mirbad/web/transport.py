"""Cookies of a request that arrived over TLS: the browser never sends them without it."""

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase


class SecureCookiesMiddleware:
    """Marks every cookie of a response over TLS as Secure. Over plain HTTP it must not, or nobody could log in."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response of the rest, with its cookies marked."""
        response = self.get_response(request)
        if request.is_secure():
            for cookie in response.cookies.values():
                cookie["secure"] = True
        return response
