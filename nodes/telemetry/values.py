"""The stored part of a status, and its averages. Pure; an unknown value is left out, and never counts as 0."""

from collections.abc import Iterable, Mapping
from typing import Any

from agent.wire.status import GpuStatus, HostStatus, NodeStatus

Data = dict[str, Any]
"""``{"host": {...}, "gpus": {uuid: {..., "models": {model id: bytes}}}}``.

A host has ``used``, ``total`` and ``cpu``; a GPU has ``used``, ``total``, ``busy``, ``power`` and ``heat``.
"""

PEAK = "peak"
"""The most memory in use at once; only in averages."""

MOST_GPUS = 128
MOST_MODELS = 16
_MOST = 2**62
_FINE = frozenset({"cpu", "busy", "power", "heat"})
"""Values kept with a decimal; bytes are whole."""


def sample_of(status: NodeStatus) -> Data:
    """Return the part of a status that has a history."""
    gpus: dict[str, Data] = {}
    for gpu in status.gpus[:MOST_GPUS]:
        if values := _gpu(gpu):
            gpus[gpu.uuid[:80]] = values
    return {"host": _host(status.host), "gpus": gpus}


def _known(values: Mapping[str, float | None]) -> Data:
    return {name: value for name, value in values.items() if value is not None and abs(value) < _MOST}


def _host(host: HostStatus) -> Data:
    total, free = host.memory_total_bytes, host.memory_available_bytes
    used = None if total is None or free is None else max(0, total - free)
    return _known({"used": used, "total": total, "cpu": _round(host.cpu_percent)})


def _gpu(gpu: GpuStatus) -> Data:
    values = _known(
        {
            "used": gpu.used_bytes,
            "total": gpu.total_bytes,
            "busy": _round(gpu.utilization_percent),
            "power": _round(gpu.power_watts),
            "heat": _round(gpu.temperature_celsius),
        }
    )
    models: dict[str, int] = {}
    for use in gpu.models[:MOST_MODELS]:
        if use.used_bytes is not None and 0 <= use.used_bytes < _MOST:
            models[use.model_id] = models.get(use.model_id, 0) + use.used_bytes
    return values | {"models": models} if models else values


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


class _Mean:
    """Weighted averages by name, and the maximum of one of them."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._peak: float | None = None

    def add(self, values: Mapping[str, Any], weight: float) -> None:
        for name, value in values.items():
            if isinstance(value, int | float):
                self._sums[name] = self._sums.get(name, 0.0) + value * weight
                self._weights[name] = self._weights.get(name, 0.0) + weight

    def note(self, peak: float | None) -> None:
        if peak is not None:
            self._peak = peak if self._peak is None else max(self._peak, peak)

    def data(self) -> Data:
        means = {name: total / self._weights[name] for name, total in self._sums.items()}
        found: Data = {name: round(mean, 1) if name in _FINE else round(mean) for name, mean in means.items()}
        return found if self._peak is None else found | {PEAK: round(self._peak)}


def average(parts: Iterable[tuple[int, Mapping[str, Any]]]) -> tuple[int, Data]:
    """Return the average of ``(samples, data)``, weighted by samples.

    A card or a model counts where it was reported: memory of a model that ran for half the time is its memory
    while running.
    """
    host = _Mean()
    gpus: dict[str, _Mean] = {}
    models: dict[str, _Mean] = {}
    samples = 0
    for weight, data in parts:
        samples += weight
        _take(host, data.get("host", {}), weight)
        for uuid, values in data.get("gpus", {}).items():
            _take(gpus.setdefault(uuid, _Mean()), values, weight)
            if used := values.get("models"):
                models.setdefault(uuid, _Mean()).add(used, weight)
    found = {uuid: mean.data() for uuid, mean in gpus.items()}
    for uuid, mean in models.items():
        found[uuid]["models"] = mean.data()
    return samples, {"host": host.data(), "gpus": found}


def _take(mean: _Mean, values: Mapping[str, Any], weight: float) -> None:
    mean.add({name: value for name, value in values.items() if name != PEAK}, weight)
    mean.note(values.get(PEAK, values.get("used")))
