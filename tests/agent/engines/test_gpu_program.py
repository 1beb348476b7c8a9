"""GPUs as reported by ``nvidia-smi``, where the library cannot be used."""

import pytest

from agent.telemetry import smi
from agent.telemetry.cards import NoDriver
from tests.bench.gpus import GIB, Machine


def test_one_line_about_a_lost_card_does_not_hide_the_rows(machine: Machine) -> None:
    machine.smi(
        "echo 'Unable to determine the device handle for GPU2: 0000:42:00.0: GPU is lost.  Reboot the system'\n"
        'for i in 0 1 3; do echo "$i, GPU-$i, RTX, 24576, 512, 3, 40, 50, 8.9, 580.1, 00000000:4$i:00.0, 450"; done\n'
        "exit 15"
    )
    found = machine.cards().cards
    assert [(one.uuid, one.lost, one.index) for one in found] == [
        ("GPU-0", False, 0), ("GPU-1", False, 1), ("GPU-unreadable-2", True, 2), ("GPU-3", False, 3),
    ]  # fmt: skip


def test_when_one_lost_card_silences_the_program_each_is_asked_alone(machine: Machine) -> None:
    for place in (1, 2, 3):
        machine.slot(f"0000:4{place}:00.0")
    machine.smi(
        'case "$1" in --id=0000:42*) exit 6;;\n'
        "--id=*) p=${1#--id=0000:4}; p=${p%%:*}\n"
        'echo "$p, GPU-$p, RTX, 24576, 512, 3, 40, 50, 8.9, 580.1, 0000:4$p:00.0, 450";;\n'
        "*) echo 'Unable to determine the device handle for GPU0000:42:00.0: Unknown Error'; exit 255;; esac"
    )
    found = machine.cards().cards
    assert {(one.uuid, one.lost) for one in found} == {
        ("GPU-1", False), ("GPU-3", False), ("GPU-unreadable-0000:42:00.0", True),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("echo 'Failed to initialize NVML: Unknown Error'; exit 255", "recreate the container"),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo 'NVML library version'; exit 18",
            "Reboot the machine",
        ),
    ],
)
def test_a_driver_that_does_not_start_says_what_to_do(machine: Machine, body: str, says: str) -> None:
    machine.smi(body)
    with pytest.raises(NoDriver, match=says):
        machine.cards()


@pytest.mark.parametrize("word", ["[Insufficient Permissions]", "[Unknown Error]", "[GPU requires reset]", ""])
def test_words_of_trouble_are_unknown_and_the_card_stays(machine: Machine, word: str) -> None:
    machine.smi(f"echo '0, GPU-0, RTX 4090, {word}, {word}, {word}, 40, {word}, 8.9, 580.1, 0000:41:00.0, {word}'")
    (found,) = machine.cards().cards
    assert (found.uuid, found.total_bytes, found.used_bytes, found.integrated) == ("GPU-0", None, None, None)
    assert (found.utilization_percent, found.power_watts, found.temperature_celsius) == (None, None, 40.0)


def test_a_gb10_shares_the_machines_memory_by_the_program_too(machine: Machine) -> None:
    machine.smi(
        'case "$1" in --query-compute*) echo "GPU-9, 11, /opt/vllm/bin/python3, 3072"; exit;; esac\n'
        "echo '0, GPU-9, NVIDIA GB10, [N/A], [N/A], 3, 40, 12.5, 12.1, 580.95, 0000:01:00.0, [N/A]'"
    )
    (found,) = machine.cards().cards
    assert (found.total_bytes, found.integrated, found.used_bytes) == (None, True, 3 * GIB)
    assert found.processes is not None
    assert (found.processes[0].pid, found.processes[0].name) == (11, "python3")


def test_an_older_program_is_asked_for_what_it_knows(machine: Machine) -> None:
    machine.smi(
        'case "$1" in *compute_cap*) echo "Field \\"compute_cap\\" is not a valid field to query."; exit 2;; esac\n'
        "echo '0, GPU-0, Tesla T4, 15360, 100, 3, 40, 30, 450.80, 0000:41:00.0, 70'"
    )
    (found,) = machine.cards().cards
    assert (found.name, found.total_bytes, found.compute_capability) == ("Tesla T4", 15360 * 2**20, None)
    assert (found.power_limit_watts, found.pci_address) == (70.0, "0000:41:00.0")


def test_a_name_with_a_comma_is_a_name(machine: Machine) -> None:
    machine.smi("echo '0, GPU-0, RTX 6000, Blackwell, 97887, 1, 3, 40, 50, 12.0, 580, 0000:41:00.0, 600, [N/A], None'")
    (found,) = machine.cards().cards
    assert (found.name, found.total_bytes) == ("RTX 6000, Blackwell", 97887 * 2**20)


def test_slices_are_listed_by_the_program_too(machine: Machine) -> None:
    machine.smi(
        "if [ \"$1\" = -L ]; then echo 'GPU 0: A100 (UUID: GPU-0)'\n"
        "echo '  MIG 3g.20gb     Device  0: (UUID: MIG-a)'; echo '  MIG 1g.5gb  Device  1: (UUID: MIG-b)'; exit; fi\n"
        "echo '0, GPU-0, A100, 40960, 100, [N/A], 40, 50, 8.0, 580, 0000:41:00.0, 250, Enabled'"
    )
    found = machine.cards().cards
    assert [(one.uuid, one.parent_uuid, one.total_bytes) for one in found] == [
        ("MIG-a", "GPU-0", None), ("MIG-b", "GPU-0", None),
    ]  # fmt: skip
    assert found[0].name == "A100 MIG 3g.20gb"


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(NoDriver, match="no-such-smi is not found"):
        smi.read_cards("no-such-smi")
