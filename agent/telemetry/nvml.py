"""GPUs by NVIDIA's management library. Each card alone: one that is lost or silent does not hide the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")


class NoDriver(Exception):
    """GPUs cannot be read; the text says what was answered. `installed` means that there is a library of a driver."""

    def __init__(self, text: str, *, installed: bool = False) -> None:
        super().__init__(text)
        self.installed = installed


@dataclass(frozen=True)
class Card:
    """One GPU as the library tells it; None is not reported."""

    uuid: str
    index: int
    name: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    compute_capability: str | None = None
    utilization_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Cards:
    """All GPUs, and the driver's version."""

    cards: tuple[Card, ...]
    driver_version: str | None = None


def _ask(call: Callable[..., T], *arguments: Any) -> T | None:
    """The answer, or None for anything that this card or this driver does not tell."""
    try:
        return call(*arguments)
    except (pynvml.NVMLError, UnicodeDecodeError, ValueError):
        return None


def _words(value: Any) -> str | None:
    """Text of the library, which some versions give as bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else str(value)


def _number(value: Any) -> float | None:
    """A number as the library means it: its all-ones values stand for not available."""
    if value is None or value in {0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF}:
        return None
    return float(value)


def read_cards() -> Cards:
    """Every GPU now. NoDriver when there is no library or no driver; blocking, and may hang with a broken driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        missing = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        raise NoDriver(str(error), installed=not missing) from error
    try:
        try:
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise NoDriver(f"the GPUs cannot be counted: {error}", installed=True) from error
        cards = tuple(_card(index) for index in range(count))
        return Cards(cards, _words(_ask(pynvml.nvmlSystemGetDriverVersion)))
    finally:
        _ask(pynvml.nvmlShutdown)


def _card(index: int) -> Card:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return Card(uuid=f"GPU-unreadable-{index}", index=index, problem=f"GPU {index} does not answer: {error}")
    uuid = _words(_ask(pynvml.nvmlDeviceGetUUID, handle))
    if not uuid:
        return Card(uuid=f"GPU-unreadable-{index}", index=index, problem=f"GPU {index} does not tell its UUID.")
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    total = None if memory is None else _number(memory.total)
    used = None if memory is None else _number(memory.used)
    compute = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power = _number(_ask(pynvml.nvmlDeviceGetPowerUsage, handle))
    return Card(
        uuid=uuid,
        index=index,
        name=_words(_ask(pynvml.nvmlDeviceGetName, handle)),
        total_bytes=int(total) if total else None,
        used_bytes=int(used) if used is not None and total else None,
        compute_capability=f"{compute[0]}.{compute[1]}" if compute else None,
        utilization_percent=None if rates is None else _number(rates.gpu),
        temperature_celsius=_number(_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)),
        power_watts=None if power is None else power / 1000,
    )
