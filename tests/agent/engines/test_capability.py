"""Capabilities of a node: cards that answer in part, folders, runtimes, warnings."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.capability import path_warnings, read_capabilities
from agent.config import AgentConfig, BadAgentConfig, read_config
from agent.model_folders import list_folders
from agent.running import EngineInstances
from agent.telemetry import gpu, memory, smi
from agent.telemetry.host import host_status
from agent.telemetry.nvml import Card, Cards, NoDriver
from agent.wire.capability import Capabilities, Delivery, Feature, MemoryModel, Runtime
from agent.wire.status import GpuStatus
from tests.bench.nvml import FakeNvml

ROOT = Path(__file__).resolve().parents[3]
PC = {
    "uuid": "GPU-1", "name": "RTX 6000 Ada", "total": 48 * 2**30, "used": 2**30, "compute": "8.9", "utilization": 7,
    "temperature": 41, "power": 61_500,
}  # fmt: skip
GB10 = {"uuid": "GPU-2", "name": "NVIDIA GB10", "compute": "12.1", "utilization": 3, "temperature": 40}

DISCRETE = {Feature.GPUS_UUIDS, Feature.ADMISSION_DISCRETE, Feature.LAUNCH_ENV, Feature.IMAGES_DIGEST_PINNED}

PROBE = """
import asyncio, json, sys
from pathlib import Path
from agent.capability import read_capabilities
from agent.config import AgentConfig
from agent.telemetry.gpu import gpu_statuses
own = Path(sys.argv[1]) / "agent.json"
fields = json.loads(own.read_text()) if own.exists() else {}
config = AgentConfig(state_dir=Path(sys.argv[1]), models_root=Path(sys.argv[1]), nvidia_smi=sys.argv[2], **fields)
async def main():
    capabilities = await read_capabilities(config)
    statuses = await gpu_statuses(config.nvidia_smi)
    print(json.dumps([capabilities.to_wire(), [one.to_wire() for one in statuses]]))
asyncio.run(main())
"""


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path)


async def probe(
    tmp_path: Path, env: dict[str, str], nvidia_smi: str = "no-such-smi"
) -> tuple[Capabilities, list[GpuStatus]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROBE, str(tmp_path), nvidia_smi,
        cwd=ROOT, env={**os.environ, **env}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0
    capabilities, statuses = json.loads(output)
    return Capabilities.model_validate(capabilities), [GpuStatus.model_validate(one) for one in statuses]


async def test_a_card_with_its_own_memory_makes_the_node_discrete(tmp_path: Path, nvml: FakeNvml) -> None:
    nvml.cards(PC)
    capabilities, statuses = await probe(tmp_path, nvml.env)
    assert capabilities.memory_model is MemoryModel.DISCRETE
    assert set(capabilities.features) & DISCRETE == DISCRETE
    card = capabilities.gpus[0]
    assert (card.uuid, card.name, card.memory_bytes) == ("GPU-1", "RTX 6000 Ada", 48 * 2**30)
    assert (card.compute_capability, card.driver_version, card.shares_host_memory) == ("8.9", "580.95.05", False)
    status = statuses[0]
    assert (status.used_bytes, status.utilization_percent, status.power_watts) == (2**30, 7.0, 61.5)


async def test_a_card_that_shares_the_memory_of_the_machine_reports_none_and_not_zero(
    tmp_path: Path, nvml: FakeNvml
) -> None:
    nvml.cards(GB10)
    capabilities, statuses = await probe(tmp_path, nvml.env)
    assert capabilities.memory_model is MemoryModel.UNIFIED
    assert not set(capabilities.features) & DISCRETE
    assert (capabilities.gpus[0].memory_bytes, capabilities.gpus[0].shares_host_memory) == (None, True)
    assert (statuses[0].total_bytes, statuses[0].used_bytes, statuses[0].power_watts) == (None, None, None)
    assert statuses[0].utilization_percent == 3.0


async def test_a_lost_card_does_not_hide_the_others(tmp_path: Path, nvml: FakeNvml) -> None:
    nvml.cards({"handle": "!15"}, PC, {"uuid": "!15"})
    capabilities, statuses = await probe(tmp_path, nvml.env)
    assert [gpu.uuid for gpu in capabilities.gpus] == ["GPU-unreadable-0", "GPU-1", "GPU-unreadable-2"]
    assert "is lost" in (capabilities.gpus[0].problem or "")
    assert capabilities.gpus[0].lost
    assert statuses[0].lost
    assert capabilities.health == "degraded"
    assert statuses[1].used_bytes == 2**30


@pytest.mark.parametrize("broken", [{"init": "!9"}, {"init": "!999"}, {"count": "!999"}])
async def test_a_driver_that_does_not_start_is_a_problem_in_words(
    tmp_path: Path, nvml: FakeNvml, broken: dict[str, Any]
) -> None:
    nvml.cards(PC, **broken)
    capabilities, statuses = await probe(tmp_path, nvml.env)
    assert (capabilities.gpus, statuses) == ((), [])
    assert "NVML" in (capabilities.gpu_problem or "")
    assert capabilities.memory_model is MemoryModel.UNIFIED


def make_smi(tmp_path: Path, body: str) -> str:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return str(program)


async def test_without_the_library_nvidia_smi_is_asked(tmp_path: Path) -> None:
    row = "0, GPU-7, NVIDIA H200, 143771, 1024, 12, 34, 120.50, 9.0, 570.1"
    capabilities, statuses = await probe(tmp_path, {}, make_smi(tmp_path, f"echo '{row}'"))
    assert (capabilities.gpus[0].uuid, capabilities.gpus[0].memory_bytes) == ("GPU-7", 143771 * 2**20)
    assert (statuses[0].used_bytes, statuses[0].power_watts) == (2**30, 120.5)


def test_words_where_numbers_are_expected_are_not_reported(tmp_path: Path) -> None:
    row = "0, GPU-2, NVIDIA GB10, [N/A], [N/A], 3, 40, [Not Supported], 12.1, 580.95"
    found = smi.read_cards(make_smi(tmp_path, f"echo '{row}'"))
    card = found.cards[0]
    assert (card.total_bytes, card.used_bytes, card.power_watts) == (None, None, None)
    assert (card.utilization_percent, card.temperature_celsius, found.driver_version) == (3.0, 40.0, "580.95")


@pytest.mark.parametrize(
    ("body", "says"), [("echo 'has failed because it could not'; exit 9", "exit code 9"), ("exit 1", "no output")]
)
def test_a_failing_nvidia_smi_is_quoted(tmp_path: Path, body: str, says: str) -> None:
    with pytest.raises(NoDriver, match=says):
        smi.read_cards(make_smi(tmp_path, body))


async def test_a_machine_without_gpus_is_a_whole_node(config: AgentConfig) -> None:
    capabilities = await read_capabilities(config)
    assert (capabilities.gpus, capabilities.memory_model) == ((), MemoryModel.UNIFIED)
    assert capabilities.gpu_problem is None
    assert capabilities.health == "ok"
    assert capabilities.cpu_count > 0
    assert capabilities.memory_bytes > 0
    assert Feature.DELIVERY_PROCESS in capabilities.features
    found = {(item.runtime, item.delivery): item for item in capabilities.runtimes}
    assert len(found) == 6
    assert found[Runtime.LLAMA_CPP, Delivery.PROCESS].available
    assert found[Runtime.SIM, Delivery.PROCESS].available
    assert all(item.problem for item in found.values() if not item.available)


async def test_a_missing_models_root_is_a_warning_that_says_what_to_do(config: AgentConfig) -> None:
    config.models_root.rmdir()
    capabilities = await read_capabilities(config)
    assert capabilities.health == "degraded"
    assert "models_root" in capabilities.warnings[0]
    assert capabilities.warning_codes == ("models_root_unusable",)


async def test_a_models_root_that_the_agent_cannot_write_is_a_warning_and_logged_once_as_2630(
    config: AgentConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent.capability.os.access", lambda *_: False)
    for _ in range(2):
        capabilities = await read_capabilities(config)
        assert f"The agent (uid {os.getuid()}) cannot write to the models root" in capabilities.warnings[0]
    assert [record.id for record in caplog.records if getattr(record, "id", 0) == 2630] == [2630]


def test_folders_are_listed_with_their_files_links_too(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.gguf").write_bytes(b"12345")
    root = tmp_path / "root"
    root.mkdir()
    (root / "linked").symlink_to(elsewhere)
    (root / "own" / "sub").mkdir(parents=True)
    (root / "own" / "sub" / "b").write_bytes(b"123")
    (root / "own" / "dangling").symlink_to(tmp_path / "nothing")
    (root / ".hidden").mkdir()
    (root / "file.txt").touch()
    folders = list_folders(root)
    assert [(folder.name, folder.total_bytes) for folder in folders] == [("linked", 5), ("own", 3)]
    assert folders[1].files[0].path == "sub/b"
    assert list_folders(tmp_path / "nowhere") == ()


def test_a_folder_with_very_many_files_is_listed_in_part(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(205):
        (folder / f"{number:03}").write_bytes(b"x")
    listed = list_folders(tmp_path)[0]
    assert (len(listed.files), listed.truncated) == (200, True)


async def test_the_host_is_measured_and_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    status = await host_status(tmp_path / "not" / "there")
    assert status.memory_total_bytes
    assert status.memory_available_bytes
    assert status.memory_available_bytes <= status.memory_total_bytes
    assert status.disk_free_bytes
    assert status.load_1m is not None


CARDS = Cards((Card(uuid="GPU-1", index=0, total_bytes=2**34),))
SHARED = Cards((Card(uuid="GPU-2", index=0, total_bytes=None),))


@pytest.mark.parametrize(
    ("forced", "first", "problem", "model", "reason", "ids"),
    [
        (None, CARDS, None, MemoryModel.DISCRETE, "1 GPU(s) reported", [2640]),
        (None, SHARED, None, MemoryModel.UNIFIED, "1 GPU(s) reported", [2640, 2643]),
        (None, None, None, MemoryModel.UNIFIED, "no GPU reported", [2640, 2640]),
        (None, Cards(()), None, MemoryModel.UNIFIED, "no GPU reported", [2640, 2640]),
        (None, None, "it broke", MemoryModel.UNIFIED, "no GPU can be read (it broke)", [2642, 2640, 2640]),
        (MemoryModel.UNIFIED, CARDS, None, MemoryModel.UNIFIED, "set in agent.json", [2640, 2644]),
        (MemoryModel.UNIFIED, None, "it broke", MemoryModel.UNIFIED, "set in agent.json", [2640, 2644]),
        (MemoryModel.DISCRETE, None, None, MemoryModel.DISCRETE, "set in agent.json", [2640]),
        (MemoryModel.DISCRETE, CARDS, None, MemoryModel.DISCRETE, "set in agent.json", [2640]),
    ],
)
def test_the_memory_model_is_decided_by_the_first_gpus_and_what_disagrees_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, forced, first, problem, model, reason, ids
) -> None:
    caplog.set_level("INFO")
    config = AgentConfig(state_dir=tmp_path / "state", memory_model=forced)
    decision = memory.decided(config, first, problem)
    assert (decision.model, decision.reason) == (model, reason)
    later = [memory.decided(config, CARDS, None) for _ in range(3)]
    assert {one.model for one in later} == {model if decision.is_final else MemoryModel.DISCRETE}
    assert all(one is later[0] for one in later)
    assert [getattr(record, "id", None) for record in caplog.records] == ids


async def test_a_probe_that_fails_in_an_unforeseen_way_means_unified_and_keeps_nobody_from_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: str) -> None:
        raise ValueError("a field of another shape")

    monkeypatch.setattr(gpu, "read_or_problem", broken)
    config = AgentConfig(state_dir=tmp_path / "state", models_root=tmp_path)
    for _ in range(2):
        look = await memory.read(config)
        assert (look.cards, look.decision.model) == (None, MemoryModel.UNIFIED)
        assert "a field of another shape" in (look.problem or "")
    assert [record.id for record in caplog.records if hasattr(record, "id")] == [2641]
    assert (await read_capabilities(config)).gpu_problem == look.problem


async def test_an_agent_decides_again_once_there_are_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Cards | None] = [None]

    async def look(_: str) -> tuple[Cards | None, None]:
        return found[0], None

    monkeypatch.setattr(gpu, "read_or_problem", look)
    config = AgentConfig(state_dir=tmp_path / "state", models_root=tmp_path)
    instances = EngineInstances(config, "f" * 16, lambda _: None)
    await instances.recover()
    for cards, model in ((None, MemoryModel.UNIFIED), (CARDS, MemoryModel.DISCRETE), (None, MemoryModel.DISCRETE)):
        found[0] = cards
        assert (await read_capabilities(config)).memory_model is model
    await instances.close()


async def test_a_node_that_pulls_by_tag_does_not_say_that_it_pins_images(tmp_path: Path, nvml: FakeNvml) -> None:
    nvml.cards(PC)
    (tmp_path / "agent.json").write_text('{"allow_tag_pulls": true}')
    capabilities, _ = await probe(tmp_path, nvml.env)
    assert set(capabilities.features) & DISCRETE == DISCRETE - {Feature.IMAGES_DIGEST_PINNED}


def test_a_path_in_the_settings_that_leads_nowhere_is_a_warning_of_the_node(tmp_path: Path) -> None:
    assert path_warnings(AgentConfig()) == ()
    wrong = AgentConfig(llama_server="/no/llama", vllm_command="/no/vllm --x", nvidia_smi="/no/smi")
    said = path_warnings(wrong)
    for name, field in (("/no/llama", "llama_server"), ("/no/vllm", "vllm_command"), ("/no/smi", "nvidia_smi")):
        assert any(name in one and field in one for one in said)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"approved_images": ["engine:3"]}, "approved_images.0: 'engine:3' must be repository@sha256:"),
        ({"approved_images": ["engine:3@sha256:" + "a" * 64]}, "without a tag"),
        ({"approved_images": ["engine@sha256:" + "A" * 64]}, "lower case"),
        ({"vllm_command": "  "}, "vllm_command: an empty command is not valid"),
        ({"vllm_command": "vllm 'x"}, "is not a command line"),
        ({"download_helper_user": "auto"}, "as its own user"),
        ({"nvidia_smii": "x"}, "nvidia_smii: unknown field"),
    ],
)
def test_a_setting_that_cannot_be_used_is_said_when_the_agent_starts(
    tmp_path: Path, fields: dict[str, object], says: str
) -> None:
    path = tmp_path / "agent.json"
    path.write_text(json.dumps(fields))
    with pytest.raises(BadAgentConfig) as refused:
        read_config(path)
    assert says in str(refused.value)


def test_a_machine_that_does_not_let_its_pci_devices_be_read_has_no_known_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_PCI_DEVICES", tmp_path / "closed")
    (tmp_path / "closed").write_text("listing this fails as a folder without rights does")
    assert not gpu.is_expected(str(tmp_path / "no-nvidia-smi"))


def test_an_nvidia_display_on_the_bus_means_that_a_driver_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_PCI_DEVICES", tmp_path)
    for name, vendor, kind in (("0000:01:00.0", "0x10de", "0x030200"), ("0000:02:00.0", "0x8086", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert gpu.is_expected(str(tmp_path / "no-nvidia-smi"))
    (tmp_path / "0000:01:00.0" / "vendor").unlink()
    assert not gpu.is_expected(str(tmp_path / "no-nvidia-smi"))
