"""Routing tables for tests of decisions: keys, a model with its routes, nodes that serve."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from models_app import keys
from models_app.gateway.errors import GatewayError
from models_app.gateway.table import KeyEntry, ModelEntry, NodeState, RouteEntry, RouteState, RoutingTable

NOW = datetime(2027, 1, 1, tzinfo=UTC)
GOOD, NARROW, OLD = "ssk_" + "g" * 43, "ssk_" + "n" * 43, "ssk_" + "o" * 43


GOOD_KEY = KeyEntry(1, "good", None, None)


def route(name="p1", node="n1", state=RouteState.READY):
    return RouteEntry(name, "m", node, 1, state)


def model(*routes, **changes):
    return replace(ModelEntry("m", ("m", "org/m"), 0, 1.0, 1.0, 0.0, routes), **changes)


def table(*models, **nodes):
    states = {"n1": NodeState.SERVING, "n2": NodeState.SERVING} | nodes
    return RoutingTable(
        version=1,
        keys={
            keys.digest(GOOD): KeyEntry(1, "good", None, NOW + timedelta(seconds=1)),
            keys.digest(NARROW): KeyEntry(2, "narrow", frozenset({"other"}), None),
            keys.digest(OLD): KeyEntry(3, "old", None, NOW),
        },
        models={name: m for m in models for name in m.names},
        nodes=states,
        endpoints=dict.fromkeys(states, object()),
    )


def refusal_of(call, *arguments):
    with pytest.raises(GatewayError) as caught:
        call(*arguments)
    return caught.value
