"""The decisions of `/v1`, case by case."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from models_app import keys
from models_app.gateway import catalog, core, refusals
from models_app.gateway.refusals import Refusal
from models_app.gateway.table import Key, Model, NodeState, Route, RouteState, Table

pytestmark = pytest.mark.unit

NOW = datetime(2027, 1, 1, tzinfo=UTC)
GOOD, NARROW, OLD = "ssk_" + "g" * 43, "ssk_" + "n" * 43, "ssk_" + "o" * 43


GOOD_KEY = Key(1, "good", None, None)


def route(name="p1", node="n1", state=RouteState.READY):
    return Route(name, "m", node, 1, state)


def model(*routes, **changes):
    return replace(Model("m", ("m", "org/m"), 0, 1.0, 1.0, 0.0, routes), **changes)


def table(*models, **nodes):
    states = {"n1": NodeState.SERVING, "n2": NodeState.SERVING} | nodes
    return Table(
        version=1,
        keys={
            keys.digest(GOOD): Key(1, "good", None, NOW + timedelta(seconds=1)),
            keys.digest(NARROW): Key(2, "narrow", frozenset({"other", "org/m"}), None),
            keys.digest(OLD): Key(3, "old", None, NOW),
        },
        models={name: m for m in models for name in m.names},
        nodes=states,
        endpoints=dict.fromkeys(states, object()),
    )


def refusal_of(call, *arguments):
    with pytest.raises(Refusal) as caught:
        call(*arguments)
    return caught.value


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
    assert core.authenticate(table(), core.folded(headers), lambda: NOW).name == "good"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", f"Basic {GOOD}".encode())],
        [(b"authorization", GOOD.encode())],
        [(b"authorization", f"Bearer {GOOD}x".encode())],
        [(b"authorization", f"Bearer {OLD}".encode())],
        [(b"authorization", b"Bearer \xff\xfe")],
        [(b"authorization", b"Bearer wrong"), (b"x-api-key", GOOD.encode())],
        [(b"authorization", b"Bearer wrong"), (b"authorization", f"Bearer {GOOD}".encode())],
        [(b"cookie", f"key={GOOD}".encode())],
    ],
)
def test_everything_else_is_401_with_a_challenge(headers):
    refusal = refusal_of(core.authenticate, table(), core.folded(headers), lambda: NOW)
    assert (refusal.status, refusal.code) == (401, "invalid_api_key")
    assert (b"www-authenticate", b'Bearer realm="mirbad"') in refusal.headers()
    assert GOOD not in refusal.message


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
        assert (expected == 405) == any(name == b"allow" for name, _ in refusal.headers())


def test_a_model_that_the_key_may_not_use_does_not_exist_for_it():
    routes = table(model(route()))
    narrow = routes.keys[keys.digest(NARROW)]
    refusal = refusal_of(core.find_model, routes, narrow, "m")
    unknown = refusal_of(core.find_model, routes, narrow, "nothing")
    assert (refusal.status, refusal.code, refusal.param) == (404, "model_not_found", "model")
    assert refusal.message.replace("'m'", "'nothing'") == unknown.message
    assert core.find_model(routes, narrow, "org/m").id == "m"
    assert core.find_model(routes, routes.keys[keys.digest(GOOD)], "m").id == "m"


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
        ([route(state=RouteState.COMING)], {}, "model_not_ready"),
        ([route(), route("p2", "n2", RouteState.DOWN)], {"n1": OFF}, "model_not_ready"),
        ([route(), route("p2", "n2", RouteState.COMING)], {"n1": OFF}, "model_not_ready"),
        ([route(), route("p2", "n2")], {"n1": NodeState.INCOMPATIBLE, "n2": OFF}, "node_incompatible"),
    ],
)
def test_node_states_are_told_before_readiness_and_each_503_says_when_to_come_back(routes, nodes, code):
    m = model(*routes)
    refusal = core.why_none(table(m, **nodes), m)
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code) == (503, code)
    assert int(dict(refusal.headers())[b"retry-after"]) >= 1
    assert refusal.payload()["error"]["type"] == "server_error"


def test_a_paused_model_is_in_maintenance_before_its_node_is_looked_at():
    m = model(route(state=RouteState.COMING))
    window = refusals.maintenance("Benchmark on node n1; paused until ~10:00 UTC.", 12.2)
    routes = replace(table(m, n1=OFF), paused={"m": window})
    assert not core.usable(routes, m)
    found = core.why_none(routes, m)
    assert (found.status, found.code, found.retry_after) == (503, "maintenance", 30)
    assert refusals.maintenance("x", 99.1).retry_after == 100
    assert not core.is_coming(routes, m)
    assert b'"id": "m"' not in catalog.listing(replace(table(model(route())), paused={"m": window}), GOOD_KEY)


def test_a_starting_model_says_so_and_asks_to_come_back_soon():
    starting, down = model(route(state=RouteState.COMING)), model(route(state=RouteState.DOWN))
    soon = core.why_none(table(starting), starting)
    late = core.why_none(table(down), down)
    assert "starting" in soon.message
    assert soon.retry_after < late.retry_after


def test_only_ready_replicas_on_serving_nodes_that_were_not_tried_are_usable():
    m = model(route("p1"), route("p2", "n2"), route("p3", "n2", RouteState.DOWN))
    routes = table(m)

    def ids(table, tried=()):
        return [found.placement_id for found in core.usable(table, m, tried)]

    assert ids(routes) == ["p1", "p2"]
    assert ids(routes, {"p1"}) == ["p2"]
    assert ids(routes, {"p1", "p2"}) == []
    assert core.why_none(routes, m).code == "model_not_ready"
    assert ids(table(m, n2=OFF)) == ["p1"]


def test_a_node_without_a_known_key_is_not_dialled():
    m = model(route())
    unknown = replace(table(m), endpoints={})
    assert not core.usable(unknown, m)
    assert core.why_none(unknown, m).code == "node_offline"


def test_only_starting_on_a_serving_node_is_worth_waiting_for():
    coming = model(route(state=RouteState.COMING))
    assert core.is_coming(table(coming), coming)
    assert not core.is_coming(table(coming, n1=OFF), coming)
    assert not core.is_coming(table(), model(route(state=RouteState.DOWN)))


@pytest.mark.parametrize(
    ("sent", "kept"),
    [(b"abc-1.2:3_4", True), (b"a" * 128, True), (b"a" * 129, False), (b"", False), (b"a b", False), (b"\xff", False)],
)
def test_a_request_id_is_taken_over_when_it_is_short_and_plain(sent, kept):
    found = core.request_id({b"x-request-id": sent})
    assert (found == sent) is kept
    assert kept or found.startswith(b"req-")


def test_headers_pass_by_allow_list_only():
    names = (b"authorization", b"cookie", b"x-forwarded-for", b"x-api-key", b"connection", b"host", b"content-type")
    assert core.lines_to_node(dict.fromkeys(names, b"v")) == b"content-type: v\r\n"
    names = (b"set-cookie", b"server", b"connection", b"transfer-encoding", b"mirbad-answer", b"content-type")
    assert core.headers_to_client([(n, b"v") for n in names]) == [(b"content-type", b"v")]


def test_the_list_shows_ready_models_that_the_key_may_use():
    ready = model(route())
    starting = Model("s", ("s",), 0, 1, 1, 0, (Route("p9", "s", "n1", 1, RouteState.COMING),))
    routes = table(ready, starting)
    good, narrow = routes.keys[keys.digest(GOOD)], routes.keys[keys.digest(NARROW)]
    assert b'"id": "m"' in catalog.listing(routes, good)
    assert b'"id": "s"' not in catalog.listing(routes, good)
    assert b'"id": "m"' not in catalog.listing(routes, narrow)
    assert b'"id": "org/m"' in catalog.listing(routes, narrow)
    assert b'"id": "s"' in catalog.entry(routes, good, "s")
    assert refusal_of(catalog.entry, routes, narrow, "m").status == 404
