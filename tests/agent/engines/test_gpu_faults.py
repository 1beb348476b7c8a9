"""Cards that only the machine's owner can mend: lost, or in want of a reset, a reboot or a drain."""

from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.errors import AgentError
from agent.telemetry import faults, gpu
from agent.telemetry.cards import Card, Cards
from agent.wire.capability import MemoryModel, Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState
from tests.agent.engines.conftest import Node, spec
from tests.bench.gpus import GIB, Machine, card

RESET, REBOOT, DRAIN, LOST = "gpu_needs_reset", "gpu_needs_reboot", "gpu_needs_drain", "gpu_lost"


@pytest.mark.parametrize(
    ("action", "code", "recovery", "says"),
    [
        (1, RESET, "reset", "nvidia-smi --gpu-reset -i 1"),
        (2, REBOOT, "reboot", "reboot the machine once its models are off"),
        (3, DRAIN, "drain_p2p", "Drain the node"),
        (4, RESET, "drain_and_reset", "works in part only"),
        (5, DRAIN, "recover_imex_domain", "nvidia-imex"),
        (6, RESET, "bus_reset", "nvidia-smi --gpu-reset -i 1"),
        (7, REBOOT, "reboot", "needs a reboot of the machine"),
        (23, REBOOT, "action_23", "recovery action 23"),
    ],
)
def test_what_the_driver_asks_for_is_said_and_its_values_are_kept(
    machine: Machine, action: int, code: str, recovery: str, says: str
) -> None:
    machine.library().cards(card(0), card(1, recovery=action))
    well, faulty = machine.cards().cards
    assert (well.code, well.recovery, well.problem) == (None, None, None)
    assert (faulty.code, faulty.recovery, faulty.lost) == (code, recovery, False)
    assert says in (faulty.problem or "")
    assert (faulty.problem or "").startswith("GPU 1 ")
    assert faulty.used_bytes == 2 * GIB


@pytest.mark.parametrize(
    ("fields", "recovery"),
    [
        ({"recovery": 0}, None),
        ({"recovery": "!3"}, None),
        ({"fields": "!4"}, None),
        ({"fields": "!999"}, None),
        ({"reset_status": 0, "drain_status": 0}, None),
        ({"reset_status": 1, "drain_status": 0}, "reset"),
        ({"reset_status": 0, "drain_status": 1}, "drain_and_reset"),
        ({"reset_status": 1, "recovery": 0}, None),
        ({}, None),
    ],
)
def test_a_card_that_wants_nothing_or_does_not_say_is_usable(machine: Machine, fields, recovery: str | None) -> None:
    machine.library().cards(card(0, **fields))
    (found,) = machine.cards().cards
    assert (found.recovery, found.problem is None) == (recovery, recovery is None)


def test_an_old_library_has_no_recovery_actions_and_its_cards_are_usable(machine: Machine) -> None:
    machine.library(old=True).cards(card(0, recovery=1))
    assert machine.cards().cards[0].problem is None


@pytest.mark.parametrize("question", ["handle", "uuid", "total", "processes"])
@pytest.mark.parametrize(("error", "code"), [("!15", LOST), ("!16", RESET)])
def test_errors_of_the_library_are_named_and_a_reset_is_not_a_loss(
    machine: Machine, question: str, error: str, code: str
) -> None:
    machine.library().cards(card(0), card(1, **{question: error}))
    well, faulty = machine.cards().cards
    assert well.problem is None
    assert (faulty.code, faulty.lost) == (code, code == LOST)
    name = "NVML_ERROR_GPU_IS_LOST" if code == LOST else "NVML_ERROR_RESET_REQUIRED"
    assert name in (faulty.problem or "")
    assert ("--gpu-reset" in (faulty.problem or "")) is (code == RESET)


def test_slices_of_a_card_stay_and_have_its_fault(machine: Machine) -> None:
    slices = {"mig": 1, "slices": 2, "s0.uuid": "MIG-a", "s0.total": GIB, "s0.used": 0}
    machine.library().cards(card(0, recovery=4, **slices))
    (found,) = machine.cards().cards
    assert (found.uuid, found.code, found.recovery) == ("MIG-a", RESET, "drain_and_reset")


def test_a_card_that_wants_a_reset_keeps_its_uuid_and_is_well_after_it(machine: Machine) -> None:
    fake = machine.library()
    fake.cards(card(0), card(1))
    gpu.remember(machine.cards())
    fake.cards(card(0), {"handle": "!16"})
    faulty = gpu.remember(machine.cards()).cards[1]
    assert (faulty.uuid, faulty.code, faulty.recovery, faulty.lost) == ("GPU-1", RESET, "reset", False)
    assert faulty.used_bytes is None
    fake.cards(card(0), card(1))
    assert gpu.remember(machine.cards()).cards[1].problem is None


ROW = "0, GPU-0, RTX, 24576, 512, 3, 40, 50, 8.9, 580.1, 00000000:41:00.0, 450, Disabled"


@pytest.mark.parametrize(
    ("word", "code", "recovery"),
    [
        ("None", None, None),
        ("[N/A]", None, None),
        ("", None, None),
        ("Reset", RESET, "reset"),
        ("GPU Reset", RESET, "reset"),
        ("Reboot", REBOOT, "reboot"),
        ("Drain P2P", DRAIN, "drain_p2p"),
        ("Drain and Reset", RESET, "drain_and_reset"),
    ],
)
def test_the_program_names_the_action_too(machine: Machine, word: str, code: str | None, recovery: str | None) -> None:
    machine.smi(f"case \"$1\" in --query-gpu*gpu_recovery_action) echo '{ROW}, {word}';; *) exit 1;; esac")
    (found,) = machine.cards().cards
    assert (found.uuid, found.code, found.recovery) == ("GPU-0", code, recovery)


def test_a_program_that_does_not_know_the_action_is_asked_for_it_once(machine: Machine, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    refuse = "echo 'Field \"gpu_recovery_action\" is not a valid field to query.'; exit 2"
    refused = f"*gpu_recovery_action) echo x >> {asked}; {refuse};;"
    machine.smi(f'case "$1" in {refused} --query-gpu*) echo "{ROW}";; *) exit 1;; esac')
    for _ in range(3):
        assert [(one.uuid, one.total_bytes) for one in machine.cards().cards] == [("GPU-0", 24 * GIB)]
    assert asked.read_text() == "x\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Unable to determine the device handle for GPU1: 0000:42:00.0: GPU requires reset", RESET),
        ("Unable to determine the device handle for GPU0000:42:00.0: GPU requires reset", RESET),
        ("Unable to determine the device handle for GPU1: 0000:42:00.0: GPU is lost.  Reboot the system", LOST),
        ("Unable to determine the device handle for GPU1: 0000:42:00.0: Unknown Error", LOST),
    ],
)
def test_the_program_s_lines_about_a_card_without_a_handle(machine: Machine, text: str, code: str) -> None:
    machine.smi(f"echo '{ROW}, None'; echo '{text}'; exit 15")
    faulty = next(one for one in machine.cards().cards if one.uuid != "GPU-0")
    assert (faulty.code, faulty.lost) == (code, code == LOST)


KERNEL = """\
6,1,1,-;NVRM: Xid (PCI:0000:41:00): 13, Graphics Exception: ESR 0x404490=0x80000002
4,2,2,-;NVRM: Xid (PCI:0000:42:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error
4,3,3,-;NVRM: Xid (PCI:0000:42:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
4,4,4,-;NVRM: Xid (0000:43:00): 31, Ch 00000010
4,5,5,-;NVRM: Xid (PCI:00000000:44:00.0): 119, Timeout waiting for RPC
"""


def test_the_last_xid_of_a_faulty_card_is_named_and_of_no_other(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(KERNEL)
    well = Card("GPU-0", 0, pci_address="0000:41:00.0")
    bad = [faults.lost(Card(f"GPU-{at}", at, pci_address=f"0000:4{at + 1}:00.0")) for at in (1, 2, 3, 4)]
    noted = faults.note_xids(Cards((well, *bad)), log)
    found = gpu.remember(noted).cards
    assert [one.xid for one in found] == [None, 79, 31, 119, None]
    assert "Xid 79" in (found[1].problem or "")
    assert gpu.remember(noted).cards[1].problem == found[1].problem, "said once"
    assert faults.note_xids(Cards((well,)), log).xids == ()
    assert faults.note_xids(Cards(tuple(bad)), tmp_path / "closed").xids == ()


def test_the_kernel_s_own_log_can_be_read_or_is_empty() -> None:
    found = faults.note_xids(Cards((faults.lost(Card("GPU-0", 0)),)))
    assert isinstance(found.xids, tuple)


async def test_no_model_starts_on_a_card_that_wants_a_reset(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = (Card("GPU-0", 0, total_bytes=GIB), faults.needs_reset(Card("GPU-1", 1, total_bytes=GIB)))

    async def read(*_: object) -> Cards:
        return Cards(cards)

    monkeypatch.setattr(gpu, "cards", read)
    with pytest.raises(AgentError) as caught:
        await node.instances.launch("i1", "op1", spec(gpu_uuids=("GPU-1",)))
    assert caught.value.code is AgentCode.GPU_MISSING
    assert "needs a reset" in caught.value.detail
    assert caught.value.fields == {"gpuUuids": ["GPU-1"]}
    with pytest.raises(AgentError, match="Not on this node"):
        await node.instances.launch("i1", "op2", spec(gpu_uuids=("GPU-7",)))
    await node.instances.launch("i1", "op3", spec(gpu_uuids=("GPU-0",)))
    await node.until("i1", InstanceState.READY)


async def test_a_machine_whose_memory_is_shared_starts_no_vllm_while_its_card_wants_a_reset(
    config: AgentConfig, make_node, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = config.models_root / "m"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    node = make_node(config.model_copy(update={"vllm_command": "/bin/true", "memory_model": MemoryModel.UNIFIED}))
    read: list[Card] = [faults.needs_reset(Card("GPU-0", 0, integrated=True))]

    async def cards(*_: object) -> Cards:
        return Cards(tuple(read))

    monkeypatch.setattr(gpu, "cards", cards)
    await node.instances.recover()
    order = spec(runtime=Runtime.VLLM, args=(), source={"folder": "m"})
    with pytest.raises(AgentError, match="needs a reset"):
        await node.instances.launch("i1", "op1", order)
    read[:] = [Card("GPU-0", 0, integrated=True)]
    await node.instances.launch("i1", "op2", order)
    await node.until("i1", InstanceState.EXITED)
