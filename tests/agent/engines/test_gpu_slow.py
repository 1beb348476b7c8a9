"""A driver that is slow is not absent: the agent listens first, keeps the last values with their age, decides again."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.capability import read_capabilities
from agent.config import AgentConfig
from agent.errors import AgentError
from agent.running import EngineInstances
from agent.telemetry import gpu, memory
from agent.telemetry.driver import DriverProcess
from agent.wire.capability import Feature, MemoryModel
from agent.wire.errors import AgentCode
from models_app.placement import feasible
from tests.agent.engines.conftest import spec
from tests.waiting import until_async

GIB = 2**30
ROW = "0, GPU-0, RTX 4090, 24576, 512, 3, 40, 50, 8.9, 580.1, 00000000:41:00.0, 450"


class SlowSmi:
    """An `nvidia-smi` that takes its time."""

    def __init__(self, folder: Path) -> None:
        self.path, self._seconds = folder / "nvidia-smi", folder / "seconds"
        self.path.write_text(
            f"#!/bin/sh\nsleep $(cat {self._seconds})\ncase \"$1\" in --query-gpu*) echo '{ROW}';; *) exit 0;; esac\n"
        )
        self.path.chmod(0o755)
        self.takes(0)

    def takes(self, seconds: float) -> None:
        self._seconds.write_text(str(seconds))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowSmi]:
    gpu.forget()
    monkeypatch.setattr(gpu, "_driver", DriverProcess())
    monkeypatch.setattr(gpu, "_STATUS_SECONDS", 0.2)
    monkeypatch.setattr(gpu, "_RECENT_SECONDS", 0.3)
    monkeypatch.setattr("agent.running.instances._FIRST_READING_SECONDS", 0.2)
    monkeypatch.setattr("agent.running.instances._GPU_RETRY_SECONDS", 0.05)
    yield SlowSmi(tmp_path)
    gpu.forget()


def configured(smi: SlowSmi, tmp_path: Path) -> AgentConfig:
    state = tmp_path / "state"
    state.mkdir()
    return AgentConfig(nvidia_smi=str(smi.path), state_dir=state, models_root=tmp_path, llama_server="/bin/true")


async def test_the_last_values_count_with_their_age_and_only_for_a_minute(smi: SlowSmi, monkeypatch) -> None:
    program = str(smi.path)
    assert (await gpu.cards(program)).cards[0].total_bytes == 24 * GIB
    smi.takes(30)
    await asyncio.sleep(0)
    (status,) = await gpu.gpu_statuses(program)
    assert (status.used_bytes, status.problem) == (512 * 2**20, None)
    assert status.age_seconds is not None
    assert 0.2 <= status.age_seconds < 30
    assert (await gpu.recent(program)).cards[0].used_bytes == 512 * 2**20, "a start is admitted by them, too"
    cards, problem = await gpu.read_or_problem(program)
    assert (len(cards.cards if cards else ()), problem) == (1, None)
    monkeypatch.setattr(gpu, "TRUSTED_SECONDS", 0.1)
    (status,) = await gpu.gpu_statuses(program)
    assert (status.uuid, status.total_bytes, status.used_bytes) == ("GPU-0", 24 * GIB, None)
    assert "did not answer" in (status.problem or "")
    assert "nvidia-persistenced" in (status.problem or "")


async def test_the_node_is_decided_by_its_gpus_once_the_driver_has_answered(smi: SlowSmi, tmp_path: Path) -> None:
    smi.takes(1.5)
    config = configured(smi, tmp_path)
    first = await read_capabilities(config)
    assert (first.memory_model, first.gpus) == (MemoryModel.UNIFIED, ())
    assert "nvidia-persistenced" in (first.gpu_problem or "")
    assert feasible.missing_gpus(("GPU-0",), first) == (), "a GPU that could not be read is not gone"
    await gpu.cards(config.nvidia_smi)
    later = await read_capabilities(config)
    assert (later.memory_model, [card.uuid for card in later.gpus]) == (MemoryModel.DISCRETE, ["GPU-0"])
    assert Feature.GPUS_UUIDS in later.features
    assert later.gpu_problem is None
    assert feasible.missing_gpus(("GPU-9",), later) == ("GPU-9",)
    assert any("takes " in warning and "nvidia-persistenced" in warning for warning in later.warnings)
    memory.forget(config.state_dir)


async def test_the_agent_does_not_wait_for_a_slow_driver_and_a_start_does(smi: SlowSmi, tmp_path: Path) -> None:
    smi.takes(1.2)
    config = configured(smi, tmp_path)
    instances = EngineInstances(config, "f" * 16, lambda _: None)
    begun = time.monotonic()
    await instances.recover()
    assert time.monotonic() - begun < 1
    launch = spec(gpu_uuids=("GPU-0",), gpu_memory_budget_bytes=GIB)
    with pytest.raises(AgentError) as refused:
        await instances.launch("i1", "op1", launch)
    assert refused.value.code is AgentCode.START_CONFLICT, "the master tries again"
    assert "waits for the GPU driver" in refused.value.detail
    await until_async(lambda: instances._context.memory_model is MemoryModel.DISCRETE and instances._context.cards,
                      "the first reading")  # fmt: skip
    smi.takes(0)
    await gpu.cards(config.nvidia_smi)
    await instances.launch("i1", "op2", launch)
    await instances.stop_everything(1)
    await instances.close()


async def test_an_agent_that_starts_again_knows_its_gpus_before_the_driver_answers(
    smi: SlowSmi, tmp_path: Path
) -> None:
    config = configured(smi, tmp_path)
    await gpu.cards(config.nvidia_smi)
    assert (await read_capabilities(config)).memory_model is MemoryModel.DISCRETE
    memory.forget(config.state_dir)
    gpu.forget()
    smi.takes(1.2)
    assert memory.before_reading(config) is MemoryModel.DISCRETE
    again = await read_capabilities(config)
    (card,) = again.gpus
    assert (again.memory_model, card.uuid, card.memory_bytes) == (MemoryModel.DISCRETE, "GPU-0", 24 * GIB)
    assert "did not answer" in (card.problem or "")
    await gpu.cards(config.nvidia_smi)
    assert (await read_capabilities(config)).gpus[0].problem is None
    memory.forget(config.state_dir)


async def test_a_card_that_was_taken_out_meanwhile_is_gone_and_not_lost(smi, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gpu, "_RECENT_SECONDS", 20.0)
    config = configured(smi, tmp_path)
    await read_capabilities(config)
    memory.forget(config.state_dir)
    gpu.forget()
    smi.path.write_text(smi.path.read_text().replace("GPU-0", "GPU-7"))
    again = await read_capabilities(config)
    assert [(card.uuid, card.lost) for card in again.gpus] == [("GPU-7", False)]
    memory.forget(config.state_dir)
