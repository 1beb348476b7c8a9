"""The gateway's metrics, as Prometheus reads them."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from models_app.gateway import metrics
from models_app.gateway.metrics import Distribution, GatewayMetrics
from tests.gateway.downstream import ask
from tests.waiting import pause_async

pytestmark = pytest.mark.e2e


def sampled(counted):
    registry = CollectorRegistry()
    registry.register(metrics._GatewayCollector(counted))
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_by_model_code_and_node(fleet):
    def count(code, node="n1", model="m"):
        labels = (("code", code), ("model", model), ("node", node))
        return sampled(fleet.metrics).get(("mirbad_gateway_requests_total", labels), 0)

    ok, unknown = count("200"), count("404", "", "")
    refused = fleet.metrics.refusals["model_not_found"]
    ask(fleet, {"model": "m"})
    ask(fleet, {"model": "whatever a stranger types"})
    assert fleet.wait_for(lambda: count("404", "", "") == unknown + 1, 2)
    assert count("200") == ok + 1
    assert fleet.metrics.refusals["model_not_found"] == refused + 1
    assert not any("stranger" in str(key) for key in sampled(fleet.metrics))


def test_own_time_is_the_whole_less_the_waiting(fleet):
    async def script(seen):
        await pause_async(0.3)
        await seen.answer(b"{}")

    fleet.engine.script = script

    def total(name):
        return sampled(fleet.metrics).get((f"mirbad_gateway_{name}_seconds_sum", (("model", "m"),)), 0)

    whole, own = total("duration"), total("overhead")
    ask(fleet, {"model": "m"})
    assert fleet.wait_for(lambda: total("duration") - whole >= 0.3, 2)
    assert total("overhead") - own < 0.1


def test_a_distribution_counts_into_cumulative_buckets():
    metrics = GatewayMetrics()
    metrics.first_byte = Distribution((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 2.0):
        metrics.first_byte.observe("m", value)
    found = sampled(metrics)
    name = "mirbad_gateway_first_byte_seconds"
    assert [found[f"{name}_bucket", (("le", le), ("model", "m"))] for le in ("0.1", "1.0", "+Inf")] == [2, 3, 4]
    assert found[f"{name}_count", (("model", "m"),)] == 4
    assert found[f"{name}_sum", (("model", "m"),)] == pytest.approx(2.65)


def test_the_process_renders_its_own_figures():
    assert b"mirbad_gateway_requests_total" in metrics.render()
