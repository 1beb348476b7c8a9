"""Errors that no view answers for: problem+json for programs, a page for people."""

import sys

from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.views import defaults

from mirbad.api import problems
from mirbad.kernel.errors import InvalidRequest, MirbadError, NotFound


class CsrfFailed(MirbadError):
    """A form or a call of a signed-in session came without its CSRF token."""

    code = "csrf_failed"
    http_status = 403


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400, for one a host name that is not listed."""
    named = problems.host_refused(exception) or problems.named(exception)
    if problems.wants_json(request):
        return problems.response(named or InvalidRequest("The request cannot be understood."))
    if named is not None:
        return HttpResponse(named.detail, status=named.http_status, content_type="text/plain; charset=utf-8")
    return defaults.bad_request(request, exception)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403."""
    if problems.wants_json(request):
        return problems.response(problems.Forbidden(str(exception) or "You may not do this."))
    return defaults.permission_denied(request, exception)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404."""
    if problems.wants_json(request):
        return problems.response(NotFound("There is nothing at this address. /api/docs lists every route."))
    return defaults.page_not_found(request, exception)


def fault(request: HttpRequest) -> HttpResponse:
    """500: the traceback is in the log. 503 when it is the database that could not be used."""
    error = sys.exc_info()[1]
    if isinstance(error, OperationalError) and (named := problems.named(error)) is not None:
        if problems.wants_json(request):
            return problems.response(named)
        return HttpResponse(render_to_string("503.html", {"detail": named.detail}), status=named.http_status)
    if problems.wants_json(request):
        return problems.response(MirbadError("Something went wrong on the master. Its log says what."))
    return defaults.server_error(request)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 of a form without its CSRF token (`CSRF_FAILURE_VIEW`)."""
    error = CsrfFailed("The form was too old, or came from another site. Go back, reload the page and send it again.")
    if problems.wants_json(request):
        return problems.response(error)
    return defaults.permission_denied(request, Exception(error.detail))
