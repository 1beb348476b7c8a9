"""GPUs by NVIDIA's management library. Each card alone: one that is lost or silent does not hide the others.

The library stays initialised between readings as long as all is well: without a client the driver of an idle card
unloads, and every reading would wait for it. It may hang with a broken driver, so `reader` asks from a process of its
own.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from agent.telemetry.cards import (
    UNREADABLE,
    Card,
    Cards,
    NoDriver,
    Process,
    held_bytes,
    is_integrated,
    lost_words,
)
from agent.telemetry.pcie import DEVICES, kernel_address, read_link

__all__ = ["Card", "Cards", "NoDriver", "close", "read_cards"]

_ALL_ONES = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""What stands for "not available" in numbers, and for "no process" in process ids."""

_GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
_is_open: list[bool] = []


class _Device:
    """One card or slice; remembers what it does not support, and whether it turned out to be lost."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.unsupported: set[str] = set()
        self.lost = False

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer, or None for anything that this card or this driver does not tell."""
        try:
            return getattr(pynvml, name)(self.handle, *arguments)
        except pynvml.NVMLError as error:
            if error.value in _GONE:
                self.lost = True
            elif error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
                self.unsupported.add(name)
        except (UnicodeDecodeError, ValueError, pynvml.NVMLLibraryMismatchError):
            pass
        return None

    def number(self, name: str, *arguments: Any) -> float | None:
        """The answer as a number."""
        return _number(self.ask(name, *arguments))

    def memory(self) -> tuple[int | None, int | None]:
        """Total and used bytes, by the first version of the question that is answered."""
        for arguments in ((), (pynvml.nvmlMemory_v2,)):
            answer = self.ask("nvmlDeviceGetMemoryInfo", *arguments)
            total = None if answer is None else _number(answer.total)
            if total:
                used = _number(answer.used)
                return int(total), None if used is None else int(used)
        return None, None

    def processes(self) -> tuple[Process, ...] | None:
        """Those that compute or draw; None when the driver tells of neither."""
        found: dict[int, Process] = {}
        told = False
        for kind in ("Compute", "Graphics"):
            answer = self._processes(kind)
            told |= answer is not None
            for one in answer or ():
                if one.pid not in found or (found[one.pid].used_bytes or 0) < (one.used_bytes or 0):
                    found[one.pid] = one
        return tuple(found.values()) if told else None

    def _processes(self, kind: str) -> list[Process] | None:
        # Older drivers lack the newer question, and the name without a version raises something else again.
        for version in ("v3", "v2"):
            answer = self.ask(f"nvmlDeviceGet{kind}RunningProcesses_{version}")
            if answer is not None:
                return list(_real(answer))
        return None


def _real(answer: Iterable[Any]) -> Iterable[Process]:
    for one in answer:
        if one.pid and one.pid not in _ALL_ONES:
            used = _number(one.usedGpuMemory)
            yield Process(int(one.pid), None if used is None else int(used))


def _words(value: Any) -> str | None:
    """Text of the library, which some versions give as bytes."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return None if value is None else str(value) or None


def _number(value: Any) -> float | None:
    """A number as the library means it: its all-ones values stand for not available."""
    return None if value is None or value in _ALL_ONES else float(value)


def close() -> None:
    """Let go of the library."""
    if _is_open:
        _is_open.clear()
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def read_cards(devices: Path = DEVICES) -> Cards:
    """Every GPU now. NoDriver when there is no library or no driver; blocking, and may hang with a broken driver."""
    try:
        found = _read(devices)
    except BaseException:
        close()
        raise
    if any(card.problem for card in found.cards):
        close()  # what is wrong may be over for those who ask anew
    return found


def _read(devices: Path) -> Cards:
    if not _is_open:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            missing = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
            raise NoDriver(str(error), installed=not missing) from error
        _is_open.append(True)
    try:
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        raise NoDriver(f"the GPUs cannot be counted: {error}", installed=True) from error
    cards = tuple(card for index in range(count) for card in _cards_at(index, devices))
    version = None
    with suppress(pynvml.NVMLError, UnicodeDecodeError):
        version = _words(pynvml.nvmlSystemGetDriverVersion())
    return Cards(cards, version)


def _cards_at(index: int, devices: Path) -> tuple[Card, ...]:
    try:
        device = _Device(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:
        lost = error.value in _GONE
        problem = lost_words(index) if lost else f"GPU {index} does not answer: {error}"
        return (Card(uuid=f"{UNREADABLE}{index}", index=index, lost=lost, problem=problem),)
    card = _card(device, index, devices)
    if device.lost:
        return (Card(uuid=card.uuid, index=index, name=card.name, lost=True, problem=lost_words(index)),)
    if card.problem is not None:
        return (card,)
    return _slices(device, card) or (card,)


def _card(device: _Device, index: int, devices: Path) -> Card:
    uuid = _words(device.ask("nvmlDeviceGetUUID"))
    if not uuid:
        return Card(uuid=f"{UNREADABLE}{index}", index=index, problem=f"GPU {index} does not tell its UUID.")
    name = _words(device.ask("nvmlDeviceGetName"))
    total, used = device.memory()
    bus = device.ask("nvmlDeviceGetPciInfo_v3")
    address = None if bus is None else kernel_address(_words(bus.busId))
    link = read_link(address, devices)
    processes = device.processes()
    integrated: bool | None = False if total else None
    if not total and "nvmlDeviceGetMemoryInfo" in device.unsupported:
        on_bus = device.ask("nvmlDeviceGetMaxPcieLinkWidth") is not None or link is not None
        integrated = is_integrated(name, has_bus=on_bus)
        used = held_bytes(processes) if integrated else None
    compute = device.ask("nvmlDeviceGetCudaComputeCapability")
    rates = device.ask("nvmlDeviceGetUtilizationRates")
    power = device.number("nvmlDeviceGetPowerUsage")
    limit = device.number("nvmlDeviceGetEnforcedPowerLimit")
    return Card(
        uuid=uuid,
        index=index,
        name=name,
        total_bytes=total,
        used_bytes=used,
        compute_capability=f"{compute[0]}.{compute[1]}" if compute else None,
        utilization_percent=None if rates is None else _number(rates.gpu),
        temperature_celsius=device.number("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        power_watts=None if power is None else power / 1000,
        power_limit_watts=None if limit is None else limit / 1000,
        integrated=integrated,
        pci_address=address,
        link=link,
        processes=processes,
    )


def _slices(device: _Device, card: Card) -> tuple[Card, ...]:
    """What stands in place of a card in MIG mode: its slices, or the card with a problem when it has none."""
    mode = device.ask("nvmlDeviceGetMigMode")
    if not mode or mode[0] != 1:
        return ()
    found = []
    for number in range(int(device.ask("nvmlDeviceGetMaxMigDeviceCount") or 0)):
        handle = device.ask("nvmlDeviceGetMigDeviceHandleByIndex", number)
        if handle is None:
            continue  # this place has no slice
        one = _Device(handle)
        uuid = _words(one.ask("nvmlDeviceGetUUID"))
        if not uuid:
            continue
        total, used = one.memory()
        found.append(
            Card(
                uuid=uuid,
                index=card.index,
                name=_words(one.ask("nvmlDeviceGetName")) or card.name,
                total_bytes=total,
                used_bytes=used,
                compute_capability=card.compute_capability,
                # The card's heat is the slice's; its use and its power are not.
                temperature_celsius=card.temperature_celsius,
                integrated=False if total else None,
                parent_uuid=card.uuid,
                pci_address=card.pci_address,
                link=card.link,
                processes=one.processes(),
            )
        )
    if found:
        return tuple(found)
    problem = f"GPU {card.index} is in MIG mode and has no slice: make one with nvidia-smi mig, or turn the mode off."
    return (Card(uuid=card.uuid, index=card.index, name=card.name, pci_address=card.pci_address, problem=problem),)
