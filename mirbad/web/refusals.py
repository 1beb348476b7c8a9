"""The responses of the servers on the port to what never becomes a request: malformed heads, too many connections."""

import http
import json
from collections.abc import Callable

from agent.common.http1.overflow import Overflow
from agent.common.http1.request import whole_response

RETRY_SECONDS = 2
ApiRefusal = Callable[[bytes, int, str, str], "bytes | None"]
"""Returns the response to a target, status, code and sentence in the form of an API; None for a target elsewhere."""


class Refusals:
    """The refusals of one port. `api` decides first; other targets get a problem document."""

    def __init__(self, api: ApiRefusal | None = None) -> None:
        self._api = api
        self.overflow = Overflow(self._too_many)

    def response(self, target: bytes, status: int, code: str, detail: str) -> bytes:
        """Return a whole response, after which the connection closes. The target is b"" if it is unknown."""
        found = self._api(target, status, code, detail) if self._api is not None else None
        return found if found is not None else problem(status, code, detail)

    def _too_many(self, target: bytes) -> bytes:
        detail = "Too many connections from this address. Close some, then try again."
        return self.response(target, 503, "too_many_connections", detail)


def problem(status: int, code: str, detail: str) -> bytes:
    """Return a whole response with a problem document, after which the connection closes."""
    title = http.HTTPStatus(status).phrase
    document = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail}
    headers = [(b"content-type", b"application/problem+json"), (b"cache-control", b"no-store")]
    if status == 503:
        headers.append((b"retry-after", b"%d" % RETRY_SECONDS))
    return whole_response(status, headers, json.dumps(document).encode())
