"""A drained node lets go of GPUs that no engine has, says since when their values are, and reads them again."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agent.capability import read_capabilities
from agent.config import AgentConfig
from agent.running import gpu_use
from agent.running.drain import Drain
from agent.server.seq import Sequence
from agent.server.status import Probes, Reporter
from agent.telemetry import gpu
from agent.telemetry.driver import DriverProcess
from agent.wire.instances import InstanceState
from agent.wire.status import HostStatus
from tests.agent.engines.conftest import Node, spec
from tests.bench.gpus import GIB, Machine, card
from tests.waiting import until


@pytest.fixture
def driver(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> DriverProcess:
    """The driver of a machine with two cards."""
    machine.library().cards(card(0), card(1))
    made = DriverProcess()
    monkeypatch.setattr(gpu, "_driver", made)
    monkeypatch.setattr(gpu, "_library_problem", lambda: None)
    return made


def readers() -> list[psutil.Process]:
    living = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    return [one for one in living if "agent.telemetry.reader" in one.cmdline()]


async def test_nothing_of_the_agent_keeps_the_cards_open_and_the_last_values_have_their_age(
    driver: DriverProcess, config: AgentConfig
) -> None:
    before = await gpu.gpu_statuses()
    assert [(one.used_bytes, one.age_seconds, one.released) for one in before] == [(2 * GIB, None, False)] * 2
    assert len(readers()) == 1
    gpu.let_go(True)
    until(lambda: not readers(), "the reader to end")
    held = await gpu.gpu_statuses()
    assert [(one.uuid, one.used_bytes, one.released, one.problem) for one in held] == [
        ("GPU-0", 2 * GIB, True, None), ("GPU-1", 2 * GIB, True, None),
    ]  # fmt: skip
    assert all(one.age_seconds is not None and one.age_seconds >= 0 for one in held)
    known = await read_capabilities(config)
    assert ([one.uuid for one in known.gpus], known.gpu_problem) == (["GPU-0", "GPU-1"], None)
    assert readers() == [], "capabilities are known without the driver"
    gpu.let_go(True)
    gpu.let_go(False)
    again = await gpu.gpu_statuses()
    assert [(one.age_seconds, one.released) for one in again] == [(None, False)] * 2


async def test_values_stay_for_as_long_as_it_lasts(driver: DriverProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    await gpu.gpu_statuses()
    gpu.let_go(True)
    read_at = gpu.monotonic()
    monkeypatch.setattr(gpu, "monotonic", lambda: read_at + 7200)
    (first, _) = await gpu.gpu_statuses()
    assert first.used_bytes == 2 * GIB
    assert first.age_seconds is not None
    assert 7190 < first.age_seconds < 7210


async def test_a_reading_that_a_start_needs_is_a_real_one_and_leaves_nothing_open(driver: DriverProcess) -> None:
    gpu.let_go(True)
    assert [one.uuid for one in (await gpu.recent()).cards] == ["GPU-0", "GPU-1"]
    until(lambda: not readers(), "the reader to end")


async def test_a_reading_in_progress_does_not_hold_the_release_up(driver: DriverProcess, machine: Machine) -> None:
    reading = gpu._ask("no-such-smi")
    gpu.let_go(True)
    reading.exception(20)
    until(lambda: not readers(), "the reader to end")


def reporter(node: Node) -> Reporter:
    async def host() -> HostStatus:
        return HostStatus()

    probes = Probes(host, gpu.gpu_statuses, lambda: read_capabilities(node.config))

    class Held:
        held = None

    return Reporter(probes, node.instances, Held(), Sequence(node.config.state_dir, "boot"))  # type: ignore[arg-type]


async def test_the_node_lets_go_while_it_is_drained_and_no_engine_has_a_gpu(
    driver: DriverProcess, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.server.status.TELEMETRY_FRESH_SECONDS", 0.0)
    says = reporter(node)
    status = (await says.status())(1)
    assert (status.host.draining, {one.released for one in status.gpus}) == (False, {False})
    node.instances.drain.note(draining=True)
    await node.instances.launch("i1", "op1", spec(gpu_uuids=("GPU-0",)))
    await node.until("i1", InstanceState.READY)
    status = (await says.status())(2)
    assert (status.host.draining, {one.released for one in status.gpus}) == (True, {False}), "a model still runs there"
    await node.instances.stop("i1", 1.0)
    await node.until("i1", InstanceState.EXITED)
    status = (await says.status())(3)
    assert {one.released for one in status.gpus} == {True}
    assert status.warnings == ()
    node.instances.drain.note(draining=False)
    status = (await says.status())(4)
    assert (status.host.draining, {one.released for one in status.gpus}) == (False, {False})


async def test_an_agent_that_starts_again_during_the_drain_stays_away(
    driver: DriverProcess, config: AgentConfig, make_node: Callable[[AgentConfig], Node]
) -> None:
    config.state_dir.mkdir()
    node = make_node(config)
    await node.instances.recover()
    node.instances.drain.note(draining=True)
    gpu.forget()
    await node.restart()
    assert node.instances.lets_go_of_gpus
    assert readers() == []
    assert [(one.uuid, one.released, one.used_bytes) for one in await gpu.gpu_statuses()] == [
        ("GPU-0", True, None), ("GPU-1", True, None),
    ]  # fmt: skip


@pytest.mark.parametrize("content", ["", "{", "[]", '{"draining":1}', '{"draining":"true"}'])
def test_a_file_that_says_nothing_is_no_drain(tmp_path: Path, content: str) -> None:
    assert not Drain(tmp_path).draining
    (tmp_path / "drain.json").write_text(content)
    assert not Drain(tmp_path).draining


def test_the_state_is_on_disk_and_a_folder_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    drain = Drain(tmp_path)
    drain.note(draining=True)
    assert Drain(tmp_path).draining
    drain.note(draining=False)
    assert not Drain(tmp_path).draining
    gone = Drain(tmp_path / "gone")
    gone.note(draining=True)
    assert gone.draining


def test_a_record_without_gpus_holds_none(node: Node) -> None:
    assert not gpu_use.holds_gpus([], node.instances._context)
