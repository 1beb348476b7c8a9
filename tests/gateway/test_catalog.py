"""``GET /v1/models``: the models that a key may use, with their state and context."""

import json
from dataclasses import replace

import pytest

from models_app import keys
from models_app.gateway import catalog, errors
from models_app.gateway.table import ModelEntry, NodeState, RouteEntry, RouteState
from tests.gateway.tables import GOOD, GOOD_KEY, NARROW, model, refusal_of, route, table

pytestmark = pytest.mark.unit

OFF = NodeState.OFFLINE


def test_the_list_shows_ready_models_that_the_key_may_use():
    ready = model(route())
    starting = ModelEntry("s", ("s",), 0, 1, 1, 0, (RouteEntry("p9", "s", "n1", 1, RouteState.STARTING),))
    routes = table(ready, starting)
    good, narrow = routes.keys[keys.digest(GOOD)], routes.keys[keys.digest(NARROW)]
    assert b'"id": "m"' in catalog.listing(routes, good)
    assert b'"id": "s"' not in catalog.listing(routes, good)
    assert catalog.listing(routes, narrow) == b'{"object": "list", "data": []}'
    assert b'"id": "s"' in catalog.entry(routes, good, "s")
    assert refusal_of(catalog.entry, routes, narrow, "m").status == 404


LISTED = {"id", "object", "created", "owned_by", "state"}


def listed(routes, name="m"):
    return json.loads(catalog.entry(routes, GOOD_KEY, name))


def test_a_model_is_listed_with_its_context_by_both_names_and_unknown_values_are_left_out():
    known = model(route(), context_length=8192, owner="Qwen")
    routes = table(known)
    (first, second) = json.loads(catalog.listing(routes, GOOD_KEY))["data"]
    assert first == {
        "id": "m", "object": "model", "created": 0, "owned_by": "Qwen", "state": "ready", "context_length": 8192,
        "max_model_len": 8192,
    }  # fmt: skip
    assert second == first | {"id": "org/m"}
    assert listed(routes) == first
    assert set(listed(table(model(route())))) == LISTED
    assert listed(table(model(route())))["owned_by"] == "mirbad"


@pytest.mark.parametrize(
    ("routes", "nodes", "state"),
    [
        ([route()], {}, "ready"),
        ([route(state=RouteState.DOWN), route("p2", "n2")], {}, "ready"),
        ([], {}, "not_placed"),
        ([route(state=RouteState.STARTING)], {}, "starting"),
        ([route(state=RouteState.RESTARTING)], {}, "restarting"),
        ([route(state=RouteState.STOPPED)], {}, "stopped"),
        ([route(state=RouteState.DOWN)], {}, "unavailable"),
        ([route()], {"n1": OFF}, "node_offline"),
        ([route()], {"n1": NodeState.INCOMPATIBLE}, "node_incompatible"),
        ([route()], {"n1": NodeState.PENDING_TAKEOVER}, "node_pending_takeover"),
    ],
)
def test_a_model_is_told_with_its_state(routes, nodes, state):
    found = table(model(*routes), **nodes)
    assert listed(found)["state"] == state
    assert (b'"id": "m"' in catalog.listing(found, GOOD_KEY)) is (state == "ready")


def test_a_model_in_maintenance_says_so():
    found = replace(table(model(route())), paused={"m": errors.maintenance("x", 1)})
    assert listed(found)["state"] == "maintenance"
