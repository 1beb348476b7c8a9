"""A driver that hangs, or takes down who asks it, costs a process and not the agent."""

import asyncio
import sys
import threading
import time
from pathlib import Path

import pytest

from agent.capability import read_capabilities
from agent.config import AgentConfig
from agent.telemetry import gpu, memory
from agent.telemetry.cards import Card, Cards, NoDriver
from agent.telemetry.driver import DriverProcess
from agent.wire.capability import MemoryModel
from tests.waiting import pause_async, until


def test_a_driver_that_hangs_is_given_up_and_asked_anew(tmp_path: Path) -> None:
    driver = DriverProcess(limit_seconds=0.3, command=(sys.executable, "-c", "import signal; signal.pause()"))
    for _ in range(2):
        begin = time.monotonic()
        with pytest.raises(NoDriver, match="did not answer") as refused:
            driver.cards("no-such-smi", tmp_path)
        assert time.monotonic() - begin < 5
        assert refused.value.installed
    driver.close()


def test_what_hangs_in_the_kernel_gets_no_second_one_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen.kill", lambda self: None)  # as of a process that waits for its device
    monkeypatch.setattr("agent.telemetry.driver._ENDING_SECONDS", 0.05)
    driver = DriverProcess(limit_seconds=0.2, command=(sys.executable, "-c", "import signal; signal.pause()"))
    with pytest.raises(NoDriver, match="did not answer"):
        driver.cards("no-such-smi", tmp_path)
    begin = time.monotonic()
    with pytest.raises(NoDriver, match="hangs"):
        driver.cards("no-such-smi", tmp_path)
    assert time.monotonic() - begin < 0.1
    stuck = driver._stuck
    assert stuck is not None
    stuck.terminate()
    stuck.wait()


def test_an_agent_that_ends_does_not_wait_for_a_hanging_driver(tmp_path: Path) -> None:
    driver = DriverProcess(limit_seconds=30, command=(sys.executable, "-c", "import signal; signal.pause()"))

    def ask() -> None:
        with pytest.raises(NoDriver):
            driver.cards("no-such-smi", tmp_path)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: driver._process, "the driver's process to start")
    begin = time.monotonic()
    driver.close()
    asking.join(10)
    assert not asking.is_alive()
    assert time.monotonic() - begin < 8


def test_a_driver_that_takes_down_who_asks_is_a_problem_in_words(tmp_path: Path) -> None:
    driver = DriverProcess(command=(sys.executable, "-c", "import os, sys; sys.stdin.readline(); os._exit(11)"))
    with pytest.raises(NoDriver, match="crashed"):
        driver.cards("no-such-smi", tmp_path)
    driver.close()


async def test_a_hanging_driver_does_not_hold_up_the_agent(
    config: AgentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = DriverProcess(limit_seconds=1.0, command=(sys.executable, "-c", "import signal; signal.pause()"))
    monkeypatch.setattr(gpu, "_driver", hanging)
    monkeypatch.setattr(gpu, "_library_problem", lambda: None)
    longest = 0.0

    async def result() -> None:
        nonlocal longest
        while True:
            begin = time.monotonic()
            await pause_async(0.01)
            longest = max(longest, time.monotonic() - begin)

    beating = asyncio.create_task(result())
    capabilities = await read_capabilities(config)
    beating.cancel()
    assert "did not answer" in (capabilities.gpu_problem or "")
    assert longest < 0.8
    hanging.close()


async def test_those_who_ask_at_once_share_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = [], threading.Event()

    def slow(nvidia_smi: str) -> Cards:
        asked.append(nvidia_smi)
        answered.wait(10)
        return Cards((Card(uuid="GPU-1", index=0),))

    monkeypatch.setattr(gpu, "read_cards", slow)
    readings = [asyncio.create_task(gpu.cards()) for _ in range(5)]
    await asyncio.sleep(0)  # each of them asks
    answered.set()
    found = await asyncio.gather(*readings)
    assert len(asked) == 1
    assert all(one.cards[0].uuid == "GPU-1" for one in found)


async def test_cards_that_answered_before_are_told_while_the_driver_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(uuid="GPU-1", index=0, name="RTX", total_bytes=2**34, used_bytes=5, utilization_percent=9.0)
    gpu.remember(Cards((card,)))

    def fail(nvidia_smi: str) -> Cards:
        raise NoDriver("the GPU driver hangs", installed=True)

    monkeypatch.setattr(gpu, "read_cards", fail)
    found, problem = await gpu.read_or_problem()
    assert problem == "the GPU driver hangs"
    assert found is not None
    assert (found.cards[0].uuid, found.cards[0].total_bytes, found.cards[0].used_bytes) == ("GPU-1", 2**34, None)
    assert memory.model_of(found) is MemoryModel.DISCRETE, "what the card is does not change"
    (status,) = await gpu.gpu_statuses()
    assert (status.used_bytes, status.utilization_percent, status.lost) == (None, None, False)
    assert "the GPU driver hangs" in (status.problem or "")


async def test_an_agent_that_never_saw_a_card_tells_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(nvidia_smi: str) -> Cards:
        raise NoDriver("the GPU driver hangs", installed=True)

    monkeypatch.setattr(gpu, "read_cards", fail)
    assert await gpu.read_or_problem() == (None, "the GPU driver hangs")
    assert await gpu.gpu_statuses() == ()
