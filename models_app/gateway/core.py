"""The decisions of `/v1`: who asks, what for, where it goes, and why not. Pure; tested by tables."""

import functools
import hashlib
import itertools
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from models_app.gateway import refusals
from models_app.gateway.table import Key, Model, NodeState, Route, RouteState, Table

Header = tuple[bytes, bytes]
Headers = Mapping[bytes, bytes]
"""Headers by name in lower case, as `folded` gives them."""

GENERATION_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Endpoints whose streams report usage only when ``stream_options`` asks for it."""

JSON_PATHS = GENERATION_PATHS | frozenset(
    {
        "/v1/audio/speech",
        "/v1/detokenize",
        "/v1/embeddings",
        "/v1/images/generations",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/rerank",
        "/v1/responses",
        "/v1/score",
        "/v1/tokenize",
    }
)
"""Endpoints with a JSON body that go to an engine as they are."""

FORM_PATHS = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits"})
"""Endpoints whose body is a form, with the model as one of its fields."""

ENGINE_PATHS = {"/v1/tokenize": "/tokenize", "/v1/detokenize": "/detokenize"}
"""Endpoints that engines serve elsewhere than below ``/v1``."""

MODELS_PATH = "/v1/models"

_TRACE = re.compile(rb"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]{0,200})?")
_TRACE_STATE_BYTES = 512
# Ids need to differ, not to be secret: a random beginning a process, then a count.
_RUN = secrets.token_hex(12).encode()
_COUNT = itertools.count(1)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
_TO_NODE = (b"accept", b"anthropic-beta", b"anthropic-version", b"content-type", b"openai-beta")
_TO_CLIENT = frozenset(
    {
        b"cache-control",
        b"content-disposition",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"openai-processing-ms",
        b"openai-version",
        b"retry-after",
    }
)


def folded(headers: Sequence[Header]) -> Headers:
    """Headers by name. What came more than once is joined by commas, which no credential or id survives."""
    found = dict(headers)
    if len(found) != len(headers):
        found.clear()
        for name, value in headers:
            before = found.get(name)
            found[name] = value if before is None or before == value else before + b", " + value
    return found


def authenticate(table: Table, headers: Headers, now: Callable[[], datetime]) -> Key:
    """The key that `headers` carry. Raises Refusal (401)."""
    bearer = headers.get(b"authorization")
    if bearer is not None:
        scheme, _, secret = bearer.partition(b" ")
        if scheme.lower() != b"bearer":
            raise refusals.no_key()
        secret = secret.strip()
    else:
        secret = headers.get(b"x-api-key", b"").strip()
    if not secret:
        raise refusals.no_key()
    key = table.keys.get(hashlib.sha256(secret).hexdigest())
    if key is None:
        raise refusals.wrong_key()
    if key.expires_at is not None and key.expires_at <= now():
        raise refusals.expired_key()
    return key


def declared_length(headers: Headers) -> int | None:
    """The value of Content-Length, None when the body comes in chunks or there is none."""
    value = headers.get(b"content-length")
    return int(value) if value is not None and value.isdigit() else None


def endpoint(method: str, path: str) -> Literal["models", "model", "relay"]:
    """What `path` is served by. Raises Refusal (404, 405)."""
    if path in JSON_PATHS or path in FORM_PATHS:
        if method != "POST":
            raise refusals.wrong_method(path, "POST")
        return "relay"
    if path == MODELS_PATH or (path.startswith(MODELS_PATH + "/") and len(path) > len(MODELS_PATH) + 1):
        if method not in ("GET", "HEAD"):
            raise refusals.wrong_method(MODELS_PATH, "GET")
        return "models" if path == MODELS_PATH else "model"
    raise refusals.unknown_path(path)


def find_model(table: Table, key: Key, name: str) -> Model:
    """The model served as `name`. Raises Refusal (404), the same for a model that the key may not use."""
    model = table.models.get(name)
    if model is None or not key.may_use(model, name):
        raise refusals.unknown_model(name)
    return model


def usable(table: Table, model: Model, tried: Collection[str] = ()) -> Sequence[Route]:
    """The routes to which a request for `model` could be sent now, without those in `tried`."""
    ready = table.ready.get(model.id, ())
    return [route for route in ready if route.placement_id not in tried] if tried else ready


def why_none(table: Table, model: Model) -> refusals.Refusal:
    """The refusal for a model without a usable route: windows, then node states, then readiness.

    A replica on a serving node speaks before one that is away.
    """
    if (paused := table.paused.get(model.id)) is not None:
        return paused
    if not model.routes:
        return refusals.model_not_placed(model.id)
    away: refusals.Refusal | None = None
    serving: list[Route] = []
    for route in model.routes:
        state = table.nodes.get(route.node_id, NodeState.OFFLINE)
        if state is NodeState.SERVING and route.node_id in table.endpoints:
            serving.append(route)
        elif away is None:
            away = _NODE_REFUSALS.get(state, refusals.node_offline)(model.id, route.node_id)
    if any(route.state is RouteState.COMING for route in serving):
        return refusals.model_starting(model.id)
    if away is not None and not serving:
        return away
    return refusals.model_not_ready(model.id)


_NODE_REFUSALS: dict[NodeState, Callable[[str, str], refusals.Refusal]] = {
    NodeState.OFFLINE: refusals.node_offline,
    NodeState.INCOMPATIBLE: refusals.node_incompatible,
    NodeState.PENDING_TAKEOVER: refusals.node_pending_takeover,
}


def is_coming(table: Table, model: Model) -> bool:
    """Whether a route of `model` is starting on a node that serves, so that waiting makes sense."""
    return model.id not in table.paused and any(
        route.state is RouteState.COMING and table.nodes.get(route.node_id) is NodeState.SERVING
        for route in model.routes
    )


def is_ready(table: Table, model: Model) -> bool:
    """Whether a request for `model` would be sent on now."""
    return bool(usable(table, model))


def request_id(headers: Headers) -> bytes:
    """The client's ``x-request-id`` when it is short and plain, else a new one."""
    value = headers.get(b"x-request-id")
    if value is not None and _REQUEST_ID.fullmatch(value):
        return value
    return b"req-%b%08x" % (_RUN[:16], next(_COUNT) & 0xFFFFFFFF)


def trace(headers: Headers) -> list[Header]:
    """The client's W3C trace context as it is, a new one when it sent none that is valid.

    Nothing here is a span of its own, so what the engine reports stands directly below the client's.
    """
    parent = headers.get(b"traceparent")
    if parent is None or _TRACE.fullmatch(parent) is None or parent.startswith(b"ff"):
        number = next(_COUNT)
        return [(b"traceparent", b"00-%b%016x-%b%08x-00" % (_RUN[:16], number, _RUN[16:24], number & 0xFFFFFFFF))]
    state = headers.get(b"tracestate")
    if state and len(state) <= _TRACE_STATE_BYTES and state.isascii():
        return [(b"traceparent", parent), (b"tracestate", state)]
    return [(b"traceparent", parent)]


def lines_to_node(headers: Headers) -> bytes:
    """What of a client's headers goes on, as lines: never its credentials, cookies or addresses."""
    return _lines_to_node(*map(headers.get, _TO_NODE))


@functools.lru_cache(maxsize=512)
def _lines_to_node(*values: bytes | None) -> bytes:
    # Clients send the same few values again and again.
    return lines((name, value) for name, value in zip(_TO_NODE, values, strict=True) if value is not None)


def lines(headers: Iterable[Header]) -> bytes:
    """Headers as they stand in a head."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def headers_to_client(headers: Iterable[Header]) -> list[Header]:
    """What of an engine's headers goes back; names in lower case."""
    return [header for header in headers if header[0] in _TO_CLIENT]


def is_event_stream(kind: bytes) -> bool:
    """Whether an answer of the content type `kind` is a stream of server-sent events."""
    return kind[:17].lower() == b"text/event-stream"
