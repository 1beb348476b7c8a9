"""Texts that no database stores: a client's mistake, and never a fault."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from mirbad.api import errorpages, problems


class UnstorableTextMiddleware:
    """Responds with 400 where a view asked PostgreSQL for a text with a NUL character."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response of the rest."""
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Return a refusal for such a text, None for another error."""
        return errorpages.bad_request(request, exception) if problems.holds_nul(exception) else None
