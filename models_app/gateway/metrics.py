"""Figures of the gateway for Prometheus. Plain numbers, written by the event loop alone; a collector reads them."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from models_app.gateway.balance import Balance
from models_app.gateway.table import NodeState, Table

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_OWN_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)


class Distribution:
    """Counts of values under fixed upper bounds, by label."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = defaultdict(float)

    def observe(self, label: str, value: float) -> None:
        """Count one value."""
        counts = self._counts.get(label)
        if counts is None:
            counts = self._counts[label] = [0] * (len(self._bounds) + 1)
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[label] += value

    def family(self, name: str, words: str) -> HistogramMetricFamily:
        """The distribution as Prometheus reads it, labelled by model."""
        family = HistogramMetricFamily(name, words, labels=["model"])
        for label, counts in list(self._counts.items()):
            total, buckets = 0, []
            for bound, count in zip((*map(str, self._bounds), "+Inf"), list(counts), strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric([label], buckets, self._sums[label])
        return family


class Figures:
    """What one gateway counted since its process began. Model labels are ids of known models, or empty."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = defaultdict(int)
        self.refusals: dict[str, int] = defaultdict(int)
        self.tokens: dict[tuple[str, str], int] = defaultdict(int)
        self.disconnects: dict[str, int] = defaultdict(int)
        self.broken: dict[tuple[str, str], int] = defaultdict(int)
        self.retries: dict[str, int] = defaultdict(int)
        self.node_failures: dict[str, int] = defaultdict(int)
        self.in_flight: dict[str, int] = defaultdict(int)
        self.waiting: dict[str, int] = defaultdict(int)
        self.duration = Distribution(_SECONDS)
        self.first_byte = Distribution(_SECONDS)
        self.overhead = Distribution(_OWN_SECONDS)
        self.connections: Mapping[str, tuple[int, int]] = {}
        self.nodes: Mapping[str, NodeState] = {}
        self.ejected: Mapping[str, int] = {}
        self.flight: Callable[[], Mapping[str, int]] = dict

    def follow(self, table: Table, connections: Mapping[str, tuple[int, int]], balance: Balance) -> None:
        """Take over what a new table says; called each time one is swapped in."""
        placed = {route.placement_id: route.node_id for model in table.models.values() for route in model.routes}
        ejected = dict.fromkeys(table.nodes, 0)
        for placement_id in balance.ejected:
            if (node_id := placed.get(placement_id)) in ejected:
                ejected[node_id] += 1
        self.connections, self.nodes, self.ejected = connections, table.nodes, ejected

        def flight() -> Mapping[str, int]:
            found = dict.fromkeys(table.nodes, 0)
            for placement_id, count in list(balance.flight.items()):
                node_id = placed.get(placement_id)
                if node_id in found:
                    found[node_id] += count
            return found

        self.flight = flight


def _counter(
    name: str,
    words: str,
    labels: list[str],
    values: Mapping[str, int] | Mapping[tuple[str, str], int] | Mapping[tuple[str, str, str], int],
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, words, labels=labels)
    for label, value in list(values.items()):
        family.add_metric([label] if isinstance(label, str) else [*label], value)
    return family


class _Collector(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        f = self._figures
        prefix = "mirbad_gateway_"
        yield _counter(prefix + "requests", "Answered requests.", ["model", "code", "node"], f.requests)
        yield _counter(prefix + "refusals", "Requests refused here, by reason.", ["reason"], f.refusals)
        yield _counter(prefix + "tokens", "Tokens that engines reported.", ["model", "kind"], f.tokens)
        yield _counter(prefix + "disconnects", "Clients that left before the end.", ["model"], f.disconnects)
        yield _counter(prefix + "broken_answers", "Answers cut short after their head.", ["model", "reason"], f.broken)
        yield _counter(prefix + "retries", "Requests sent again, there or to another node.", ["node"], f.retries)
        for name, words, values in (
            ("in_flight", "Requests being worked on.", f.in_flight),
            ("waiting", "Requests that wait for a model to start.", f.waiting),
        ):
            gauge = GaugeMetricFamily(prefix + name, words, labels=["model"])
            for label, value in list(values.items()):
                gauge.add_metric([label], value)
            yield gauge
        yield from self._nodes()
        yield f.duration.family(prefix + "duration_seconds", "From the request's head to the answer's end.")
        yield f.first_byte.family(prefix + "first_byte_seconds", "From the request's head to the answer's first byte.")
        yield f.overhead.family(
            prefix + "overhead_seconds", "Time spent here: the whole less the waiting for engine and client."
        )

    def _nodes(self) -> Iterator[Metric]:
        f = self._figures
        prefix = "mirbad_node_"
        state = GaugeMetricFamily(prefix + "state", "1 for the state that a node is in.", labels=["node", "state"])
        for node, found in list(f.nodes.items()):
            for one in NodeState:
                state.add_metric([node, one.value], float(found is one))
        yield state
        connections = GaugeMetricFamily(prefix + "connections", "Connections to agents.", labels=["node", "state"])
        for node, (opened, idle) in list(f.connections.items()):
            connections.add_metric([node, "idle"], idle)
            connections.add_metric([node, "busy"], opened - idle)
        yield connections
        for name, words, values in (
            ("in_flight", "Requests that the node works on.", f.flight()),
            ("ejected", "Replicas of the node that get no requests but probes.", f.ejected),
        ):
            gauge = GaugeMetricFamily(prefix + name, words, labels=["node"])
            for node, value in list(values.items()):
                gauge.add_metric([node], value)
            yield gauge
        yield _counter(prefix + "failures", "Requests not answered as they should be.", ["node"], f.node_failures)


FIGURES = Figures()
"""The figures of this process."""

_REGISTRY = CollectorRegistry(auto_describe=False)
_REGISTRY.register(_Collector(FIGURES))


def render() -> bytes:
    """The gateway's figures of this process in Prometheus' text format."""
    return generate_latest(_REGISTRY)
