"""The dashboard asks for metrics that exist, by labels that they have."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from models_app.gateway.balance import Balancer
from models_app.gateway.metrics import METRICS, render
from models_app.gateway.table import NodeState, RoutingTable

pytestmark = pytest.mark.unit

BOARD = json.loads((Path(__file__).resolve().parents[2] / "deploy/grafana/mirbad-gateway.json").read_text())


EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def test_every_metric_and_label_of_the_dashboard_is_one_of_ours(monkeypatch):
    METRICS.follow(RoutingTable(nodes={"n": NodeState.SERVING}), {"n": (1, 1)}, Balancer(lambda: 0.0))
    monkeypatch.setattr(METRICS, "requests", {("m", "200", "n"): 1})
    for name, key in (("tokens", ("m", "prompt")), ("broken", ("m", "upstream_error"))):
        monkeypatch.setattr(METRICS, name, {key: 1})
    for name in ("refusals", "disconnects", "retries", "node_failures", "in_flight", "waiting"):
        monkeypatch.setattr(METRICS, name, {"m": 1})
    for found in (METRICS.duration, METRICS.first_byte, METRICS.overhead):
        found.observe("m", 0.1)
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(render().decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    # Those of models come from the database: tests/models_app/test_exits.py.
    asked = [expr for expr in EXPRESSIONS if "mirbad_model_" not in expr]
    for expression in asked:
        for name in re.findall(r"mirbad_\w+", expression):
            assert name in labels, name
            for listed in re.findall(r"by \(([^)]*)\)", expression):
                assert {label.strip() for label in listed.split(",")} <= labels[name]
    assert {name.split("{")[0] for name in labels if name.startswith("mirbad_node_")} >= {
        "mirbad_node_state",
        "mirbad_node_in_flight",
        "mirbad_node_connections",
        "mirbad_node_failures_total",
        "mirbad_node_ejected",
    }
    assert all("key" not in names for names in labels.values())
