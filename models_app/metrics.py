"""Metrics of models for Prometheus, from their last observed states. Labels are bounded by models and placements."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from models_app import queries
from models_app.states import FAILED, OBSERVED, RUNNING

STATES = (*OBSERVED.states, queries.UNPLACED)


class _ModelCollector(Collector):
    """Four queries for any number of models."""

    def collect(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "mirbad_model_state", "1 for the current state of a model.", labels=["model", "state"]
        )
        desired = GaugeMetricFamily("mirbad_model_desired", "1 for a model that should run.", labels=["model"])
        labels = ["model", "node"]
        restarting = GaugeMetricFamily(
            "mirbad_model_restarting", "1 for an engine that ended and is started again automatically.", labels=labels
        )
        halted = GaugeMetricFamily(
            "mirbad_model_halted", "1 for a model that the master stopped because it keeps failing.", labels=labels
        )
        exits = CounterMetricFamily("mirbad_model_engine_exits", "Engines that ended by themselves.", labels=labels)
        for model in queries.all_models():
            shown = queries.shown_model_state(model).name
            placements = queries.placements_of(model)
            for each in STATES:
                state.add_metric([model.pk, each], float(shown == each))
            desired.add_metric([model.pk], float(any(one.desired == RUNNING for one in placements)))
            for one in placements:
                place = [model.pk, one.node_id_text]
                awaited = one.desired == RUNNING and one.observed == FAILED
                restarting.add_metric(place, float(awaited))
                halted.add_metric(place, float(bool(one.halted)))
                exits.add_metric(place, one.exits)
        yield from (state, desired, restarting, halted, exits)


_REGISTRY = CollectorRegistry(auto_describe=False)
_REGISTRY.register(_ModelCollector())


def render() -> bytes:
    """Return the metrics of all models in the Prometheus text format."""
    return generate_latest(_REGISTRY)
