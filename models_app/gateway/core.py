"""The decisions of `/v1`: key, endpoint, model, usable routes, headers, and the error if there is none. Pure."""

import functools
import hashlib
import itertools
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from agent.common.headers import REQUEST_HEADERS, RESPONSE_HEADERS
from models_app.gateway import errors
from models_app.gateway.table import COMING, KeyEntry, ModelEntry, NodeState, RouteEntry, RouteState, RoutingTable

Header = tuple[bytes, bytes]
Headers = Mapping[bytes, bytes]
"""Headers by lower-case name, as `fold_headers` returns them."""

GENERATION_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Endpoints whose streams report usage only when ``stream_options`` requests it."""

TOKEN_PATHS = GENERATION_PATHS | {"/v1/messages", "/v1/responses"}
"""Endpoints that generate tokens, which limits count even if an engine does not report them."""

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
"""Endpoints with a JSON body that is relayed to an engine."""

FORM_PATHS = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits"})
"""Endpoints whose body is a multipart form with a field for the model."""

ENGINE_PATHS = {"/v1/tokenize": "/tokenize", "/v1/detokenize": "/detokenize"}
"""Endpoints that engines serve outside of ``/v1``."""

MODELS_PATH = "/v1/models"

# More members follow in versions after 00 only, and version ff is invalid.
_TRACE = re.compile(
    rb"(?!ff)(?!00.{54})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]{0,200})?"
)
_TRACE_STATE_BYTES = 512
_SLASHES = re.compile("//+")
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9_\- ,]{1,2000}")
_EXPOSED = b"x-request-id, retry-after, x-should-retry"
# Ids must be unique, not secret: a random prefix per process, then a counter.
_RUN = secrets.token_hex(12).encode()
_COUNT = itertools.count(1)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")


def fold_headers(headers: Sequence[Header]) -> Headers:
    """Return headers by name. Differing values of one name are joined by commas, so no credential or id stays valid."""
    found = dict(headers)
    if len(found) != len(headers):
        found.clear()
        for name, value in headers:
            previous = found.get(name)
            found[name] = value if previous is None or previous == value else previous + b", " + value
    return found


def authenticate(table: RoutingTable, headers: Headers, now: Callable[[], datetime]) -> KeyEntry:
    """Return the API key that `headers` carry. Raises GatewayError (401)."""
    bearer = headers.get(b"authorization")
    if bearer is not None:
        scheme, _, secret = bearer.partition(b" ")
        if scheme.lower() != b"bearer":
            raise errors.no_key()
        secret = secret.strip()
    else:
        secret = headers.get(b"x-api-key", b"").strip()
    if not secret:
        raise errors.no_key()
    key = table.keys.get(hashlib.sha256(secret).hexdigest())
    if key is None:
        raise errors.wrong_key()
    if key.expires_at is not None and key.expires_at <= now():
        raise errors.expired_key()
    return key


def declared_length(headers: Headers) -> int | None:
    """Return the value of Content-Length, None without one or if it is no number."""
    value = headers.get(b"content-length")
    return int(value) if value is not None and value.isdigit() else None


def check_encoding(value: bytes) -> None:
    """Check the value of Content-Encoding. Raises GatewayError (415) for a body that would have to be decoded.

    The gateway and the engine read the same bytes: see "Compressed requests" in docs/ARCHITECTURE.md.
    """
    names = {name.strip() for name in value.lower().split(b",")}
    if not names <= {b"identity", b""}:
        raise errors.unknown_encoding(value.decode("latin-1"))


def endpoint(method: str, path: str) -> Literal["models", "model", "relay"]:
    """Return the kind of endpoint at `path`. Raises GatewayError (404, 405)."""
    if path in JSON_PATHS or path in FORM_PATHS:
        if method != "POST":
            raise errors.wrong_method(path, "POST")
        return "relay"
    if path == MODELS_PATH or (path.startswith(MODELS_PATH + "/") and len(path) > len(MODELS_PATH) + 1):
        if method not in ("GET", "HEAD"):
            raise errors.wrong_method(MODELS_PATH, "GET")
        return "models" if path == MODELS_PATH else "model"
    raise errors.unknown_path(path, right_path(path))


def right_path(path: str) -> str | None:
    """Return the endpoint that a request to `path` was probably meant for, as its last parts say."""
    parts = [part for part in path.split("/") if part]
    for count in (2, 1):
        meant = "/v1/" + "/".join(parts[-count:])
        if meant in JSON_PATHS or meant in FORM_PATHS or meant == MODELS_PATH:
            return meant
    return None


def elsewhere(method: str, path: str, headers: Sequence[Header]) -> errors.GatewayError | None:
    """Return the error for a request meant for `/v1` that was sent to another path, None for any other request."""
    right = right_path(path)
    with_key = any(
        name in (b"authorization", b"x-api-key") and b"ssk_" in value[:20] for name, value in headers
    )  # an API key is never a key of pages or `/api`
    if with_key or (right in JSON_PATHS | FORM_PATHS and method == "POST" and not path.startswith("/api/")):
        return errors.unknown_path(path, right)
    return None


def plain_path(path: str) -> str:
    """Return `path` without doubled slashes and without one at its end."""
    if "//" in path:
        path = _SLASHES.sub("/", path)
    return path.rstrip("/")


def is_v1(path: str) -> bool:
    """Return whether `path`, as `plain_path` returns it, is the gateway's."""
    return path.startswith("/v1/") or path == "/v1"


def find_model(table: RoutingTable, key: KeyEntry, name: str) -> ModelEntry:
    """Return the model served as `name`. Raises GatewayError (404), the same for one that the key may not use."""
    model = table.models.get(name)
    if model is None or not key.may_use(model):
        raise errors.unknown_model(name)
    return model


def usable_routes(table: RoutingTable, model: ModelEntry, tried: Collection[str] = ()) -> Sequence[RouteEntry]:
    """Return the routes that take a request for `model` now, without the placement ids in `tried`."""
    ready = table.ready.get(model.id, ())
    return [route for route in ready if route.placement_id not in tried] if tried else ready


def no_route_error(table: RoutingTable, model: ModelEntry) -> errors.GatewayError:
    """Return the error for a model without a usable route: windows first, then node states, then readiness.

    Node states count only if no replica is on a serving node.
    """
    if (paused := table.paused.get(model.id)) is not None:
        return paused
    if not model.routes:
        return errors.model_not_placed(model.id)
    node_error: errors.GatewayError | None = None
    serving: list[RouteEntry] = []
    for route in model.routes:
        state = table.nodes.get(route.node_id)
        if state is NodeState.SERVING and route.node_id in table.endpoints:
            serving.append(route)
        elif node_error is None:
            node_error = _NODE_ERRORS.get(state, errors.node_offline)(model.id, route.node_id)
    if coming := [route for route in serving if route.state in COMING]:
        seconds = min(route.retry_seconds or errors.STARTING_RETRY_SECONDS for route in coming)
        ended = all(route.state is RouteState.RESTARTING for route in coming)
        return (errors.model_restarting if ended else errors.model_starting)(model.id, seconds)
    if node_error is not None and not serving:
        return node_error
    if all(route.state is RouteState.STOPPED for route in serving):
        return errors.model_stopped(model.id)
    return errors.model_not_ready(model.id)


_NODE_ERRORS: dict[NodeState | None, Callable[[str, str], errors.GatewayError]] = {
    NodeState.INCOMPATIBLE: errors.node_incompatible,
    NodeState.PENDING_TAKEOVER: errors.node_pending_takeover,
}


def is_starting(table: RoutingTable, model: ModelEntry) -> bool:
    """Return whether a replica of `model` is starting on a serving node, so that waiting makes sense."""
    return model.id not in table.paused and any(
        route.state in COMING and table.nodes.get(route.node_id) is NodeState.SERVING for route in model.routes
    )


def is_ready(table: RoutingTable, model: ModelEntry) -> bool:
    """Return whether a request for `model` would be relayed now."""
    return bool(usable_routes(table, model))


def state_of(table: RoutingTable, model: ModelEntry) -> str:
    """Return the state of `model` in one word: ``ready``, or why it takes no requests now."""
    if is_ready(table, model):
        return "ready"
    error = no_route_error(table, model)
    return error.state or error.code


def request_id(headers: Headers) -> bytes:
    """Return the ``x-request-id`` of the request if it is short and plain, else a new id."""
    value = headers.get(b"x-request-id")
    if value is not None and _REQUEST_ID.fullmatch(value):
        return value
    return b"req-%b%08x" % (_RUN[:16], next(_COUNT) & 0xFFFFFFFF)


def trace(headers: Headers) -> list[Header]:
    """Return the W3C trace context of the request unchanged, or a new one if it has no valid one.

    The gateway adds no span, so the engine's spans are children of the client's.
    """
    parent = headers.get(b"traceparent")
    if parent is None or _TRACE.fullmatch(parent) is None:
        number = next(_COUNT)
        return [(b"traceparent", b"00-%b%016x-%b%08x-00" % (_RUN[:16], number, _RUN[16:], number & 0xFFFFFFFF))]
    state = headers.get(b"tracestate")
    if state and len(state) <= _TRACE_STATE_BYTES and state.isascii():
        return [(b"traceparent", parent), (b"tracestate", state)]
    return [(b"traceparent", parent)]


def upstream_header_lines(headers: Headers) -> bytes:
    """Return the lines of the request headers that are sent upstream: never credentials, cookies or addresses."""
    return _upstream_header_lines(*map(headers.get, REQUEST_HEADERS))


@functools.lru_cache(maxsize=512)
def _upstream_header_lines(*values: bytes | None) -> bytes:
    # Cached: clients send the same few values in every request.
    return header_lines((name, value) for name, value in zip(REQUEST_HEADERS, values, strict=True) if value is not None)


def header_lines(headers: Iterable[Header]) -> bytes:
    """Return `headers` as lines of an HTTP head."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def _may_read(origin: bytes, origins: Collection[str]) -> bool:
    return "*" in origins or origin.decode("latin-1").lower() in origins


def cors_headers(headers: Headers, origins: Collection[str]) -> list[Header]:
    """Return the headers that let a page of an allowed origin read the response; none for other clients."""
    origin = headers.get(b"origin")
    if not origins or origin is None:
        return []
    vary = (b"vary", b"origin")
    if not _may_read(origin, origins):
        return [vary]
    return [vary, (b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED)]


def preflight_headers(headers: Headers, origins: Collection[str]) -> list[Header] | None:
    """Return the headers that a preflight response has beyond `cors_headers`; None for other requests and origins."""
    origin = headers.get(b"origin")
    if origin is None or not _may_read(origin, origins) or b"access-control-request-method" not in headers:
        return None
    names = headers.get(b"access-control-request-headers", b"")
    if not _HEADER_NAMES.fullmatch(names):
        names = b"authorization, content-type, x-api-key"
    return [
        (b"access-control-allow-methods", b"GET, HEAD, POST"),
        (b"access-control-allow-headers", names),
        (b"access-control-max-age", b"600"),
    ]


def downstream_headers(headers: Iterable[Header]) -> list[Header]:
    """Return the response headers that are sent downstream; names in lower case."""
    return [header for header in headers if header[0] in RESPONSE_HEADERS]


def is_event_stream(kind: bytes) -> bool:
    """Return whether the content type `kind` is a stream of server-sent events."""
    return kind[:17].lower() == b"text/event-stream"
