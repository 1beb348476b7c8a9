"""Rates of PCIe links, and the warning about one that is slower than its card."""

from collections.abc import Iterable

from agent.common.gpu_label import gpu_label
from agent.telemetry.cards import Link
from agent.wire.capability import GpuCapability, PcieLink

_LANE_BYTES = {1: 250e6, 2: 500e6, 3: 984.6e6, 4: 1969.2e6, 5: 3938.5e6, 6: 7563e6}
"""Bytes per second of one lane by generation, after line coding."""


def carried(lanes: int | None, generation: int | None) -> int | None:
    """Return the bytes per second of a link; None when lanes or generation are unknown."""
    if lanes is None or generation not in _LANE_BYTES:
        return None
    return int(lanes * _LANE_BYTES[generation])


def to_wire(link: Link | None) -> PcieLink | None:
    """Return the link as the master reads it."""
    if link is None:
        return None
    return PcieLink(
        lanes=link.lanes,
        card_lanes=link.card_lanes,
        generation=link.generation,
        card_generation=link.card_generation,
        bytes_per_second=carried(link.lanes, link.generation),
        card_bytes_per_second=carried(link.card_lanes, link.card_generation),
    )


def warnings(gpus: Iterable[GpuCapability]) -> tuple[str, ...]:
    """Return a sentence for each card whose link is slower than the card; slices count as their card."""
    found: dict[str, str] = {}
    for gpu in gpus:
        label = gpu_label(gpu.index, gpu.uuid)
        text = slow_link_text(f"{label} ({gpu.name})" if gpu.name and not gpu.parent_uuid else label, gpu.pcie)
        if text is not None:
            found.setdefault(gpu.parent_uuid or gpu.uuid, text)
    return tuple(found.values())


def slow_link_text(label: str, link: PcieLink | None) -> str | None:
    """Return a sentence about a link that is slower than its card; None when it is not."""
    if link is None or not link.is_slow:
        return None
    return (
        f"{label} uses {link.lanes} lanes of PCIe {link.generation} ({_rate(link.bytes_per_second)}); the card "
        f"supports {link.card_lanes} lanes of PCIe {link.card_generation} ({_rate(link.card_bytes_per_second)}). "
        "Check its slot and riser, and compare LnkCap with LnkSta in lspci -vv."
    )


def _rate(value: int | None) -> str:
    return "rate unknown" if value is None else f"{value / 1e9:.1f} GB/s"
