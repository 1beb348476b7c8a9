"""Figures of nodes and GPUs for Prometheus, from what was seen last. A node that is not heard has none: no old values.

Labels are bounded: approved nodes, their GPUs (128 a node), and the models that a GPU tells of (16 a GPU).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mirbad.kernel import clock
from nodes.models import Gpu, Node
from nodes.states import ONLINE

STALE_AFTER = timedelta(seconds=30)
MOST_GPUS = 128
MOST_MODELS = 16
_PREFIX = "mirbad_node_"

_HOST = (
    ("memory_total_bytes", "Memory of the machine.", "memoryTotalBytes", 1.0),
    ("memory_available_bytes", "Memory that can be used without swapping.", "memoryAvailableBytes", 1.0),
    ("swap_used_bytes", "Swap in use.", "swapUsedBytes", 1.0),
    ("cpu_ratio", "Share of all processors that is busy.", "cpuPercent", 0.01),
    ("load1", "Load over one minute.", "load1m", 1.0),
    ("disk_total_bytes", "Size of the file system of the models root.", "diskTotalBytes", 1.0),
    ("disk_free_bytes", "Free bytes there.", "diskFreeBytes", 1.0),
    (
        "memory_bandwidth_bytes_per_second",
        "Best measured rate at which all cores read memory.",
        "memoryBandwidthBytesPerSecond",
        1.0,
    ),
)
_GPU = (
    ("gpu_memory_total_bytes", "Memory of the card.", "totalBytes", 1.0),
    ("gpu_memory_used_bytes", "Memory in use.", "usedBytes", 1.0),
    ("gpu_utilization_ratio", "Share of the time in which the card computed.", "utilizationPercent", 0.01),
    ("gpu_temperature_celsius", "Temperature.", "temperatureCelsius", 1.0),
    ("gpu_power_watts", "Power drawn.", "powerWatts", 1.0),
    ("gpu_power_limit_watts", "Power that the card may draw.", "powerLimitWatts", 1.0),
    ("gpu_processes", "Processes on the card.", "processCount", 1.0),
)


@dataclass(frozen=True, slots=True)
class _Node:
    pk: str
    name: str
    online: bool
    host: dict[str, Any]
    at: datetime | None
    seen_at: datetime | None


class _Fleet(Collector):
    """Reads the rows at each scrape; two statements."""

    def collect(self) -> Iterator[Metric]:
        now = clock.now()
        nodes = [
            _Node(pk, name, reachability == ONLINE, host, at, seen_at)
            for pk, name, reachability, host, at, seen_at in Node.objects.approved()
            .order_by("pk")
            .values_list("pk", "display_name", "reachability", "host", "status_at", "last_seen_at")
        ]
        fresh = {node.pk for node in nodes if node.online and node.at is not None and now - node.at <= STALE_AFTER}
        yield from _of_nodes(nodes, fresh)
        yield from _of_gpus(fresh)


def _of_nodes(nodes: list[_Node], fresh: set[str]) -> Iterator[Metric]:
    online = GaugeMetricFamily(_PREFIX + "online", "1 for an approved node that answers.", labels=["node"])
    info = GaugeMetricFamily(_PREFIX + "info", "Names of nodes.", labels=["node", "display_name"])
    seen = GaugeMetricFamily(_PREFIX + "last_seen_timestamp_seconds", "When it was last heard.", labels=["node"])
    for node in nodes:
        online.add_metric([node.pk], float(node.online))
        info.add_metric([node.pk, node.name or node.pk], 1.0)
        if node.seen_at is not None:
            seen.add_metric([node.pk], node.seen_at.timestamp())
    yield from (online, info, seen)
    for name, words, key, factor in _HOST:
        family = GaugeMetricFamily(_PREFIX + name, words, labels=["node"])
        for node in nodes:
            value = _number(node.host.get(key)) if node.pk in fresh else None
            if value is not None:
                family.add_metric([node.pk], value * factor)
        yield family


def _of_gpus(fresh: set[str]) -> Iterator[Metric]:
    labels = ["node", "gpu"]
    info = GaugeMetricFamily(_PREFIX + "gpu_info", "Names of cards.", labels=[*labels, "index", "name"])
    working = GaugeMetricFamily(_PREFIX + "gpu_working", "1 for a card that answers, 0 for a lost one.", labels=labels)
    models = GaugeMetricFamily(
        _PREFIX + "gpu_model_memory_bytes", "Memory of a model on a card.", labels=[*labels, "model"]
    )
    families = [GaugeMetricFamily(_PREFIX + name, words, labels=labels) for name, words, _, _ in _GPU]
    counts: dict[str, int] = {}
    rows = Gpu.objects.filter(node_id__in=fresh, present=True).order_by("node_id", "index", "uuid")
    for node_id, uuid, index, name, seen in rows.values_list("node_id", "uuid", "index", "name", "seen"):
        counts[node_id] = counts.get(node_id, 0) + 1
        if counts[node_id] > MOST_GPUS:
            continue
        info.add_metric([node_id, uuid, "" if index is None else str(index), name], 1.0)
        if not seen:
            continue
        working.add_metric([node_id, uuid], float(not seen.get("lost") and not seen.get("problem")))
        for family, (_, _, key, factor) in zip(families, _GPU, strict=True):
            value = _number(seen.get(key))
            if value is not None:
                family.add_metric([node_id, uuid], value * factor)
        for model, used in _models(seen):
            models.add_metric([node_id, uuid, model], used)
    yield from (info, working, *families, models)


def _models(seen: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Memory by model id; of several instances of one model the sum."""
    found: dict[str, float] = {}
    for use in (seen.get("models") or ())[:MOST_MODELS]:
        used = _number(use.get("usedBytes"))
        if used is not None:
            model = str(use.get("modelId", ""))[:64]
            found[model] = found.get(model, 0.0) + used
    yield from found.items()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


_REGISTRY = CollectorRegistry(auto_describe=False)
_REGISTRY.register(_Fleet())


def render() -> bytes:
    """The text exposition of all nodes, as the database has them now."""
    return bytes(generate_latest(_REGISTRY))
