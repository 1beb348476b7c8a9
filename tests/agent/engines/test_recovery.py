"""Recovery of engines after their agent was killed: nothing runs twice, nothing is lost."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agent import clock
from agent.config import AgentConfig
from agent.wire.instances import InstanceState
from tests.agent.engines.conftest import Node, kill, spec
from tests.waiting import until_async

ROOT = Path(__file__).resolve().parents[3]
MakeNode = Callable[[AgentConfig], Node]

LAUNCH_MOMENTS = [
    *(f"{when}-save:{number}" for number in range(2, 7) for when in ("before", "after")),
    "after-save:1",
    "before-spawn",
    "after-spawn",
    "ready",
]


async def run_and_kill(config: AgentConfig, moment: str) -> None:
    """An agent in a process of its own launches i1 and dies at `moment`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.agent.engines.dying_agent",
        str(config.state_dir),
        str(config.models_root),
        moment,
        cwd=ROOT,
    )
    assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL


@pytest.mark.faults
@pytest.mark.parametrize("moment", LAUNCH_MOMENTS)
async def test_a_launch_whose_agent_is_killed_finishes_once(
    config: AgentConfig, make_node: MakeNode, moment: str
) -> None:
    await run_and_kill(config, moment)
    node = make_node(config)
    survivors = node.processes()
    assert len(survivors) <= 1
    await node.instances.recover()
    view = await node.until("i1", InstanceState.READY)
    assert view.operation_id == "op1"
    assert len(node.processes()) == 1
    if survivors:
        assert view.pid == survivors[0].pid
    again = await node.instances.launch("i1", "op1", spec())
    assert (again.state, again.pid) == (view.state, view.pid)
    await node.instances.stop("i1", 0.2)
    await node.until("i1", InstanceState.EXITED)
    assert node.processes() == []


@pytest.mark.faults
async def test_a_launch_that_never_reached_the_disk_is_not_known(config: AgentConfig, make_node: MakeNode) -> None:
    await run_and_kill(config, "before-save:1")
    node = make_node(config)
    await node.instances.recover()
    assert node.instances.views() == ()
    assert node.processes() == []


@pytest.mark.faults
async def test_a_stop_whose_agent_is_killed_is_finished_by_the_next_one(
    config: AgentConfig, make_node: MakeNode
) -> None:
    await run_and_kill(config, "stopping")
    node = make_node(config)
    assert len(node.processes()) == 1
    await node.instances.recover()
    view = await node.until("i1", InstanceState.EXITED)
    assert view.stop_requested
    assert node.processes() == []


async def test_an_engine_lives_on_when_the_agent_restarts_and_is_adopted(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec())
    before = await node.until("i1", InstanceState.READY)
    target = node.instances.target("i1")
    await node.restart()
    after = await node.until("i1", InstanceState.READY)
    assert (after.pid, after.ready_at, after.start_seconds) == (before.pid, before.ready_at, before.start_seconds)
    assert node.instances.target("i1") == target
    await node.instances.stop("i1", 5.0)
    ended = await node.until("i1", InstanceState.EXITED)
    assert ended.exit_code is None
    assert node.processes() == []


async def test_an_engine_that_ended_while_the_agent_was_away_has_ended(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec())
    view = await node.until("i1", InstanceState.READY)
    await node.instances.close()
    await kill(view.pid)
    node.instances = node.new_agent()
    await node.instances.recover()
    ended = node.instances.view("i1")
    assert (ended.state, ended.reason_code, ended.stop_requested) == (InstanceState.EXITED, "engine_exited", False)
    assert ended.exit_code is None
    assert ended.last_lines


async def test_an_engine_of_an_earlier_boot_is_lost_even_if_its_pid_is_in_use(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.instances.launch("i1", "op1", spec())
    view = await node.until("i1", InstanceState.READY)
    await node.instances.close()
    os.kill(view.pid or 0, signal.SIGKILL)
    path = node.config.state_dir / "instances" / "i1.json"
    record = json.loads(path.read_text())
    record["boot_id"] = record["handle"]["boot_id"] = "another boot"
    record["handle"]["pid"] = os.getpid()
    path.write_text(json.dumps(record))
    node.instances = node.new_agent()
    await node.instances.recover()
    assert node.instances.view("i1").state is InstanceState.LOST


async def test_a_stranger_with_the_pid_of_an_engine_is_not_touched(node: Node) -> None:
    """The pid was given away: start time tells them apart, and a stop ends nothing."""
    await node.instances.launch("i1", "op1", spec())
    view = await node.until("i1", InstanceState.READY)
    await node.instances.close()
    os.kill(view.pid or 0, signal.SIGKILL)
    stranger = await asyncio.create_subprocess_exec("sleep", "300", start_new_session=True)
    path = node.config.state_dir / "instances" / "i1.json"
    record = json.loads(path.read_text())
    record["handle"]["pid"] = stranger.pid
    path.write_text(json.dumps(record))
    node.instances = node.new_agent()
    await node.instances.recover()
    assert node.instances.view("i1").state is InstanceState.EXITED
    await node.instances.stop("i1", 0.1)
    await node.instances.stop_everything(0.1)
    stranger.send_signal(signal.SIGUSR1)
    assert await stranger.wait() == -signal.SIGUSR1, "an earlier signal of the agent would have ended it"


async def test_a_record_that_cannot_be_read_is_put_aside_and_the_others_are_taken_up(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec())
    await node.until("i1", InstanceState.READY)
    await node.instances.close()
    folder = node.config.state_dir / "instances"
    (folder / "i0.json").write_text("{half a rec")
    node.instances = node.new_agent()
    await node.instances.recover()
    assert [view.instance_id for view in node.instances.views()] == ["i1"]
    assert [path.name for path in folder.glob("i0.unreadable-*")]


async def test_the_log_goes_on_over_a_restart_of_the_agent(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec(args=("--log-bytes-per-second", "500")))
    await node.until("i1", InstanceState.READY)
    first = await node.instances.log("i1", 1000, None)
    await node.restart()
    log = node.config.state_dir / "instances" / "i1.log"
    await until_async(lambda: log.stat().st_size > first.next, "the engine to write on")
    second = await node.instances.log("i1", 1000, first.next)
    assert second.lines
    assert not second.truncated
    whole = await node.instances.log("i1", 1000, 0)
    assert whole.lines[: len(first.lines)] == first.lines


async def test_an_engine_that_went_with_its_container_is_lost_and_so_is_started_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a restarted container keeps the boot id of its machine; its first process is another
    await node.instances.launch("i1", "op1", spec())
    view = await node.until("i1", InstanceState.READY)
    await node.instances.close()
    await kill(view.pid)
    before = clock.init_ticks()
    assert before is not None
    monkeypatch.setattr(clock, "init_ticks", lambda: before + 100)
    node.instances = node.new_agent()
    await node.instances.recover()
    assert node.instances.view("i1").state is InstanceState.LOST


async def test_a_copied_state_folder_leaves_the_engines_to_the_original(
    config: AgentConfig, make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node(config)
    await node.instances.recover()
    await node.instances.launch("i1", "op1", spec())
    view = await node.until("i1", InstanceState.READY)
    copied = config.model_copy(update={"state_dir": tmp_path / "copy"})
    shutil.copytree(config.state_dir, copied.state_dir)
    for _ in range(2):
        copy = make_node(copied)
        await copy.instances.recover()
        assert copy.instances.views() == ()
        assert await copy.instances.stop_everything(0.1) == ()
    assert psutil.pid_exists(view.pid or 0)
    assert node.instances.view("i1").state is InstanceState.READY


async def test_a_moved_state_folder_keeps_its_engines(config: AgentConfig, make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node(config)
    await node.instances.recover()
    await node.instances.launch("i1", "op1", spec())
    view = await node.until("i1", InstanceState.READY)
    await node.instances.close()
    moved = config.model_copy(update={"state_dir": tmp_path / "moved"})
    config.state_dir.rename(moved.state_dir)
    after = make_node(moved)
    await after.instances.recover()
    assert (await after.until("i1", InstanceState.READY)).pid == view.pid
