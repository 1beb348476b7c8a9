"""The refusals of `/v1` to what never becomes a request, in the form of the API that it was meant for. Pure."""

from urllib.parse import unquote_to_bytes

from agent.common.http1.request import whole_response
from agent.common.http1.target import path_of
from models_app.gateway import core, errors

RETRY_SECONDS = 2
_CODES = {"bad_request": "invalid_request"}
"""Codes of the pages' server, as `/v1` has them."""


def response(target: bytes, status: int, code: str, detail: str) -> bytes | None:
    """Return a whole response with an error of `/v1`; None for a target elsewhere.

    A target that is unknown (b"") gets OpenAI's form: what sends malformed requests is a program, not a browser.
    """
    path = core.plain_path(unquote_to_bytes(path_of(target)).decode("latin-1"))
    if target and not core.is_v1(path):
        return None
    retry_after = RETRY_SECONDS if status == 503 else None
    error = errors.GatewayError(status, _CODES.get(code, code), detail, retry_after=retry_after)
    return whole_response(status, error.headers(), error.body(path))
