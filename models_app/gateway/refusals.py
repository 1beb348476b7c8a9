"""Why `/v1` refuses, each with its status, code and words, in the error object of the OpenAI API."""

import json
import math
from dataclasses import dataclass
from typing import Any

STARTING_RETRY_SECONDS = 5
NOT_READY_RETRY_SECONDS = 30
NODE_RETRY_SECONDS = 15
BLOCKED_RETRY_SECONDS = 60
MAINTENANCE_RETRY_SECONDS = 30


@dataclass(eq=False)
class Refusal(Exception):
    """An answer that is not the engine's. `retry_after` is whole seconds, set on each 503 and 429."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None
    allow: str | None = None

    @property
    def kind(self) -> str:
        """The ``type`` member of the error object."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def payload(self) -> dict[str, Any]:
        """The error object as JSON values."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def body(self) -> bytes:
        """The error object as a response body."""
        return json.dumps(self.payload()).encode()

    def event(self) -> bytes:
        """The error object as one server-sent event, for a stream whose head has left."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Response headers that belong to the refusal."""
        found = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            found.append((b"retry-after", str(self.retry_after).encode()))
        if self.status == 401:
            found.append((b"www-authenticate", b'Bearer realm="mirbad"'))
        if self.allow is not None:
            found.append((b"allow", self.allow.encode()))
        return found


def no_key() -> Refusal:
    """401: nothing that could be a key was sent."""
    return Refusal(401, "invalid_api_key", "Send an API key of this server as 'Authorization: Bearer ssk_...'.")


def wrong_key() -> Refusal:
    """401: the key is unknown, revoked or misspelt; which one is not told."""
    return Refusal(401, "invalid_api_key", "This API key is not valid here. Check it, or ask for a new one.")


def expired_key() -> Refusal:
    """401: the key was valid once."""
    return Refusal(401, "invalid_api_key", "This API key has expired. Ask for a new one.")


def too_large(limit_bytes: int) -> Refusal:
    """413: the body is over `limit_bytes`."""
    return Refusal(413, "payload_too_large", f"The request body is larger than {limit_bytes} bytes, the limit here.")


def busy() -> Refusal:
    """503: this process works on as many requests as it may."""
    return Refusal(503, "server_busy", "The server is working on as many requests as it can. Try again.", retry_after=1)


def starting_up() -> Refusal:
    """503: the routing table has not been read yet."""
    return Refusal(503, "server_busy", "The server is starting. Try again in a moment.", retry_after=1)


def too_slow() -> Refusal:
    """408: the body did not come on."""
    return Refusal(408, "request_timeout", "The request body did not arrive in time. Send it again.")


def over_limit(what: str, limit: int, retry_after: int) -> Refusal:
    """429: the key has used up one of its limits; `what` names it."""
    message = f"This API key may use {limit} {what}. Try again in {retry_after} s."
    return Refusal(429, "rate_limit_exceeded", message, retry_after=retry_after)


def bad_request(message: str, param: str | None = None, code: str = "invalid_request") -> Refusal:
    """400: the body cannot be used as it is."""
    return Refusal(400, code, message, param=param)


def unknown_path(path: str) -> Refusal:
    """404: no such endpoint."""
    return Refusal(404, "unknown_url", f"There is no endpoint {path[:200]!r} here.")


def wrong_method(path: str, allow: str) -> Refusal:
    """405: the endpoint exists, but not for this verb."""
    return Refusal(405, "method_not_allowed", f"Use {allow} for {path}.", allow=allow)


def unknown_model(name: str) -> Refusal:
    """404: no such model, or the key may not use it."""
    return Refusal(404, "model_not_found", f"The model {name[:200]!r} does not exist or is not open to you.", "model")


def maintenance(message: str, estimate_seconds: float) -> Refusal:
    """503: a window keeps the model, or everything, from being used; `message` says for what and until when."""
    retry_after = max(MAINTENANCE_RETRY_SECONDS, math.ceil(estimate_seconds))
    return Refusal(503, "maintenance", message, retry_after=retry_after)


def restoring() -> Refusal:
    """503: this master waits for a backup, and knows no models."""
    return maintenance("Mirbad is restoring a backup; the API is paused until that is done.", 0)


def node_offline(model: str, node: str) -> Refusal:
    """503: the node of the model cannot be reached."""
    message = f"The node {node!r} of the model {model!r} cannot be reached now."
    return Refusal(503, "node_offline", message, retry_after=NODE_RETRY_SECONDS)


def node_incompatible(model: str, node: str) -> Refusal:
    """503: the agent on the node speaks another protocol."""
    message = f"The node {node!r} of the model {model!r} runs an agent that this server cannot work with."
    return Refusal(503, "node_incompatible", message, retry_after=BLOCKED_RETRY_SECONDS)


def node_pending_takeover(model: str, node: str) -> Refusal:
    """503: the node obeys another claim."""
    message = f"The node {node!r} of the model {model!r} waits to be taken over by this server."
    return Refusal(503, "node_pending_takeover", message, retry_after=BLOCKED_RETRY_SECONDS)


def model_not_placed(model: str) -> Refusal:
    """503: the model is defined, but has no node."""
    message = f"The model {model!r} is not placed on any node."
    return Refusal(503, "model_not_placed", message, retry_after=BLOCKED_RETRY_SECONDS)


def model_starting(model: str) -> Refusal:
    """503: the engine is on its way."""
    message = f"The model {model!r} is starting. Try again in a moment."
    return Refusal(503, "model_not_ready", message, retry_after=STARTING_RETRY_SECONDS)


def model_not_ready(model: str) -> Refusal:
    """503: the engine does not run, or is not well."""
    message = f"The model {model!r} is not running now."
    return Refusal(503, "model_not_ready", message, retry_after=NOT_READY_RETRY_SECONDS)


def upstream_failed(model: str) -> Refusal:
    """502: the engine went away, or answered with something that is not HTTP."""
    return Refusal(502, "upstream_error", f"The engine of the model {model!r} broke the connection or its answer.")


def upstream_timeout(model: str) -> Refusal:
    """504: the engine was silent for longer than the model allows."""
    return Refusal(504, "upstream_timeout", f"The engine of the model {model!r} did not answer in time.")


def shutting_down() -> Refusal:
    """503: the server ends, and the time for open requests is over."""
    return Refusal(503, "server_shutdown", "The server is shutting down. Send the request again.", retry_after=5)
