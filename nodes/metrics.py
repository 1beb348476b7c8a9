"""Metrics of nodes and GPUs for Prometheus, from the last observations. A silent node has none: no old values.

Labels are bounded: approved nodes, their GPUs (128 per node), and the models that a GPU reports (16 per GPU).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mirbad.kernel import clock
from nodes.models import Gpu, Node
from nodes.states import ONLINE

STALE_AFTER = timedelta(seconds=30)
MOST_GPUS = 128
MOST_MODELS = 16
_PREFIX = "mirbad_node_"

_HOST = (
    ("memory_total_bytes", "Host memory.", "memoryTotalBytes", 1.0),
    ("memory_available_bytes", "Host memory that is available without swapping.", "memoryAvailableBytes", 1.0),
    ("swap_used_bytes", "Swap in use.", "swapUsedBytes", 1.0),
    ("cpu_ratio", "CPU utilization of all cores, 0 to 1.", "cpuPercent", 0.01),
    ("load1", "Load over one minute.", "load1m", 1.0),
    ("disk_total_bytes", "Size of the models root's file system.", "diskTotalBytes", 1.0),
    ("disk_free_bytes", "Free bytes on the models root's file system.", "diskFreeBytes", 1.0),
    (
        "memory_bandwidth_bytes_per_second",
        "Best measured memory read rate of all cores together.",
        "memoryBandwidthBytesPerSecond",
        1.0,
    ),
)
_GPU = (
    ("gpu_memory_total_bytes", "GPU memory.", "totalBytes", 1.0),
    ("gpu_memory_used_bytes", "GPU memory in use.", "usedBytes", 1.0),
    ("gpu_utilization_ratio", "GPU utilization, 0 to 1.", "utilizationPercent", 0.01),
    ("gpu_temperature_celsius", "Temperature.", "temperatureCelsius", 1.0),
    ("gpu_power_watts", "Power draw.", "powerWatts", 1.0),
    ("gpu_power_limit_watts", "Power limit.", "powerLimitWatts", 1.0),
    ("gpu_processes", "Processes on the GPU.", "processCount", 1.0),
)


@dataclass(slots=True)
class _Gauge:
    """One metric with its samples as text: a fleet of thousands of GPUs is written at once, beside model traffic."""

    name: str
    words: str
    lines: list[str] = field(default_factory=list)

    def add(self, labels: str, value: float) -> None:
        self.lines.append(f"{_PREFIX}{self.name}{{{labels}}} {value!r}\n")

    def text(self) -> str:
        head = f"# HELP {_PREFIX}{self.name} {self.words}\n# TYPE {_PREFIX}{self.name} gauge\n"
        return head + "".join(self.lines)


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return f'{name}="{escaped}"'


@dataclass(frozen=True, slots=True)
class _Node:
    labels: str
    name: str
    online: bool
    fresh: bool
    host: dict[str, Any]
    seen_at: datetime | None


def render() -> bytes:
    """Render the text exposition of all nodes from the database; two statements."""
    now = clock.now()
    nodes: dict[str, _Node] = {}
    for pk, name, reachability, host, at, seen_at in (
        Node.objects.approved()
        .order_by("pk")
        .values_list("pk", "display_name", "reachability", "host", "status_at", "last_seen_at")
    ):
        online = reachability == ONLINE
        fresh = online and at is not None and now - at <= STALE_AFTER
        nodes[pk] = _Node(_label("node", pk), name or pk, online, fresh, host, seen_at)
    gauges = [*_of_nodes(nodes.values()), *_of_gpus({pk: node.labels for pk, node in nodes.items() if node.fresh})]
    return "".join(gauge.text() for gauge in gauges).encode()


def _of_nodes(nodes: Iterable[_Node]) -> Iterator[_Gauge]:
    online = _Gauge("online", "1 for an approved node that is reachable.")
    info = _Gauge("info", "Display names of nodes.")
    observed = _Gauge("last_seen_timestamp_seconds", "Time of the last contact.")
    host = [_Gauge(name, words) for name, words, _, _ in _HOST]
    for node in nodes:
        online.add(node.labels, float(node.online))
        info.add(f"{node.labels},{_label('display_name', node.name)}", 1.0)
        if node.seen_at is not None:
            observed.add(node.labels, node.seen_at.timestamp())
        for gauge, (_, _, key, factor) in zip(host, _HOST, strict=True):
            value = _number(node.host.get(key)) if node.fresh else None
            if value is not None:
                gauge.add(node.labels, value * factor)
    yield from (online, info, observed, *host)


def _of_gpus(fresh: dict[str, str]) -> Iterator[_Gauge]:
    info = _Gauge("gpu_info", "Names of GPUs.")
    working = _Gauge("gpu_working", "1 for a working GPU, 0 for a lost one.")
    models = _Gauge("gpu_model_memory_bytes", "Memory of a model on a GPU.")
    gauges = [_Gauge(name, words) for name, words, _, _ in _GPU]
    counts: dict[str, int] = {}
    rows = Gpu.objects.filter(node_id__in=fresh, present=True).order_by("node_id", "index", "uuid")
    for node_id, uuid, index, name, observed in rows.values_list("node_id", "uuid", "index", "name", "seen"):
        counts[node_id] = counts.get(node_id, 0) + 1
        if counts[node_id] > MOST_GPUS:
            continue
        labels = f"{fresh[node_id]},{_label('gpu', uuid)}"
        info.add(f"{labels},{_label('index', '' if index is None else str(index))},{_label('name', name)}", 1.0)
        if not observed:
            continue
        working.add(labels, float(not observed.get("lost") and not observed.get("problem")))
        for gauge, (_, _, key, factor) in zip(gauges, _GPU, strict=True):
            value = _number(observed.get(key))
            if value is not None:
                gauge.add(labels, value * factor)
        for model, used in _models(observed):
            models.add(f"{labels},{_label('model', model)}", used)
    yield from (info, working, *gauges, models)


def _models(observed: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield memory by model id; the sum over several instances of one model."""
    found: dict[str, float] = {}
    for use in (observed.get("models") or ())[:MOST_MODELS]:
        used = _number(use.get("usedBytes"))
        if used is not None:
            model = str(use.get("modelId", ""))[:64]
            found[model] = found.get(model, 0.0) + used
    yield from found.items()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
