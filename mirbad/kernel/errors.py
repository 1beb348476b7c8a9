"""The root of every error that is reported to a person or a program.

MirbadError
├── InvalidRequest        400 invalid_request      each app's leaves are in its own errors.py
├── NotFound              404 not_found
├── Conflict              409 invalid_state
└── Unavailable           503 unavailable (retryable)
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class MirbadError(Exception):
    """An error with a machine code, an HTTP status and a sentence that includes the next step.

    `fields` are extra members for the caller (JSON values); `problems` is a list of
    ``{"code", "message", "field"?}`` for validation; `retry_after_seconds` becomes ``Retry-After``.
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        detail: str,
        *,
        fields: Mapping[str, Any] | None = None,
        problems: Sequence[Mapping[str, str]] = (),
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.fields = dict(fields or {})
        self.problems = [dict(problem) for problem in problems]
        self.retry_after_seconds = retry_after_seconds


class InvalidRequest(MirbadError):
    """The request cannot be parsed or breaks a rule of its form."""

    code = "invalid_request"
    http_status = 400


class NotFound(MirbadError):
    """Nothing has that name, or the caller may not see it."""

    code = "not_found"
    http_status = 404


class Conflict(MirbadError):
    """The state of the object does not allow this."""

    code = "invalid_state"
    http_status = 409


class Unavailable(MirbadError):
    """A required part cannot be reached now."""

    code = "unavailable"
    http_status = 503
    retryable = True
