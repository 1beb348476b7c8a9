"""The decisions of `/v1`, case by case."""

import itertools
from dataclasses import replace

import pytest

from models_app import keys
from models_app.gateway import catalog, core, errors
from models_app.gateway.errors import GatewayError
from models_app.gateway.table import ModelEntry, NodeState, RouteEntry, RouteState
from tests.gateway.tables import GOOD, GOOD_KEY, NARROW, NOW, OLD, model, refusal_of, route, table

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", f"Bearer {GOOD}".encode())],
        [(b"authorization", f"bearer  {GOOD} ".encode())],
        [(b"x-api-key", GOOD.encode())],
        [(b"authorization", f"Bearer {GOOD}".encode()), (b"authorization", f"Bearer {GOOD}".encode())],
    ],
)
def test_a_key_is_taken_from_where_clients_send_it(headers):
    assert core.authenticate(table(), core.fold_headers(headers), lambda: NOW).name == "good"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], errors.no_key),
        ([(b"authorization", b"")], errors.no_key),
        ([(b"authorization", b"Bearer")], errors.no_key),
        ([(b"authorization", b"Bearer ")], errors.no_key),
        ([(b"authorization", f"Basic {GOOD}".encode())], errors.no_key),
        ([(b"authorization", GOOD.encode())], errors.no_key),
        ([(b"x-api-key", b" ")], errors.no_key),
        ([(b"authorization", f"Bearer {GOOD}x".encode())], errors.wrong_key),
        ([(b"authorization", f"Bearer {OLD}".encode())], errors.expired_key),
        ([(b"authorization", b"Bearer \xff\xfe")], errors.wrong_key),
        ([(b"authorization", b"Bearer wrong"), (b"x-api-key", GOOD.encode())], errors.wrong_key),
        ([(b"authorization", b"Bearer wrong"), (b"authorization", f"Bearer {GOOD}".encode())], errors.wrong_key),
        ([(b"cookie", f"key={GOOD}".encode())], errors.no_key),
    ],
)
def test_everything_else_is_401_with_a_challenge(headers, expected):
    refusal = refusal_of(core.authenticate, table(), core.fold_headers(headers), lambda: NOW)
    assert (refusal.status, refusal.code) == (401, "invalid_api_key")
    assert (b"www-authenticate", b'Bearer realm="mirbad"') in refusal.headers()
    assert refusal.message == expected().message


@pytest.mark.parametrize(
    ("sent", "folded"),
    [
        ([], {}),
        ([(b"a", b"1"), (b"b", b"2")], {b"a": b"1", b"b": b"2"}),
        ([(b"a", b"1"), (b"b", b"2"), (b"a", b"1")], {b"a": b"1", b"b": b"2"}),
        ([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"a", b"1")], {b"a": b"1, 3, 1", b"b": b"2"}),
    ],
)
def test_values_of_one_name_are_joined_in_their_order_unless_they_are_equal(sent, folded):
    assert core.fold_headers(sent) == folded


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/v1/chat/completions", "relay"),
        ("POST", "/v1/completions", "relay"),
        ("POST", "/v1/embeddings", "relay"),
        ("GET", "/v1/models", "models"),
        ("HEAD", "/v1/models", "models"),
        ("GET", "/v1/models/org/m", "model"),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/v1/models/m", 405),
        ("POST", "/v1/", 404),
        ("POST", "/v1", 404),
        ("GET", "/v1/models/", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "/v1//chat/completions", 404),
        ("POST", "/v1/load_lora_adapter", 404),
        ("POST", "/v1/../metrics", 404),
    ],
)
def test_only_listed_endpoints_are_served(method, path, expected):
    if isinstance(expected, str):
        assert core.endpoint(method, path) == expected
    else:
        refusal = refusal_of(core.endpoint, method, path)
        assert refusal.status == expected
        allowed = {405: b"GET" if path.startswith("/v1/models") else b"POST"}.get(expected)
        assert dict(refusal.headers()).get(b"allow") == allowed
        assert (core.MODELS_PATH if allowed == b"GET" else path) in refusal.message


def test_a_model_that_the_key_may_not_use_does_not_exist_for_it():
    routes = table(model(route()))
    narrow = routes.keys[keys.digest(NARROW)]
    refusal = refusal_of(core.find_model, routes, narrow, "m")
    unknown = refusal_of(core.find_model, routes, narrow, "nothing")
    assert (refusal.status, refusal.code, refusal.param) == (404, "model_not_found", "model")
    assert refusal.message.replace("'m'", "'nothing'") == unknown.message
    assert refusal_of(core.find_model, routes, narrow, "org/m").status == 404
    assert core.find_model(routes, routes.keys[keys.digest(GOOD)], "m").id == "m"


def test_a_key_for_a_model_reaches_no_other_that_is_served_as_its_id():
    other = ModelEntry("x", ("other", "x"), 0, 1.0, 1.0, 0.0, (RouteEntry("p9", "x", "n1", 1, RouteState.READY),))
    own = ModelEntry("other", ("mine",), 0, 1.0, 1.0, 0.0, (RouteEntry("p8", "other", "n1", 1, RouteState.READY),))
    for models in ((other,), (other, own)):  # its own model may have been deleted
        routes = table(*models)
        narrow = routes.keys[keys.digest(NARROW)]
        for name in ("other", "x"):
            assert refusal_of(core.find_model, routes, narrow, name).status == 404
            assert refusal_of(catalog.entry, routes, narrow, name).status == 404
        assert b'"other"' not in catalog.listing(routes, narrow)
    assert core.find_model(routes, narrow, "mine").id == "other"


OFF = NodeState.OFFLINE
UP = NodeState.SERVING


@pytest.mark.parametrize(
    ("routes", "nodes", "code"),
    [
        ([], {}, "model_not_placed"),
        ([route(node="gone")], {}, "node_offline"),
        ([route()], {"n1": OFF}, "node_offline"),
        ([route()], {"n1": NodeState.INCOMPATIBLE}, "node_incompatible"),
        ([route()], {"n1": NodeState.PENDING_TAKEOVER}, "node_pending_takeover"),
        ([route(state=RouteState.DOWN)], {"n1": OFF}, "node_offline"),
        ([route(state=RouteState.DOWN)], {}, "model_not_ready"),
        ([route(state=RouteState.STARTING)], {}, "model_not_ready"),
        ([route(), route("p2", "n2", RouteState.DOWN)], {"n1": OFF}, "model_not_ready"),
        ([route(), route("p2", "n2", RouteState.STARTING)], {"n1": OFF}, "model_not_ready"),
        ([route(), route("p2", "n2")], {"n1": NodeState.INCOMPATIBLE, "n2": OFF}, "node_incompatible"),
    ],
)
def test_node_states_are_told_before_readiness_and_each_503_says_when_to_come_back(routes, nodes, code):
    m = model(*routes)
    refusal = core.no_route_error(table(m, **nodes), m)
    assert isinstance(refusal, GatewayError)
    assert (refusal.status, refusal.code) == (503, code)
    assert int(dict(refusal.headers())[b"retry-after"]) >= 1
    assert refusal.payload()["error"]["type"] == "server_error"


S, R, D, X = RouteState.STARTING, RouteState.RESTARTING, RouteState.DOWN, RouteState.STOPPED


@pytest.mark.parametrize(
    ("states", "said", "retry_after"),
    [
        ([S], "starting", 5),
        ([R], "restarting", 5),
        ([R, R], "restarting", 5),
        ([R, S], "starting", 5),
        ([R, X], "restarting", 5),
        ([D, S], "starting", 5),
        ([X], "stopped", None),
        ([X, X], "stopped", None),
        ([X, D], "unavailable", 30),
        ([D], "unavailable", 30),
    ],
)
def test_a_model_says_what_its_replicas_on_serving_nodes_do(states, said, retry_after):
    m = model(*(route(f"p{number}", "n1", state) for number, state in enumerate(states)))
    found = core.no_route_error(table(m), m)
    assert (found.code, found.state, found.retry_after) == ("model_not_ready", said, retry_after)
    assert "'m'" in found.message
    assert core.state_of(table(m), m) == said
    assert not core.is_ready(table(m), m)


def test_the_first_replica_that_may_be_ready_says_when_to_come_back():
    def starting(*seconds):
        return model(*(replace(route(f"p{at}", state=S), retry_seconds=one) for at, one in enumerate(seconds)))

    found = [core.no_route_error(table(m), m).retry_after for m in (starting(40, 7, 90), starting(40, None))]
    assert found == [7, 5]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (OFF, "node_offline"),
        (NodeState.INCOMPATIBLE, "node_incompatible"),
        (NodeState.PENDING_TAKEOVER, "node_pending_takeover"),
    ],
)
def test_an_error_of_a_node_names_the_model_and_the_first_such_node(state, code):
    m = model(route("p1", "n1"), route("p2", "n2"))
    found = core.no_route_error(table(m, n1=state, n2=OFF), m)
    assert (found.code, core.state_of(table(m, n1=state, n2=OFF), m)) == (code, code)
    assert "'m'" in found.message
    assert "n1" in found.message
    assert "n2" not in found.message


def test_a_ready_model_is_ready_and_one_that_is_placed_nowhere_says_so():
    assert core.is_ready(table(model(route())), model(route()))
    assert core.state_of(table(model(route())), model(route())) == "ready"
    assert core.state_of(table(), model()) == "not_placed"
    assert "'m'" in core.no_route_error(table(), model()).message


def test_a_paused_model_is_in_maintenance_before_its_node_is_looked_at():
    m = model(route(state=RouteState.STARTING))
    window = errors.maintenance("Benchmark on node n1; paused until ~10:00 UTC.", 12.2)
    routes = replace(table(m, n1=OFF), paused={"m": window})
    assert core.usable_routes(routes, m) == ()
    found = core.no_route_error(routes, m)
    assert (found.status, found.code, found.retry_after) == (503, "maintenance", 30)
    assert errors.maintenance("x", 99.1).retry_after == 100
    assert not core.is_starting(routes, m)
    assert b'"id": "m"' not in catalog.listing(replace(table(model(route())), paused={"m": window}), GOOD_KEY)


def test_a_starting_model_says_so_and_asks_to_come_back_soon():
    starting, down = model(route(state=RouteState.STARTING)), model(route(state=RouteState.DOWN))
    soon = core.no_route_error(table(starting), starting)
    late = core.no_route_error(table(down), down)
    assert "starting" in soon.message
    assert soon.retry_after < late.retry_after


def test_only_ready_replicas_on_serving_nodes_that_were_not_tried_are_usable():
    m = model(route("p1"), route("p2", "n2"), route("p3", "n2", RouteState.DOWN))
    routes = table(m)

    def ids(table, tried=()):
        return [found.placement_id for found in core.usable_routes(table, m, tried)]

    assert ids(routes) == ["p1", "p2"]
    assert ids(routes, {"p1"}) == ["p2"]
    assert ids(routes, {"p1", "p2"}) == []
    assert core.no_route_error(routes, m).code == "model_not_ready"
    assert ids(table(m, n2=OFF)) == ["p1"]


def test_a_node_without_a_known_key_is_not_dialled():
    m = model(route())
    unknown = replace(table(m), endpoints={})
    assert not core.usable_routes(unknown, m)
    assert core.no_route_error(unknown, m).code == "node_offline"


def test_only_starting_on_a_serving_node_is_worth_waiting_for():
    coming = model(route(state=RouteState.STARTING))
    assert core.is_starting(table(coming), coming)
    assert not core.is_starting(table(coming, n1=OFF), coming)
    assert not core.is_starting(table(), model(route(state=RouteState.DOWN)))


def test_a_model_that_the_table_does_not_know_has_no_routes():
    assert core.usable_routes(table(), model(route())) == ()
    assert core.usable_routes(table(), model(route()), {"p2"}) == []


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        ({}, None),
        ({b"content-length": b"0"}, 0),
        ({b"content-length": b"1234567890123"}, 1234567890123),
        ({b"content-length": b""}, None),
        ({b"content-length": b"-1"}, None),
        ({b"content-length": b"12, 13"}, None),
        ({b"transfer-encoding": b"chunked"}, None),
    ],
)
def test_the_declared_length_is_a_number_or_none(headers, length):
    assert core.declared_length(headers) == length


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream; charset=utf-8", True),
        (b"text/event-strea", False),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_an_event_stream_is_known_by_its_content_type(kind, expected):
    assert core.is_event_stream(kind) is expected


@pytest.mark.parametrize(
    ("sent", "kept"),
    [(b"abc-1.2:3_4", True), (b"a" * 128, True), (b"a" * 129, False), (b"", False), (b"a b", False), (b"\xff", False)],
)
def test_a_request_id_is_taken_over_when_it_is_short_and_plain(sent, kept):
    found = core.request_id({b"x-request-id": sent})
    assert (found == sent) is kept
    assert found.startswith(b"req-") is not kept


@pytest.fixture
def counter(monkeypatch):
    """The ids of a process with a known random part, after more than 2**32 requests."""
    monkeypatch.setattr(core, "_RUN", b"0123456789abcdef" + b"fedcba98")
    monkeypatch.setattr(core, "_COUNT", itertools.count(0x1_0000_002A))


def test_generated_request_ids_have_the_form_that_the_access_log_prints(counter):
    assert core.request_id({}) == b"req-0123456789abcdef0000002a"
    assert core.request_id({b"x-request-id": b"not plain"}) == b"req-0123456789abcdef0000002b"


PARENT = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({b"traceparent": PARENT}, [(b"traceparent", PARENT)]),
        ({b"traceparent": PARENT, b"tracestate": b""}, [(b"traceparent", PARENT)]),
        (
            {b"traceparent": PARENT, b"tracestate": b"x=" + b"1" * 510},
            [(b"traceparent", PARENT), (b"tracestate", b"x=" + b"1" * 510)],
        ),
        ({b"traceparent": PARENT, b"tracestate": b"x=" + b"1" * 511}, [(b"traceparent", PARENT)]),
        ({b"traceparent": PARENT, b"tracestate": "x=é".encode()}, [(b"traceparent", PARENT)]),
        ({b"traceparent": b"01" + PARENT[2:] + b"-more"}, [(b"traceparent", b"01" + PARENT[2:] + b"-more")]),
    ],
)
def test_a_valid_trace_context_passes_unchanged(headers, expected):
    assert core.trace(headers) == expected


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"tracestate": b"x=1"},
        {b"traceparent": b"", b"tracestate": b"x=1"},
        {b"traceparent": b"00-nonsense", b"tracestate": b"x=1"},
        {b"traceparent": b"ff" + PARENT[2:]},
        {b"traceparent": PARENT + b"-more"},
        {b"traceparent": PARENT + b"-"},
        {b"traceparent": b"00-" + b"0" * 32 + PARENT[35:]},
        {b"traceparent": PARENT[:36] + b"0" * 16 + b"-01"},
        {b"traceparent": PARENT.upper()},
    ],
)
def test_an_invalid_trace_context_is_replaced_by_a_new_one(headers, counter):
    new = b"00-0123456789abcdef000000010000002a-fedcba980000002a-00"
    assert core.trace(headers) == [(b"traceparent", new)]


def test_header_lines_follow_each_other():
    assert core.header_lines([(b"a", b"1"), (b"b", b"2")]) == b"a: 1\r\nb: 2\r\n"


def test_headers_pass_by_allow_list_only():
    names = (b"authorization", b"cookie", b"x-forwarded-for", b"x-api-key", b"connection", b"host", b"content-type")
    assert core.upstream_header_lines(dict.fromkeys(names, b"v")) == b"content-type: v\r\n"
    names = (b"set-cookie", b"server", b"connection", b"transfer-encoding", b"mirbad-answer", b"content-type")
    assert core.downstream_headers([(n, b"v") for n in names]) == [(b"content-type", b"v")]


@pytest.mark.parametrize("value", [b"identity", b"", b" ", b"Identity", b"identity, identity", b",identity,"])
def test_a_body_that_is_not_compressed_is_read(value):
    assert core.check_encoding(value) is None


@pytest.mark.parametrize(
    "value", [b"gzip", b"GZIP", b"x-gzip", b"zstd", b"br", b"deflate", b"gzip, gzip", b"identity,zstd", b"aes", b"\xff"]
)
def test_a_compressed_body_is_refused_with_what_is_read(value):
    refusal = refusal_of(core.check_encoding, value)
    assert (refusal.status, refusal.code) == (415, "unsupported_content_encoding")
    assert "only 'identity' is" in refusal.message
    assert (b"accept-encoding", b"identity") in refusal.headers()
