"""RFC 9457: every error of ``/api`` is problem+json with a machine code in ``code``."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.core.exceptions import DisallowedHost, PermissionDenied, RequestDataTooBig
from django.db import DataError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from rest_framework import exceptions

from mirbad.api import origins
from mirbad.kernel.errors import InvalidRequest, MirbadError, NotFound, Unavailable

CONTENT_TYPE = "application/problem+json"

log = logging.getLogger(__name__)

_TITLES = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Refused",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    409: "Conflict",
    413: "Payload too large",
    415: "Unsupported media type",
    422: "Unprocessable content",
    429: "Too many requests",
    500: "Internal error",
    502: "Bad gateway",
    503: "Unavailable",
    504: "Gateway timeout",
}


class PayloadTooLarge(MirbadError):
    """The body is larger than the route accepts."""

    code = "payload_too_large"
    http_status = 413


class Forbidden(MirbadError):
    """The caller is known and lacks permission."""

    code = "forbidden"
    http_status = 403


class _FrameworkError(MirbadError):
    """An error of the framework, with the code and status of this surface."""

    def __init__(self, code: str, status: int, detail: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(detail, retry_after_seconds=retry_after_seconds)
        self.plain_code = code
        self.plain_status = status


def _code_and_status(error: MirbadError) -> tuple[str, int]:
    if isinstance(error, _FrameworkError):
        return error.plain_code, error.plain_status
    return error.code, error.http_status


def title(error: MirbadError) -> str:
    """Return the title of `error`, by its status."""
    return _TITLES.get(_code_and_status(error)[1], "Error")


def body(error: MirbadError) -> dict[str, Any]:
    """Return the members of the problem document of `error`."""
    code, status = _code_and_status(error)
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": title(error),
        "status": status,
        "code": code,
        "detail": error.detail,
    }
    if error.problems:
        document["problems"] = error.problems
    for name, value in error.fields.items():
        document.setdefault(name, value)
    return document


def _headers(error: MirbadError) -> dict[str, str]:
    headers = {"Cache-Control": "no-store"}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif _code_and_status(error)[1] == 503:
        headers["Retry-After"] = "2"
    return headers


def response(error: MirbadError) -> HttpResponse:
    """Return `error` as a whole response."""
    return JsonResponse(
        body(error), status=_code_and_status(error)[1], content_type=CONTENT_TYPE, headers=_headers(error)
    )


def handle(error: Exception, context: Mapping[str, Any]) -> HttpResponse | None:
    """Handle an exception of a DRF view; None lets a fault become a 500 with its traceback in the log.

    The response is rendered here: a view whose own renderers print pages or YAML still refuses with problem+json.
    """
    problem = named(error)
    if problem is None:
        return None
    status = _code_and_status(problem)[1]
    if isinstance(error, OperationalError):
        log.warning("The database refused a statement", exc_info=error)
    elif status == 500:
        log.error("A request failed with %s", problem.code, exc_info=error)
    if _code_and_status(problem)[0] == "csrf_failed":
        request = context["request"]
        fault = origins.proxy_fault(origins.parse(request.headers.get("Origin", "")), origins.of(request))
        problem.detail = fault or problem.detail
    answer = response(problem)
    if header := getattr(error, "auth_header", None):
        answer["WWW-Authenticate"] = header
    if isinstance(error, exceptions.MethodNotAllowed):
        answer["Allow"] = ", ".join(context["view"].allowed_methods)
    return answer


def named(error: Exception) -> MirbadError | None:
    """Return `error` as one of ours; None when it is an unforeseen fault."""
    if isinstance(error, MirbadError):
        return error
    if isinstance(error, Http404):
        return NotFound("Not found. Check the id in the address.")
    if isinstance(error, PermissionDenied):
        return Forbidden(str(error) or "You don't have permission.")
    if isinstance(error, RequestDataTooBig):
        return PayloadTooLarge("The body is too large.")
    if isinstance(error, OperationalError):
        return _of_database(error)
    if holds_nul(error):
        return InvalidRequest("A text of the request contains a NUL character. Remove it.")
    if isinstance(error, exceptions.APIException):
        return _of_framework(error)
    return None


def holds_nul(error: Exception) -> bool:
    """Return whether PostgreSQL refused a text for its NUL character."""
    return isinstance(error, DataError | ValueError) and "NUL (0x00)" in str(error)


def _of_database(error: OperationalError) -> Unavailable:
    text = str(error)
    if "disk is full" in text or "No space left" in text:
        return Unavailable("The disk of the database is full. Free some space, then try again.")
    if "readonly database" in text or "read-only" in text:
        return Unavailable("The database is read-only. Repair the disk or fix the file permissions.")
    return Unavailable("The database is unreachable or busy. Try again in a moment.")


def _of_framework(error: exceptions.APIException) -> MirbadError:
    if isinstance(error, exceptions.ValidationError):
        return InvalidRequest("The request is not valid; see problems.", problems=list(_flat(error.detail)))
    if isinstance(error, exceptions.ParseError):
        return InvalidRequest(str(error.detail))
    if isinstance(error, exceptions.NotAuthenticated):
        return _FrameworkError(
            "unauthenticated", error.status_code, "Sign in, or send an admin token: Authorization: Bearer mbt_…"
        )
    if isinstance(error, exceptions.AuthenticationFailed):
        return _FrameworkError("unauthenticated", error.status_code, str(error.detail))
    if isinstance(error, exceptions.PermissionDenied):
        text = str(error.detail)
        if text.startswith("CSRF Failed"):
            return _FrameworkError(
                "csrf_failed",
                403,
                "A signed-in session must send its CSRF token in X-CSRFToken, from an origin that MIRBAD_HOSTS lists. "
                "Scripts use an admin token instead.",
            )
        return Forbidden(text)
    if isinstance(error, exceptions.NotAcceptable):
        kinds = " or ".join(sorted({str(one.media_type) for one in error.available_renderers or ()}))
        text = f"This route responds with {kinds or 'another media type'}. Send it in Accept, or send no Accept."
        return _FrameworkError("not_acceptable", error.status_code, text)
    wait = getattr(error, "wait", None)
    code = {
        404: "not_found",
        405: "method_not_allowed",
        415: "unsupported_media_type",
        429: "rate_limited",
    }.get(error.status_code, "internal" if error.status_code >= 500 else "invalid_request")
    return _FrameworkError(code, error.status_code, str(error.detail), retry_after_seconds=int(wait) if wait else None)


def _flat(detail: Any, field: str = "") -> Iterator[dict[str, str]]:
    """Yield the validation errors of a serializer as ``{code, message, field}``, with dotted field names."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            own = "" if name == "non_field_errors" else str(name)
            yield from _flat(inner, ".".join(part for part in (field, own) if part))
    elif isinstance(detail, Sequence) and not isinstance(detail, str):
        for index, inner in enumerate(detail):
            nested = isinstance(inner, Mapping | list)
            yield from _flat(inner, f"{field}.{index}" if nested else field)
    else:
        problem = {"code": str(getattr(detail, "code", "invalid")), "message": str(detail)}
        if field:
            problem["field"] = field
        yield problem


def wants_json(request: HttpRequest) -> bool:
    """Return whether an error of this request should be problem+json instead of a page."""
    accept = request.headers.get("Accept", "")
    return request.path.startswith("/api/") or ("json" in accept and "text/html" not in accept)


def host_refused(error: Exception | None) -> MirbadError | None:
    """Return the error for a browser that used a host name outside MIRBAD_HOSTS, else None."""
    if isinstance(error, DisallowedHost):
        return InvalidRequest("This host name is not allowed. Add it to MIRBAD_HOSTS and restart.")
    return None
