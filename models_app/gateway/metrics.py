"""The gateway's metrics for Prometheus: plain numbers that only the event loop writes and a collector reads."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from models_app.gateway.balance import Balancer
from models_app.gateway.table import NodeState, RoutingTable

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

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        """Return the distribution as a Prometheus histogram, labelled by model."""
        family = HistogramMetricFamily(name, text, labels=["model"])
        for label, counts in list(self._counts.items()):
            total, buckets = 0, []
            for bound, count in zip((*map(str, self._bounds), "+Inf"), list(counts), strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric([label], buckets, self._sums.get(label, 0.0))
        return family

    def keep_only(self, labels: Container[str]) -> None:
        """Forget the values of all other labels."""
        for label in [label for label in self._counts if label not in labels]:
            del self._counts[label]
            self._sums.pop(label, None)


class GatewayMetrics:
    """The counts of one gateway since its process started. Model labels are ids of known models, or empty."""

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
        self.node_in_flight: Callable[[], Mapping[str, int]] = dict

    def follow(self, table: RoutingTable, connections: Mapping[str, tuple[int, int]], balancer: Balancer) -> None:
        """Take over nodes and connections when a new table is swapped in; forget what it no longer has."""
        self._forget_gone(table)
        placed = {route.placement_id: route.node_id for model in table.models.values() for route in model.routes}
        ejected = dict.fromkeys(table.nodes, 0)
        for placement_id in balancer.ejected:
            if (node_id := placed.get(placement_id)) in ejected:
                ejected[node_id] += 1
        self.connections, self.nodes, self.ejected = connections, table.nodes, ejected

        def node_in_flight() -> Mapping[str, int]:
            found = dict.fromkeys(table.nodes, 0)
            for placement_id, count in list(balancer.in_flight.items()):
                node_id = placed.get(placement_id)
                if node_id in found:
                    found[node_id] += count
            return found

        self.node_in_flight = node_in_flight

    def _forget_gone(self, table: RoutingTable) -> None:
        """Forget the counts of models, nodes and placements that were removed. Those without one are kept under ""."""
        if table.closed is not None and not table.models:
            return  # the table of a restore lists nothing
        models = {"", *(model.id for model in table.models.values())}
        nodes = {"", *table.nodes}
        routes = (route for model in table.models.values() for route in model.routes)
        pairs = table.placed | {(route.model_id, route.node_id) for route in routes}
        for model_id, status, node_id in list(self.requests):
            placed = not (model_id and node_id) or (model_id, node_id) in pairs
            if model_id not in models or node_id not in nodes or not placed:
                del self.requests[model_id, status, node_id]
        for by_model in (self.tokens, self.broken):
            for pair in [pair for pair in by_model if pair[0] not in models]:
                del by_model[pair]
        for counts, known in ((self.disconnects, models), (self.retries, nodes), (self.node_failures, nodes)):
            for label in [label for label in counts if label not in known]:
                del counts[label]
        for gauge in (self.in_flight, self.waiting):
            # A request that is not over yet counts down later.
            for label in [label for label, count in gauge.items() if not count and label not in models]:
                del gauge[label]
        for distribution in (self.duration, self.first_byte, self.overhead):
            distribution.keep_only(models)


def _counter(
    name: str,
    text: str,
    labels: list[str],
    values: Mapping[str, int] | Mapping[tuple[str, str], int] | Mapping[tuple[str, str, str], int],
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for label, value in list(values.items()):
        family.add_metric([label] if isinstance(label, str) else [*label], value)
    return family


class _GatewayCollector(Collector):
    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        f = self._metrics
        prefix = "mirbad_gateway_"
        yield _counter(prefix + "requests", "Finished requests.", ["model", "code", "node"], f.requests)
        yield _counter(prefix + "refusals", "Requests refused by the gateway, by reason.", ["reason"], f.refusals)
        yield _counter(prefix + "tokens", "Tokens reported by engines.", ["model", "kind"], f.tokens)
        yield _counter(prefix + "disconnects", "Clients that disconnected before the end.", ["model"], f.disconnects)
        yield _counter(prefix + "broken_answers", "Responses cut short after the head.", ["model", "reason"], f.broken)
        yield _counter(prefix + "retries", "Requests sent again, to the same node or another one.", ["node"], f.retries)
        for name, text, values in (
            ("in_flight", "Requests in flight.", f.in_flight),
            ("waiting", "Requests that wait for a model to start.", f.waiting),
        ):
            gauge = GaugeMetricFamily(prefix + name, text, labels=["model"])
            for label, value in list(values.items()):
                gauge.add_metric([label], value)
            yield gauge
        yield from self._nodes()
        yield f.duration.family(prefix + "duration_seconds", "From the request head to the end of the response.")
        yield f.first_byte.family(prefix + "first_byte_seconds", "From the request head to the first response byte.")
        yield f.overhead.family(
            prefix + "overhead_seconds", "Time spent in the gateway: the duration less waiting for engine and client."
        )

    def _nodes(self) -> Iterator[Metric]:
        f = self._metrics
        prefix = "mirbad_node_"
        state = GaugeMetricFamily(prefix + "state", "1 for the current state of a node.", labels=["node", "state"])
        for node, current in list(f.nodes.items()):
            for each in NodeState:
                state.add_metric([node, each.value], float(current is each))
        yield state
        connections = GaugeMetricFamily(prefix + "connections", "Connections to agents.", labels=["node", "state"])
        for node, (opened, idle) in list(f.connections.items()):
            connections.add_metric([node, "idle"], idle)
            connections.add_metric([node, "busy"], opened - idle)
        yield connections
        for name, text, values in (
            ("in_flight", "Requests in flight on the node.", f.node_in_flight()),
            ("ejected", "Replicas of the node that receive probes only.", f.ejected),
        ):
            gauge = GaugeMetricFamily(prefix + name, text, labels=["node"])
            for node, value in list(values.items()):
                gauge.add_metric([node], value)
            yield gauge
        yield _counter(prefix + "failures", "Requests that failed on the node.", ["node"], f.node_failures)


METRICS = GatewayMetrics()
"""The metrics of this process."""

_REGISTRY = CollectorRegistry(auto_describe=False)
_REGISTRY.register(_GatewayCollector(METRICS))


def render() -> bytes:
    """Return the gateway metrics of this process in the Prometheus text format."""
    return generate_latest(_REGISTRY)
