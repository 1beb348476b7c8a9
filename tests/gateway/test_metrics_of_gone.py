"""Metrics of models, nodes and placements that were removed: their labels go, the others stay."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from models_app.gateway import errors, metrics
from models_app.gateway.balance import Balancer
from models_app.gateway.metrics import GatewayMetrics
from models_app.gateway.table import ModelEntry, NodeState, RouteEntry, RouteState, RoutingTable

pytestmark = pytest.mark.unit

WHOLE = {"a": ("n1", "n2"), "b": ("n1",)}


def table(placed, nodes=("n1", "n2")):
    models = {}
    for model_id, on in placed.items():
        routes = tuple(RouteEntry(f"{model_id}-{node}", model_id, node, 1, RouteState.READY) for node in on)
        models[f"org/{model_id}"] = ModelEntry(model_id, (f"org/{model_id}",), 0, 1.0, 1.0, 0.0, routes)
    return RoutingTable(version=1, models=models, nodes=dict.fromkeys(nodes, NodeState.SERVING))


@pytest.fixture
def counted():
    found = GatewayMetrics()
    follow(found, table(WHOLE))
    for model_id, on in {**WHOLE, "": ("",)}.items():
        for node in on:
            found.requests[model_id, "200", node] += 3
            found.retries[node] += 1
            found.node_failures[node] += 1
        found.requests[model_id, "503", ""] += 1
        found.tokens[model_id, "prompt"] += 7
        found.broken[model_id, "engine_gone"] += 1
        found.disconnects[model_id] += 1
        for gauge in (found.in_flight, found.waiting):
            gauge[model_id] += 1
            gauge[model_id] -= 1
        for distribution in (found.duration, found.first_byte, found.overhead):
            distribution.observe(model_id, 0.2)
    found.refusals["model_not_found"] += 1
    return found


def follow(found, now):
    found.follow(now, dict.fromkeys(now.nodes, (1, 1)), Balancer(lambda: 0.0))


def labels(found, name):
    """Return the values of the label `name` in everything that the gateway exposes, as Prometheus reads it."""
    registry = CollectorRegistry()
    registry.register(metrics._GatewayCollector(found))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families for sample in family.samples]
    return {sample.labels[name] for sample in samples if name in sample.labels}


def test_without_a_removal_nothing_goes(counted):
    before = generate(counted)
    follow(counted, table(WHOLE))
    assert generate(counted) == before
    assert (labels(counted, "model"), labels(counted, "node")) == ({"a", "b", ""}, {"n1", "n2", ""})


def generate(found):
    registry = CollectorRegistry()
    registry.register(metrics._GatewayCollector(found))
    return generate_latest(registry)


def test_a_deleted_model_is_in_no_metric(counted):
    follow(counted, table({"a": WHOLE["a"]}))
    assert labels(counted, "model") == {"a", ""}
    assert counted.requests["a", "200", "n1"] == 3
    assert counted.requests["", "503", ""] == 1
    assert counted.tokens["a", "prompt"] == 7
    assert counted.refusals["model_not_found"] == 1


def test_a_revoked_node_is_in_no_metric(counted):
    follow(counted, table({"a": ("n1",), "b": ("n1",)}, nodes=("n1",)))
    assert labels(counted, "node") == {"n1", ""}
    assert counted.requests["a", "200", "n1"] == 3
    assert counted.requests["a", "503", ""] == 1


def test_a_placement_that_was_removed_takes_its_counts_along_and_no_others(counted):
    follow(counted, table({"a": ("n2",), "b": ("n1",)}))
    assert sorted(counted.requests) == sorted(
        [("a", "200", "n2"), ("a", "503", ""), ("b", "200", "n1"), ("b", "503", ""), ("", "200", ""), ("", "503", "")]
    )
    assert labels(counted, "node") == {"n1", "n2", ""}


def test_a_model_that_is_stopped_or_whose_node_is_offline_keeps_its_counts(counted):
    stopped = RoutingTable(
        version=2,
        models=table({"a": (), "b": ("n1",)}).models,
        nodes={"n1": NodeState.OFFLINE, "n2": NodeState.SERVING},
        placed=frozenset({("a", "n1"), ("a", "n2"), ("b", "n1")}),
    )
    follow(counted, stopped)
    assert counted.requests["a", "200", "n1"] == 3
    assert labels(counted, "model") == {"a", "b", ""}


def test_a_request_in_progress_of_a_deleted_model_is_counted_down_and_then_goes(counted):
    counted.in_flight["b"] += 2
    follow(counted, table({"a": WHOLE["a"]}))
    assert counted.in_flight["b"] == 2
    counted.in_flight["b"] -= 2
    counted.requests["b", "200", "n1"] += 1
    follow(counted, table({"a": WHOLE["a"]}))
    assert labels(counted, "model") == {"a", ""}


def test_the_table_of_a_restore_which_lists_nothing_takes_nothing_away(counted):
    before = counted.requests.copy()
    follow(counted, RoutingTable(version=2, closed=errors.restoring()))
    assert counted.requests == before
    assert labels(counted, "model") == {"a", "b", ""}


def test_the_last_model_and_the_last_node_go_as_any_other(counted):
    follow(counted, RoutingTable(version=2))
    assert (labels(counted, "model"), labels(counted, "node")) == ({""}, {""})
