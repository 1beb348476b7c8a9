"""GPUs as values. None is unknown, never 0. Light to import: the process that reads the driver uses it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

UNREADABLE = "GPU-unreadable-"
"""Prefix of the name of a card without a UUID; its number follows."""


class NoDriver(Exception):
    """GPUs cannot be read; the text has the error. `installed` means that a driver's library exists."""

    def __init__(self, text: str, *, installed: bool = False) -> None:
        super().__init__(text)
        self.installed = installed


class SlowDriver(NoDriver):
    """The driver has not answered yet; a reading is in progress."""

    def __init__(self, text: str) -> None:
        super().__init__(text, installed=True)


@dataclass(frozen=True)
class Process:
    """A process that uses a GPU."""

    pid: int
    used_bytes: int | None = None
    name: str = ""


@dataclass(frozen=True)
class Link:
    """A PCIe link: lanes in use and the card's own; generation that card and slot allow, and the card's own."""

    lanes: int | None = None
    card_lanes: int | None = None
    generation: int | None = None
    card_generation: int | None = None


@dataclass(frozen=True)
class Xid:
    """A fault that the kernel's log has of the card in `slot`, its address without the function."""

    slot: str
    number: int


@dataclass(frozen=True)
class Card:
    """One GPU, or one MIG slice of the card `parent_uuid`. `integrated` is true when it shares the machine's memory.

    `problem` has a `code` when only the machine's owner can mend it (`faults`); `recovery` is what the driver asks for.
    `place` is its bus address where the driver does not number it.
    """

    uuid: str
    index: int
    name: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    compute_capability: str | None = None
    utilization_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    integrated: bool | None = None
    parent_uuid: str | None = None
    pci_address: str | None = None
    link: Link | None = None
    processes: tuple[Process, ...] | None = None
    lost: bool = False
    problem: str | None = None
    code: str | None = None
    recovery: str | None = None
    xid: int | None = None
    place: str | None = None


@dataclass(frozen=True)
class Cards:
    """All GPUs, the driver's version and the newest CUDA that it supports, and the faults in the kernel's log."""

    cards: tuple[Card, ...]
    driver_version: str | None = None
    cuda_version: str | None = None
    xids: tuple[Xid, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the value as JSON."""
        return asdict(self)


def from_json(value: Mapping[str, Any]) -> Cards:
    """Return the value that `Cards.to_json` wrote."""
    cards = tuple(_card(item) for item in value["cards"])
    xids = tuple(Xid(**item) for item in value.get("xids", ()))
    return Cards(cards, value["driver_version"], value.get("cuda_version"), xids)


def _card(item: Mapping[str, Any]) -> Card:
    processes = item["processes"]
    known = {
        "link": None if item["link"] is None else Link(**item["link"]),
        "processes": None if processes is None else tuple(Process(**one) for one in processes),
    }
    return Card(**{**item, **known})


def is_integrated(name: str | None, *, has_bus: bool | None) -> bool | None:
    """Return whether a card whose memory is "not supported" shares the machine's, by name or without a PCIe link.

    None when unknown.
    """
    if name is not None and any(word in name.lower() for word in ("gb10", "nvgpu", "thor", "orin", "xavier", "tegra")):
        return True
    return True if has_bus is False else None


def held_bytes(processes: Iterable[Process] | None) -> int | None:
    """Return the memory of all processes; None when that of one is unknown."""
    if processes is None:
        return None
    total = 0
    for process in processes:
        if process.used_bytes is None:
            return None
        total += process.used_bytes
    return total
