"""GPUs as values. None is unknown, never 0. Light to import: the process that asks the driver uses it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

UNREADABLE = "GPU-unreadable-"
"""Begins the name of a card that tells no UUID; its number follows."""


class NoDriver(Exception):
    """GPUs cannot be read; the text says what was answered. `installed` means that there is a library of a driver."""

    def __init__(self, text: str, *, installed: bool = False) -> None:
        super().__init__(text)
        self.installed = installed


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
class Card:
    """One GPU, or one MIG slice of the card `parent_uuid`. `integrated` is whether it shares the machine's memory."""

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


@dataclass(frozen=True)
class Cards:
    """All GPUs, and the driver's version."""

    cards: tuple[Card, ...]
    driver_version: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The value as JSON."""
        return asdict(self)


def from_json(value: Mapping[str, Any]) -> Cards:
    """What `Cards.to_json` made."""
    return Cards(tuple(_card(item) for item in value["cards"]), value["driver_version"])


def _card(item: Mapping[str, Any]) -> Card:
    processes = item["processes"]
    known = {
        "link": None if item["link"] is None else Link(**item["link"]),
        "processes": None if processes is None else tuple(Process(**one) for one in processes),
    }
    return Card(**{**item, **known})


def lost_words(number: int | str) -> str:
    """What a person reads of a card that fell off the bus."""
    return f"GPU {number} is lost: it no longer answers on its bus. Reboot the machine; if it is lost again, check it."


def is_integrated(name: str | None, *, has_bus: bool | None) -> bool | None:
    """Whether a card whose memory is "not supported" shares the machine's: so it is by name, or without a PCIe link.

    None when that cannot be told.
    """
    if name is not None and any(word in name.lower() for word in ("gb10", "nvgpu", "thor", "orin", "xavier", "tegra")):
        return True
    return True if has_bus is False else None


def held_bytes(processes: Iterable[Process] | None) -> int | None:
    """What all of them hold; None when that cannot be told of each."""
    if processes is None:
        return None
    total = 0
    for process in processes:
        if process.used_bytes is None:
            return None
        total += process.used_bytes
    return total
