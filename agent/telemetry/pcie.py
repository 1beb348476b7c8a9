"""A card's PCIe link as the kernel reports it."""

import re
from pathlib import Path

from agent.telemetry.cards import Link

DEVICES = Path("/sys/bus/pci/devices")

_GENERATIONS = ((2.5, 1), (5.0, 2), (8.0, 3), (16.0, 4), (32.0, 5), (64.0, 6))
_MOST_LANES = 32
_SPEED = re.compile(r"(\d+(?:\.\d+)?) ?GT/s")


def kernel_address(text: str | None) -> str | None:
    """Convert the driver's ``00000000:41:00.0`` to the kernel's ``0000:41:00.0``. None for anything else."""
    match = re.fullmatch(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])", text or "")
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.{function}"


def read_link(address: str | None, devices: Path = DEVICES) -> Link | None:
    """Return the link of the card at `address`; None when the kernel reports nothing."""
    if address is None:
        return None
    card = devices / address
    slot = card.resolve().parent
    own, slots = _generation(card), _generation(slot)
    link = Link(
        lanes=_lanes(card, "current_link_width"),
        card_lanes=_lanes(card, "max_link_width"),
        generation=own if slots is None or own is None else min(own, slots),
        card_generation=own,
    )
    return None if link == Link() else link


def _text(device: Path, name: str) -> str:
    try:
        return (device / name).read_text(errors="replace").strip()
    except OSError:
        return ""


def _lanes(device: Path, name: str) -> int | None:
    text = _text(device, name)
    # 0, 63 and 255 are the values of a device that does not answer, or of a guest's virtual bus
    return int(text) if text.isdecimal() and 1 <= int(text) <= _MOST_LANES else None


def _generation(device: Path) -> int | None:
    match = _SPEED.match(_text(device, "max_link_speed"))
    if match is None:
        return None
    return next((number for speed, number in _GENERATIONS if abs(speed - float(match[1])) < 0.1), None)
