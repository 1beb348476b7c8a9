"""Errors outside any view: problem+json for programs, a page for people."""

import sys

from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views import defaults

from mirbad.api import origins, problems
from mirbad.kernel.errors import InvalidRequest, MirbadError, NotFound, Unavailable


class CsrfFailed(MirbadError):
    """A form or a call of a signed-in session arrived without its CSRF token."""

    code = "csrf_failed"
    http_status = 403


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Respond with 400, for example to a host name that is not listed."""
    named = problems.host_refused(exception) or problems.named(exception)
    if problems.wants_json(request):
        return problems.response(named or InvalidRequest("Bad request."))
    if named is not None and problems.host_refused(exception) is None:
        # Without the request: its session and person may not be known yet.
        page = render_to_string("refused.html", {"heading": problems.title(named), "detail": named.detail})
        return HttpResponse(page, status=named.http_status)
    if named is not None:
        return HttpResponse(named.detail, status=named.http_status, content_type="text/plain; charset=utf-8")
    return defaults.bad_request(request, exception)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Respond with 403."""
    if problems.wants_json(request):
        return problems.response(problems.Forbidden(str(exception) or "You don't have permission."))
    return defaults.permission_denied(request, exception)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Respond with 404."""
    if problems.wants_json(request):
        return problems.response(NotFound("Not found. See /api/docs for all routes."))
    return defaults.page_not_found(request, exception)


def fault(request: HttpRequest) -> HttpResponse:
    """Respond with 500: the traceback is in the log. 503 when the database or another part could not be used."""
    error = sys.exc_info()[1]
    if isinstance(error, OperationalError | Unavailable) and (named := problems.named(error)) is not None:
        if problems.wants_json(request):
            return problems.response(named)
        return HttpResponse(render_to_string("503.html", {"detail": named.detail}), status=named.http_status)
    if problems.wants_json(request):
        return problems.response(MirbadError("Internal error. See the master's log."))
    return defaults.server_error(request)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Respond with 403 to a form without its CSRF token (`CSRF_FAILURE_VIEW`)."""
    fault = origins.proxy_fault(origins.parse(request.headers.get("Origin", "")), origins.of(request))
    error = CsrfFailed(
        fault or "The form has expired or was sent from another site. Go back, reload the page and try again."
    )
    if problems.wants_json(request):
        return problems.response(error)
    return render(
        request, "refused.html", {"heading": "Form refused", "detail": error.detail}, status=error.http_status
    )
