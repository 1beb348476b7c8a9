"""Figures of the gateway for Prometheus. Plain numbers, written by the event loop alone; a collector reads them."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

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
        self.in_flight: dict[str, int] = defaultdict(int)
        self.waiting: dict[str, int] = defaultdict(int)
        self.duration = Distribution(_SECONDS)
        self.first_byte = Distribution(_SECONDS)
        self.overhead = Distribution(_OWN_SECONDS)
        self.connections: Mapping[str, tuple[int, int]] = {}


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
        yield _counter(prefix + "retries", "Requests sent again on a fresh connection.", ["node"], f.retries)
        for name, words, values in (
            ("in_flight", "Requests being worked on.", f.in_flight),
            ("waiting", "Requests that wait for a model to start.", f.waiting),
        ):
            gauge = GaugeMetricFamily(prefix + name, words, labels=["model"])
            for label, value in list(values.items()):
                gauge.add_metric([label], value)
            yield gauge
        connections = GaugeMetricFamily(prefix + "connections", "Connections to agents.", labels=["node", "state"])
        for node, (opened, idle) in list(f.connections.items()):
            connections.add_metric([node, "idle"], idle)
            connections.add_metric([node, "busy"], opened - idle)
        yield connections
        yield f.duration.family(prefix + "duration_seconds", "From the request's head to the answer's end.")
        yield f.first_byte.family(prefix + "first_byte_seconds", "From the request's head to the answer's first byte.")
        yield f.overhead.family(
            prefix + "overhead_seconds", "Time spent here: the whole less the waiting for engine and client."
        )


FIGURES = Figures()
"""The figures of this process."""

_REGISTRY = CollectorRegistry(auto_describe=False)
_REGISTRY.register(_Collector(FIGURES))


def render() -> bytes:
    """The gateway's figures of this process in Prometheus' text format."""
    return generate_latest(_REGISTRY)
