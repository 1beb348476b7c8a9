"""GPUs as reported by NVIDIA's library: cards that answer in part, are lost, or share the machine's memory."""

import pytest

from agent.telemetry import gpu
from agent.telemetry.reader import driver_version
from tests.bench.gpus import A100, GIB, Machine, card


@pytest.mark.parametrize("name", ["NVIDIA GB10", "Orin (nvgpu)", "NVIDIA Thor"])
def test_memory_that_is_not_supported_on_an_integrated_part_is_the_machines(machine: Machine, name: str) -> None:
    part = {"uuid": "GPU-7", "name": name, "compute": "12.1", "processes": f"11:{3 * GIB},12:{GIB}"}
    machine.library().cards(part)
    (found,) = machine.cards().cards
    assert (found.total_bytes, found.integrated, found.name) == (None, True, name)
    assert found.used_bytes == 4 * GIB, "what its processes hold"
    assert (found.power_watts, found.utilization_percent) == (None, None)


def test_an_integrated_part_by_another_name_is_known_by_its_missing_bus(machine: Machine) -> None:
    machine.library().cards({"uuid": "GPU-7", "name": "NVIDIA N1X"})
    assert machine.cards().cards[0].integrated is True


def test_a_card_on_a_bus_without_memory_figures_is_unknown_and_not_shared(machine: Machine) -> None:
    machine.library().cards({key: value for key, value in card(0).items() if key not in ("total", "used")})
    (found,) = machine.cards().cards
    assert (found.total_bytes, found.used_bytes, found.integrated) == (None, None, None)


def test_memory_may_be_told_by_the_second_version_alone(machine: Machine) -> None:
    machine.library().cards(card(0, total="!3", total2=80 * GIB))
    (found,) = machine.cards().cards
    assert (found.total_bytes, found.used_bytes, found.integrated) == (80 * GIB, 2 * GIB, False)


@pytest.mark.parametrize("error", ["!4", "!999", "!10"])
def test_memory_that_may_not_be_read_is_unknown_and_never_drops_the_card(machine: Machine, error: str) -> None:
    machine.library().cards(card(0, total=error, power=error, utilization=error))
    (found,) = machine.cards().cards
    assert (found.uuid, found.total_bytes, found.used_bytes, found.integrated) == ("GPU-0", None, None, None)
    assert (found.power_watts, found.utilization_percent, found.problem) == (None, None, None)
    assert found.temperature_celsius == 52


def test_a_lost_card_is_lost_beside_three_that_work(machine: Machine) -> None:
    machine.library().cards(card(0), card(1), {"handle": "!15"}, card(3))
    machine.smi("echo 'Unable to determine the device handle for GPU2: 0000:43:00.0: GPU is lost.'; exit 15")
    found = machine.cards().cards
    assert [(one.uuid, one.lost) for one in found] == [
        ("GPU-0", False), ("GPU-1", False), ("GPU-unreadable-2", True), ("GPU-3", False),
    ]  # fmt: skip
    assert "Reboot the machine" in (found[2].problem or "")
    assert all(one.used_bytes == 2 * GIB for one in found if not one.lost)


@pytest.mark.parametrize("question", ["uuid", "total", "processes", "temperature"])
def test_a_card_that_is_lost_while_it_is_asked_is_not_one_without_memory(machine: Machine, question: str) -> None:
    machine.library().cards(card(0, **{question: "!15"}), card(1))
    lost, other = machine.cards().cards
    assert (lost.lost, lost.total_bytes, lost.integrated) == (True, None, None)
    assert (other.lost, other.total_bytes) == (False, 40 * GIB)


def test_a_lost_card_keeps_its_uuid_and_its_reserve(machine: Machine) -> None:
    fake = machine.library()
    fake.cards(card(0), card(1))
    gpu.remember(machine.cards())
    fake.cards(card(0), {"handle": "!15"})
    found = gpu.remember(machine.cards())
    assert [(one.uuid, one.name, one.lost) for one in found.cards] == [
        ("GPU-0", A100["name"], False), ("GPU-1", A100["name"], True),
    ]  # fmt: skip
    fake.cards(card(0), card(1))
    assert [one.lost for one in gpu.remember(machine.cards()).cards] == [False, False]


def test_a_card_that_is_no_longer_counted_is_lost(machine: Machine) -> None:
    fake = machine.library()
    fake.cards(card(0), card(1))
    gpu.remember(machine.cards())
    fake.cards(card(0))
    assert [(one.uuid, one.lost) for one in gpu.remember(machine.cards()).cards] == [("GPU-0", False), ("GPU-1", True)]


def test_cards_are_known_by_uuid_when_the_first_is_removed_and_the_order_changes(machine: Machine) -> None:
    fake = machine.library()
    fake.cards(card(0), card(1, used=GIB), card(2))
    before = {one.uuid: one.index for one in machine.cards().cards}
    fake.cards(card(2), card(1, used=GIB))
    after = {one.uuid: one for one in machine.cards().cards}
    assert (before["GPU-1"], after["GPU-1"].index, after["GPU-1"].used_bytes) == (1, 1, GIB)
    assert (before["GPU-2"], after["GPU-2"].index) == (2, 0)
    assert after["GPU-2"].pci_address == "0000:43:00.0", "its place on the bus did not move"


def test_slices_stand_in_place_of_their_card(machine: Machine) -> None:
    slices = {
        "mig": 1, "slices": 7, "utilization": "!3",
        "s0.uuid": "MIG-a", "s0.name": "NVIDIA A100-PCIE-40GB MIG 3g.20gb", "s0.total": 20 * GIB, "s0.used": GIB,
        "s2.uuid": "MIG-c", "s2.name": "NVIDIA A100-PCIE-40GB MIG 1g.5gb", "s2.total": 5 * GIB, "s2.used": 0,
        "s0.processes": f"77:{GIB}",
    }  # fmt: skip
    machine.library().cards(card(0, **slices), card(1))
    found = machine.cards().cards
    assert [(one.uuid, one.parent_uuid, one.index) for one in found] == [
        ("MIG-a", "GPU-0", 0), ("MIG-c", "GPU-0", 0), ("GPU-1", None, 1),
    ]  # fmt: skip
    assert [(one.total_bytes, one.used_bytes, one.utilization_percent) for one in found[:2]] == [
        (20 * GIB, GIB, None), (5 * GIB, 0, None),
    ]  # fmt: skip
    assert (found[0].compute_capability, found[0].processes and found[0].processes[0].pid) == ("8.0", 77)


def test_slices_may_be_made_and_unmade_without_a_card_being_lost(machine: Machine) -> None:
    fake = machine.library()
    fake.cards(card(0))
    gpu.remember(machine.cards())
    fake.cards(card(0, mig=1, slices=2, **{"s0.uuid": "MIG-a", "s0.total": GIB, "s0.used": 0}))
    assert [one.uuid for one in gpu.remember(machine.cards()).cards] == ["MIG-a"]
    fake.cards(card(0))
    assert [(one.uuid, one.lost) for one in gpu.remember(machine.cards()).cards] == [("GPU-0", False)]


def test_a_card_in_mig_mode_without_a_slice_says_what_to_do(machine: Machine) -> None:
    machine.library().cards(card(0, mig=1, slices=7))
    (found,) = machine.cards().cards
    assert (found.uuid, found.lost) == ("GPU-0", False)
    assert "nvidia-smi mig" in (found.problem or "")


@pytest.mark.parametrize("old", [False, True])
def test_processes_are_told_by_older_drivers_too_and_what_is_no_process_is_none(machine: Machine, old: bool) -> None:
    reported = f"4294967295:5,10:{GIB},0:7,11:na"
    machine.library(old=old).cards(card(0, processes=reported, graphics=f"10:{GIB},12:{2**20}"))
    (found,) = machine.cards().cards
    assert {(one.pid, one.used_bytes) for one in found.processes or ()} == {(10, GIB), (11, None), (12, 2**20)}


def test_processes_that_cannot_be_read_are_not_none_of_them(machine: Machine) -> None:
    machine.library().cards(card(0, processes="!4", graphics="!4"), card(1))
    closed, empty = machine.cards().cards
    assert (closed.processes, empty.processes) == (None, ())
    assert gpu.status_of(closed).process_count is None
    assert gpu.status_of(empty).process_count == 0


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024", "550.54.14"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build", "580.82.07"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95  Release Build", "580.95"),
        ("nothing of the kind", None),
    ],
)
def test_the_version_of_the_driver_is_read_whichever_module_wrote_it(text: str, version: str | None) -> None:
    assert driver_version(text) == version
