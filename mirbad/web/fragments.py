"""A page and its fragment: one view, one view-model, one partial. And the responses to an action."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.cache import patch_vary_headers

from mirbad.kernel.errors import MirbadError


def is_fragment(request: HttpRequest) -> bool:
    """Return whether htmx requests a part of the page."""
    return request.headers.get("HX-Request") == "true" and request.headers.get("HX-History-Restore-Request") != "true"


def page_or_fragment(
    request: HttpRequest, page: str, partial: str, context: Mapping[str, Any], *, status: int = 200
) -> HttpResponse:
    """Render `page` for a person, `partial` for htmx; `page` includes `partial`, with the same `context`."""
    template = partial if is_fragment(request) else page
    return private(render(request, template, dict(context), status=status))


def private(response: HttpResponse) -> HttpResponse:
    """Return `response`, not stored by shared caches, and never mixed up with its fragment."""
    response.headers.setdefault("Cache-Control", "no-cache, private")
    patch_vary_headers(response, ("HX-Request", "Cookie"))
    return response


def perform(request: HttpRequest, action: Callable[[], Any], words: str, *, to: str, go: bool = False) -> HttpResponse:
    """Run `action`; report `words`, or show its refusal where the person acted."""
    try:
        action()
    except MirbadError as error:
        return refused(request, error, to=to)
    return done(request, words, to=to, go=go)


def done(request: HttpRequest, words: str, *, to: str, go: bool = False) -> HttpResponse:
    """Respond to a success: `words` for the person; the live parts of the page reload.

    Without htmx, and with `go`, the browser goes to `to`.
    """
    if not is_fragment(request):
        messages.success(request, words)
        return redirect(to)
    response = HttpResponse(status=204)
    if go:
        messages.success(request, words)
        response["HX-Redirect"] = to
    else:
        response["HX-Trigger"] = json.dumps({"mirbad:done": {"text": words}})
    return response


def go_to(request: HttpRequest, to: str) -> HttpResponse:
    """Send the browser to `to`, a page that continues the action."""
    if not is_fragment(request):
        return redirect(to)
    response = HttpResponse(status=204)
    response["HX-Redirect"] = to
    return response


def refused(request: HttpRequest, error: MirbadError, *, to: str) -> HttpResponse:
    """Respond to a refusal: the sentence, its code, and each problem, shown where the person acted."""
    if not is_fragment(request):
        messages.error(request, error.detail)
        return redirect(to)
    response = render(request, "_refusal.html", {"error": error}, status=error.http_status)
    if error.retry_after_seconds is not None:
        response["Retry-After"] = str(error.retry_after_seconds)
    return private(response)
