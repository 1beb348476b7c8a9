"""GPUs by NVIDIA's management library. Each card is read alone: a lost one does not hide the others.

The library stays initialised between readings as long as all is well: without a client the driver of an idle card
unloads, and every reading would wait for it. It may hang with a broken driver, so `reader` runs it in a process of its
own.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from agent.telemetry import faults
from agent.telemetry.cards import UNREADABLE, Card, Cards, NoDriver, Process, held_bytes, is_integrated
from agent.telemetry.pcie import DEVICES, kernel_address, read_link

__all__ = ["Card", "Cards", "NoDriver", "close", "read_cards"]

_ALL_ONES = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""Values for "not available" in numbers, and for "no process" in process ids."""

_GONE = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "NVML_ERROR_GPU_IS_LOST",
    pynvml.NVML_ERROR_RESET_REQUIRED: "NVML_ERROR_RESET_REQUIRED",
}
"""Errors of a card that cannot be used at all, by their names."""

_RECOVERY_ACTION, _RESET_STATUS, _DRAIN_STATUS = 230, 226, 227
"""Fields of NVML. The first one replaced the others, which only tell whether a reset, or a drain before it, is due."""

_RESET, _DRAIN_AND_RESET = 1, 4

_is_open: list[bool] = []


class _Device:
    """One card or slice; remembers the calls that it does not support, and the error of one that cannot be used."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.unsupported: set[str] = set()
        self.gone: int | None = None

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return the result, or None for anything that this card or this driver does not report."""
        try:
            return getattr(pynvml, name)(self.handle, *arguments)
        except pynvml.NVMLError as error:
            if error.value in _GONE:
                self.gone = error.value
            elif error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
                self.unsupported.add(name)
        except (UnicodeDecodeError, ValueError, pynvml.NVMLLibraryMismatchError):
            pass
        return None

    def number(self, name: str, *arguments: Any) -> float | None:
        """Return the result as a number."""
        return _number(self.ask(name, *arguments))

    def memory(self) -> tuple[int | None, int | None]:
        """Return total and used bytes, by the first version of the call that works."""
        for arguments in ((), (pynvml.nvmlMemory_v2,)):
            answer = self.ask("nvmlDeviceGetMemoryInfo", *arguments)
            total = None if answer is None else _number(answer.total)
            if total:
                used = _number(answer.used)
                return int(total), None if used is None else int(used)
        return None, None

    def recovery_action(self) -> int | None:
        """Return the number of the action that the driver asks for, 0 for none; None when it does not say."""
        fields = [_RECOVERY_ACTION, _RESET_STATUS, _DRAIN_STATUS]
        answer = self.ask("nvmlDeviceGetFieldValues", fields)
        if answer is None:
            return None
        action, reset, drain = (int(one.value.uiVal) if one.nvmlReturn == 0 else None for one in answer)
        if action is not None or (reset is None and drain is None):
            return action
        return _RESET if reset else _DRAIN_AND_RESET if drain else 0

    def processes(self) -> tuple[Process, ...] | None:
        """Return compute and graphics processes; None when the driver reports neither."""
        found: dict[int, Process] = {}
        reported = False
        for kind in ("Compute", "Graphics"):
            answer = self._processes(kind)
            reported |= answer is not None
            for one in answer or ():
                if one.pid not in found or (found[one.pid].used_bytes or 0) < (one.used_bytes or 0):
                    found[one.pid] = one
        return tuple(found.values()) if reported else None

    def _processes(self, kind: str) -> list[Process] | None:
        # Older drivers lack the newer call, and the name without a version raises another error.
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
    """Return text of the library, which is bytes in some versions."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return None if value is None else str(value) or None


def _number(value: Any) -> float | None:
    """Return a number of the library, None for its all-ones values."""
    return None if value is None or value in _ALL_ONES else float(value)


def close() -> None:
    """Shut down the library."""
    if _is_open:
        _is_open.clear()
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def read_cards(devices: Path = DEVICES) -> Cards:
    """Read every GPU. NoDriver without a library or driver; blocking, and may hang with a broken driver."""
    try:
        found = _read(devices)
    except BaseException:
        close()
        raise
    if any(card.problem for card in found.cards):
        close()  # the fault may be over for a fresh client
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
    version = cuda = None
    with suppress(pynvml.NVMLError, UnicodeDecodeError):
        version = _words(pynvml.nvmlSystemGetDriverVersion())
    with suppress(pynvml.NVMLError):
        number = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        cuda = f"{number // 1000}.{number % 1000 // 10}"
    return Cards(cards, version, cuda)


def _cards_at(index: int, devices: Path) -> tuple[Card, ...]:
    try:
        device = _Device(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:
        unnamed = Card(uuid=f"{UNREADABLE}{index}", index=index, problem=f"GPU {index} does not answer: {error}")
        return (_unusable(unnamed, error.value) if error.value in _GONE else unnamed,)
    card = _card(device, index, devices)
    if device.gone is not None:
        return (_unusable(Card(card.uuid, index, card.name, pci_address=card.pci_address), device.gone),)
    if card.problem is not None:
        return (card,)
    action = device.recovery_action()
    return tuple(faults.recovering(one, action) for one in _slices(device, card) or (card,))


def _unusable(card: Card, error: int) -> Card:
    if error == pynvml.NVML_ERROR_GPU_IS_LOST:
        return faults.lost(card, error=_GONE[error])
    return faults.needs_reset(card, error=_GONE[error])


def _card(device: _Device, index: int, devices: Path) -> Card:
    uuid = _words(device.ask("nvmlDeviceGetUUID"))
    if not uuid:
        return Card(uuid=f"{UNREADABLE}{index}", index=index, problem=f"GPU {index} does not report its UUID.")
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
    """Return the slices of a card in MIG mode, or the card with a problem when it has none."""
    mode = device.ask("nvmlDeviceGetMigMode")
    if not mode or mode[0] != 1:
        return ()
    found = []
    for number in range(int(device.ask("nvmlDeviceGetMaxMigDeviceCount") or 0)):
        handle = device.ask("nvmlDeviceGetMigDeviceHandleByIndex", number)
        if handle is None:
            continue  # no slice at this index
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
                # The card's temperature is also the slice's; its utilization and power are not.
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
    problem = f"GPU {card.index} is in MIG mode without a slice. Create one with nvidia-smi mig, or disable MIG mode."
    return (Card(uuid=card.uuid, index=card.index, name=card.name, pci_address=card.pci_address, problem=problem),)
