"""PCIe links against what card and slot allow."""

from pathlib import Path

import pytest

from agent.capability import read_capabilities
from agent.config import AgentConfig
from agent.telemetry import gpu, links, pcie
from agent.telemetry.cards import Link
from agent.wire.capability import GpuCapability, MemoryModel
from tests.bench.gpus import Machine, card


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"lanes": 8}, "8 lanes of PCIe 4 (15.8 GB/s); the card supports 16 lanes of PCIe 4 (31.5 GB/s)"),
        ({"slot": 8}, "16 lanes of PCIe 3 (15.8 GB/s); the card supports 16 lanes of PCIe 4 (31.5 GB/s)"),
        ({"slot": 32}, None),
        ({"lanes": 63}, None),
        ({"lanes": 0}, None),
        ({"lanes": "unknown"}, None),
    ],
)
def test_a_link_is_compared_with_what_card_and_slot_allow(
    machine: Machine, given: dict[str, float], expected: str | None
) -> None:
    machine.slot("0000:41:00.0", **given)  # type: ignore[arg-type]
    link = links.to_wire(pcie.read_link("0000:41:00.0", machine.devices))
    words = links.slow_link_text("GPU 0", link)
    if expected is None:
        assert words is None
    else:
        assert expected in words


def test_a_link_of_which_the_kernel_tells_nothing_is_unknown(tmp_path: Path) -> None:
    assert pcie.read_link("0000:41:00.0", tmp_path) is None
    assert pcie.read_link(None, tmp_path) is None
    assert links.slow_link_text("GPU 0", links.to_wire(Link(lanes=8))) is None


def test_a_slow_link_of_a_card_in_slices_is_said_once(machine: Machine) -> None:
    machine.slot("0000:41:00.0", lanes=4)
    link = links.to_wire(pcie.read_link("0000:41:00.0", machine.devices))
    slices = [GpuCapability(uuid=f"MIG-{n}", index=0, name="x", parent_uuid="GPU-0", pcie=link) for n in (1, 2)]
    assert len(links.warnings(slices)) == 1
    assert links.warnings(slices)[0].startswith("GPU 0 uses 4 lanes")


def test_the_link_comes_with_the_card(machine: Machine) -> None:
    machine.slot("0000:41:00.0", lanes=8)
    machine.library().cards(card(0))
    assert machine.cards().cards[0].link == Link(lanes=8, card_lanes=16, generation=4, card_generation=4)


async def test_a_slow_link_and_a_lost_card_are_warnings_of_the_node(
    config: AgentConfig, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.slot("0000:41:00.0", lanes=8)
    machine.library().cards(card(0), {"handle": "!15"})
    monkeypatch.setattr(gpu, "read_cards", lambda nvidia_smi: machine.cards())
    found = await read_capabilities(config)
    assert "GPU 0 (NVIDIA A100-PCIE-40GB) uses 8 lanes" in found.warnings[0]
    assert [(one.lost, one.shares_host_memory) for one in found.gpus] == [(False, False), (True, None)]
    assert (found.memory_model, found.health) == (MemoryModel.DISCRETE, "degraded")
