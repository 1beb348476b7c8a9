"""The errors of `/v1`, each with status, code and message, in the error object of the OpenAI API."""

import json
import math
from dataclasses import dataclass
from typing import Any

STARTING_RETRY_SECONDS = 5
NOT_READY_RETRY_SECONDS = 30
NODE_RETRY_SECONDS = 15
BLOCKED_RETRY_SECONDS = 60
MAINTENANCE_RETRY_SECONDS = 30


_MESSAGES_PATHS = ("/messages", "/messages/count_tokens")
"""The ends of paths of Anthropic's API."""
RESPONSES_PATH = "/v1/responses"
_MODELS = "/v1/models/"
_MESSAGES_KINDS = {
    **dict.fromkeys((400, 405, 408, 415), "invalid_request_error"),
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""The ``type`` of errors in Anthropic's API by status."""


@dataclass(eq=False)
class GatewayError(Exception):
    """An error response of the gateway itself.

    `retry_after` is in whole seconds: when a repeat may succeed, None when nobody knows. `should_retry` overrides what
    client libraries do by themselves (OpenAI's and Anthropic's obey it). `state` is the state of a model that has this
    error, for `/v1/models`; None is the code.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None
    allow: str | None = None
    should_retry: bool | None = None
    state: str | None = None
    accept_encoding: str | None = None

    @property
    def kind(self) -> str:
        """Return the ``type`` member of the error object."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def payload(self) -> dict[str, Any]:
        """Return the error object as JSON values."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def body(self, path: str = "") -> bytes:
        """Return the error object as a response body, in the form of the API at `path`."""
        if _is_messages(path):
            error = {"type": _MESSAGES_KINDS.get(self.status, "api_error"), "message": self.message, "code": self.code}
            return json.dumps({"type": "error", "error": error}).encode()
        return json.dumps(self.payload()).encode()

    def event(self, path: str = "") -> bytes:
        """Return the error as one server-sent event of the API at `path`, for a stream that has begun."""
        if _is_messages(path):
            return b"event: error\ndata: " + self.body(path) + b"\n\n"
        if path == RESPONSES_PATH:
            error = {"type": "error", "code": self.code, "message": self.message, "param": self.param}
            return b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n"
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the response headers of the error."""
        found = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            found.append((b"retry-after", str(self.retry_after).encode()))
        if self.should_retry is not None:
            found.append((b"x-should-retry", b"true" if self.should_retry else b"false"))
        if self.status == 401:
            found.append((b"www-authenticate", b'Bearer realm="mirbad"'))
        if self.allow is not None:
            found.append((b"allow", self.allow.encode()))
        if self.accept_encoding is not None:
            found.append((b"accept-encoding", self.accept_encoding.encode()))
        return found


FIRST_BYTE_SETTING, IDLE_SETTING = "firstByteTimeoutSeconds", "idleTimeoutSeconds"
_LABELS = {FIRST_BYTE_SETTING: "First-token timeout", IDLE_SETTING: "Stream idle timeout"}


def _is_messages(path: str) -> bool:
    """Return whether a client of Anthropic's API sent the request, maybe to a wrong base URL."""
    return path.endswith(_MESSAGES_PATHS) and not path.startswith(_MODELS)


def no_key() -> GatewayError:
    """Return 401: the request has no API key."""
    return GatewayError(401, "invalid_api_key", "No API key. Send one as 'Authorization: Bearer ssk_...'.")


def wrong_key() -> GatewayError:
    """Return 401: the key is unknown, revoked or misspelled; the message does not say which."""
    return GatewayError(401, "invalid_api_key", "Invalid API key. Check it, or ask an operator for a new one.")


def expired_key() -> GatewayError:
    """Return 401: the key has expired."""
    return GatewayError(401, "invalid_api_key", "This API key has expired. Ask an operator for a new one.")


def too_large(limit_bytes: int) -> GatewayError:
    """Return 413: the body exceeds `limit_bytes`."""
    return GatewayError(413, "payload_too_large", f"The request body exceeds {limit_bytes} bytes. Send a smaller one.")


def busy() -> GatewayError:
    """Return 503: this process has as many requests in flight as it may."""
    return GatewayError(503, "server_busy", "The server has too many requests in flight. Try again.", retry_after=1)


def over_share() -> GatewayError:
    """Return 503: few places are free, and the key holds its share of all."""
    message = "The server is nearly full, and this API key has its share of requests in flight. Try again."
    return GatewayError(503, "server_busy", message, retry_after=1)


def too_many_bodies(retry_after: int) -> GatewayError:
    """Return 503: the bodies that wait in this process use all memory meant for them."""
    message = f"The server holds too many large request bodies. Try again in {retry_after} s."
    return GatewayError(503, "server_busy", message, retry_after=retry_after)


def starting_up() -> GatewayError:
    """Return 503: the routing table has not been read yet."""
    return GatewayError(503, "server_busy", "The server is starting. Try again in a moment.", retry_after=1)


def too_slow() -> GatewayError:
    """Return 408: the next bytes of the body did not arrive in time."""
    return GatewayError(
        408,
        "request_timeout",
        "The request body arrived too slowly. Send it again over a faster connection, or send less.",
    )


def over_limit(unit: str, limit: int, retry_after: int) -> GatewayError:
    """Return 429: the key has used up the limit of `limit` `unit`."""
    message = f"This API key is limited to {limit} {unit}. Try again in {retry_after} s."
    return GatewayError(429, "rate_limit_exceeded", message, retry_after=retry_after)


def bad_request(message: str, param: str | None = None, code: str = "invalid_request") -> GatewayError:
    """Return 400: the request is invalid. `message` says how to fix it, `param` names the member at fault."""
    return GatewayError(400, code, message, param=param)


def wrong_kind(*, form: bool) -> GatewayError:
    """Return 400: the endpoint reads a form and got another body, or the other way round."""
    if form:
        return bad_request("Send this request as multipart/form-data with the field 'model'.", code="invalid_form")
    return bad_request("Send this request as JSON, not as a form.", code="invalid_json")


def unknown_path(path: str, right: str | None = None) -> GatewayError:
    """Return 404: no such endpoint; `right` is the path that was probably meant."""
    advice = f"Use {right}: the base URL ends with /v1." if right else "Check the URL; the base URL ends with /v1."
    return GatewayError(404, "unknown_url", f"Unknown endpoint {path[:200]!r}. {advice}")


def unknown_encoding(name: str) -> GatewayError:
    """Return 415: the body is compressed."""
    message = f"Content-Encoding {name[:50]!r} is not supported, only 'identity' is. Send the body uncompressed."
    return GatewayError(415, "unsupported_content_encoding", message, accept_encoding="identity")


def wrong_method(path: str, allow: str) -> GatewayError:
    """Return 405: the endpoint exists, but not for this method."""
    return GatewayError(405, "method_not_allowed", f"Use {allow} for {path}.", allow=allow)


def unknown_model(name: str) -> GatewayError:
    """Return 404: no such model, or the key may not use it. The message is the same, so that names stay private."""
    message = f"Model {name[:200]!r} not found, or not allowed for this key. 'GET /v1/models' lists your models."
    return GatewayError(404, "model_not_found", message, "model")


def maintenance(message: str, estimate_seconds: float) -> GatewayError:
    """Return 503: a maintenance window is open. `message` says why and until when."""
    retry_after = max(MAINTENANCE_RETRY_SECONDS, math.ceil(estimate_seconds))
    return GatewayError(503, "maintenance", message, retry_after=retry_after)


def restoring() -> GatewayError:
    """Return 503: the recovery mode closes the API until a person ends it."""
    return maintenance(
        "The master is in recovery mode (MIRBAD_RECOVERY_MODE, or the file 'recovery' in its data folder). "
        "It waits for a backup, and the API is paused meanwhile.",
        0,
    )


def node_offline(model: str, node: str) -> GatewayError:
    """Return 503: the node of the model is offline."""
    message = f"Node {node!r} of model {model!r} is offline. Try again later."
    return GatewayError(503, "node_offline", message, retry_after=NODE_RETRY_SECONDS)


def node_incompatible(model: str, node: str) -> GatewayError:
    """Return 503: the agent on the node speaks an incompatible protocol version."""
    message = f"Node {node!r} of model {model!r} runs an incompatible agent. Ask an operator to update it."
    return GatewayError(503, "node_incompatible", message, retry_after=BLOCKED_RETRY_SECONDS)


def node_pending_takeover(model: str, node: str) -> GatewayError:
    """Return 503: the node obeys another master's claim."""
    message = f"Node {node!r} of model {model!r} is not taken over by this server yet. Ask an operator."
    return GatewayError(503, "node_pending_takeover", message, retry_after=BLOCKED_RETRY_SECONDS)


def model_not_placed(model: str) -> GatewayError:
    """Return 503: the model is defined, but not placed on a node."""
    message = f"Model {model!r} is not placed on a node. Ask an operator to place it."
    return GatewayError(503, "model_not_placed", message, retry_after=BLOCKED_RETRY_SECONDS, state="not_placed")


def model_starting(model: str, seconds: int | None = None) -> GatewayError:
    """Return 503: the engine is starting, and may be ready in `seconds`."""
    message = f"Model {model!r} is starting. Try again in a moment."
    return _not_ready(message, "starting", seconds or STARTING_RETRY_SECONDS)


def model_restarting(model: str, seconds: int | None = None) -> GatewayError:
    """Return 503: the engine ended by itself and is started again; it may be ready in `seconds`."""
    message = f"The engine of model {model!r} ended and is started again. Try again in a moment."
    return _not_ready(message, "restarting", seconds or STARTING_RETRY_SECONDS)


def model_stopped(model: str) -> GatewayError:
    """Return 503: the model is stopped, by a person or after repeated failures. It does not start by itself."""
    message = f"Model {model!r} is stopped. Ask an operator to start it."
    return GatewayError(503, "model_not_ready", message, should_retry=False, state="stopped")


def model_not_ready(model: str) -> GatewayError:
    """Return 503: the engine is stopping or unhealthy."""
    message = f"Model {model!r} does not take requests now. Try again later, or ask an operator."
    return _not_ready(message, "unavailable", NOT_READY_RETRY_SECONDS)


def _not_ready(message: str, state: str, retry_after: int) -> GatewayError:
    return GatewayError(503, "model_not_ready", message, retry_after=retry_after, state=state)


def upstream_failed(model: str) -> GatewayError:
    """Return 502: the engine closed the connection, or its response is not valid HTTP."""
    return GatewayError(502, "upstream_error", f"The engine of model {model!r} closed the connection. Try again.")


def broken_off(model: str) -> GatewayError:
    """Return 502: the engine had the request, and the connection broke before the response was complete.

    The request may have ended the engine, so nobody repeats it automatically, the client's library included.
    """
    message = (
        f"The engine of model {model!r} closed the connection while it worked on this request. The request may be the "
        "cause, so it was not sent to another replica. Check it before you send it again."
    )
    return GatewayError(502, "upstream_error", message, should_retry=False)


def upstream_timeout(model: str, seconds: float, setting: str) -> GatewayError:
    """Return 504: the engine sent nothing for longer than the model's timeout, which `setting` names."""
    message = (
        f"The engine of model {model!r} sent nothing for {seconds:g} s. Try again, stream the response, or ask an "
        f"operator to raise '{setting}' of the model (on its page: {_LABELS[setting]})."
    )
    return GatewayError(504, "upstream_timeout", message)


def shutting_down() -> GatewayError:
    """Return 503: the server is stopping, and the grace period for open requests is over."""
    return GatewayError(503, "server_shutdown", "The server is shutting down. Send the request again.", retry_after=5)
