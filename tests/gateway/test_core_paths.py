"""Paths beside `/v1`, and pages of other origins: the decisions, without a server."""

import re
from dataclasses import replace

import pytest

from models_app.gateway import core
from models_app.gateway.table import NodeState, RouteState
from tests.gateway.tables import model, refusal_of, route, table

pytestmark = pytest.mark.unit

OWN = b"https://chat.example"
ALLOWED = frozenset({"https://chat.example"})
VARY = (b"vary", b"origin")
EXPOSED = (b"access-control-expose-headers", b"x-request-id, retry-after, x-should-retry")
KEY = [(b"authorization", b"Bearer ssk_abc")]


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("//v1//models", "/v1/models"),
        ("/v1///models//", "/v1/models"),
        ("/v1", "/v1"),
        ("/v1/", "/v1"),
        ("/v1/models/a/b", "/v1/models/a/b"),
        ("/v1/models/MAX/", "/v1/models/MAX"),
        ("/", ""),
    ],
)
def test_slashes_too_many_are_left_out(path, plain):
    assert core.plain_path(path) == plain


@pytest.mark.parametrize(
    ("path", "is_v1"),
    [("/v1", True), ("/v1/x", True), ("/v1x", False), ("/v2/x", False), ("/api/v1/x", False), ("v1/x", False)],
)
def test_what_is_the_gateways(path, is_v1):
    assert core.is_v1(path) is is_v1


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/embeddings", "/v1/embeddings"),
        ("/audio/transcriptions", "/v1/audio/transcriptions"),
        ("/anthropic/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/a/b/c/completions", "/v1/completions"),
        ("/v1/models/m", None),
        ("/models", "/v1/models"),
        ("/nodes", None),
        ("/", None),
        ("/chat", None),
    ],
)
def test_what_a_path_was_meant_for(path, meant):
    assert core.right_path(path) == meant


@pytest.mark.parametrize(
    ("method", "path", "headers", "is_ours"),
    [
        ("POST", "/chat/completions", [], True),
        ("POST", "/audio/transcriptions", [], True),
        ("GET", "/chat/completions", [], False),
        ("POST", "/api/chat/completions", [], False),
        ("POST", "/models", [], False),
        ("GET", "/models", [], False),
        ("GET", "/models", KEY, True),
        ("GET", "/models", [(b"x-api-key", b"ssk_abc")], True),
        ("POST", "/api/chat/completions", KEY, True),
        ("GET", "/nothing", KEY, True),
        ("GET", "/models", [(b"authorization", b"Bearer mbt_abc")], False),
        ("GET", "/models", [(b"cookie", b"ssk_abc")], False),
        ("GET", "/models", [(b"authorization", b"x" * 16 + b"ssk_abc")], True),
        ("GET", "/models", [(b"authorization", b"x" * 17 + b"ssk_abc")], False),
        ("GET", "/models", [(b"cookie", b"a=b"), *KEY, (b"x-api-key", b"other")], True),
        ("GET", "/models", [(b"authorization", b"Bearer " + b"x" * 20 + b"ssk_abc")], False),
    ],
)
def test_a_request_that_was_meant_for_v1_is_told_so(method, path, headers, is_ours):
    found = core.elsewhere(method, path, headers)
    expected = (404, "unknown_url") if is_ours else None
    assert (found and (found.status, found.code)) == expected


def test_the_right_address_is_named():
    found = core.elsewhere("POST", "/openai/chat/completions", [])
    assert found is not None
    assert "/v1/chat/completions" in found.message


def test_a_wrong_path_below_v1_is_told_the_right_one():
    found = refusal_of(core.endpoint, "POST", "/v1/openai/embeddings")
    assert (found.status, found.code) == (404, "unknown_url")
    assert "'/v1/openai/embeddings'" in found.message
    assert "/v1/embeddings" in found.message


@pytest.mark.parametrize(
    ("headers", "origins", "expected"),
    [
        ({}, ALLOWED, []),
        ({b"origin": OWN}, frozenset(), []),
        ({b"origin": OWN}, ALLOWED, [VARY, (b"access-control-allow-origin", OWN), EXPOSED]),
        (
            {b"origin": b"HTTPS://Chat.Example"},
            ALLOWED,
            [VARY, (b"access-control-allow-origin", b"HTTPS://Chat.Example"), EXPOSED],
        ),
        ({b"origin": b"https://evil.example"}, ALLOWED, [VARY]),
        ({b"origin": b"null"}, ALLOWED, [VARY]),
        ({b"origin": b"null"}, frozenset({"*"}), [VARY, (b"access-control-allow-origin", b"null"), EXPOSED]),
    ],
)
def test_an_origin_that_is_named_may_read_and_no_other(headers, origins, expected):
    assert core.cors_headers(headers, origins) == expected


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (b"authorization,x-new", b"authorization,x-new"),
        (b"", b"authorization, content-type, x-api-key"),
        (b"a\r\nset-cookie: x", b"authorization, content-type, x-api-key"),
        (b"x" * 2001, b"authorization, content-type, x-api-key"),
    ],
)
def test_a_preflight_is_answered_with_the_names_that_it_asks_for(names, allowed):
    headers = {b"origin": OWN, b"access-control-request-method": b"POST", b"access-control-request-headers": names}
    assert core.preflight_headers(headers, ALLOWED) == [
        (b"access-control-allow-methods", b"GET, HEAD, POST"),
        (b"access-control-allow-headers", allowed),
        (b"access-control-max-age", b"600"),
    ]


def test_a_preflight_that_names_no_headers_may_send_those_of_every_client():
    headers = {b"origin": OWN, b"access-control-request-method": b"GET"}
    assert dict(core.preflight_headers(headers, ALLOWED))[b"access-control-allow-headers"] == (
        b"authorization, content-type, x-api-key"
    )


def test_a_preflight_of_another_origin_is_not_allowed_anything() -> None:
    headers = {b"origin": b"https://evil.example", b"access-control-request-method": b"POST"}
    assert core.preflight_headers(headers, frozenset({"*"})) is not None
    assert core.preflight_headers(headers, ALLOWED) is None


@pytest.mark.parametrize(
    ("state", "code", "word"),
    [
        (NodeState.OFFLINE, "node_offline", "n1"),
        (None, "node_offline", "n1"),
    ],
)
def test_an_error_of_a_node_names_the_node(state, code, word):
    m = model(route())
    made = table(m)
    nodes = {name: kept for name, kept in made.nodes.items() if name != "n1"} | ({"n1": state} if state else {})
    found = core.no_route_error(replace(made, nodes=nodes), m)
    assert found.code == code
    assert word in found.message


@pytest.mark.parametrize(
    ("state", "word"), [(RouteState.READY, "ready"), (RouteState.STOPPED, "stopped"), (RouteState.STARTING, "starting")]
)
def test_the_state_of_a_model_is_one_word(state, word):
    m = model(route(state=state))
    assert core.state_of(table(m), m) == word


def test_a_new_trace_has_the_shape_of_the_standard():
    ((name, value),) = core.trace({})
    assert name == b"traceparent"
    assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-00", value)


@pytest.mark.parametrize(
    "headers",
    [
        {b"origin": OWN},
        {b"access-control-request-method": b"POST"},
        {b"origin": b"https://evil.example", b"access-control-request-method": b"POST"},
    ],
)
def test_what_is_no_preflight_of_a_named_origin_is_not_answered_as_one(headers):
    assert core.preflight_headers(headers, ALLOWED) is None
