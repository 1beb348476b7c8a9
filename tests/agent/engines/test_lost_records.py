"""Engines whose record was lost: they are found, shown, counted, and ended by ``stop-all``."""

import asyncio
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import aiohttp
import psutil
import pytest

from agent.config import AgentConfig
from agent.deliveries.base import INSTANCE_VARIABLE, LAUNCH_VARIABLE, FoundEngine, Handle
from agent.errors import AgentError
from agent.running import recovery
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import InstanceState
from tests.agent.engines.conftest import Node, spec
from tests.waiting import until_async

MakeNode = Callable[[AgentConfig], Node]
Loss = Callable[[Path], object]
READY, UNHEALTHY, EXITED = InstanceState.READY, InstanceState.UNHEALTHY, InstanceState.EXITED


def _record(state: Path) -> Path:
    return state / "instances" / "i1.json"


def _rewritten(content: str | bytes) -> Loss:
    return lambda state: _record(state).write_bytes(content.encode() if isinstance(content, str) else content)


def _rolled_back(state: Path) -> None:
    """The record of an earlier run of the same instance, as an old copy of the state folder has it."""
    record = json.loads(_record(state).read_text())
    record |= {"launch_id": "0" * 32, "handle": None, "state": "exited", "exited_at": "2030-01-01T00:00:00Z"}
    _record(state).write_text(json.dumps(record))


def _rolled_back_to_its_beginning(state: Path) -> None:
    record = json.loads(_record(state).read_text())
    record |= {"launch_id": "", "handle": None, "state": "preparing", "spawning": False, "attempts": 0}
    _record(state).write_text(json.dumps(record))


LOSSES: dict[str, Loss] = {
    "deleted": lambda state: _record(state).unlink(),
    "the whole folder deleted": lambda state: shutil.rmtree(state / "instances"),
    "cut": _rewritten('{"instance_id": "i1", "oper'),
    "without its fields": _rewritten('{"instance_id": "i1"}'),
    "zeros": _rewritten(b"\0" * 4096),
    "of an earlier run": _rolled_back,
    "before its start": _rolled_back_to_its_beginning,
}


async def started(node: Node) -> int:
    await node.instances.launch("i1", "op1", spec())
    pid = (await node.until("i1", READY)).pid
    await node.instances.close()
    assert pid is not None
    return pid


async def next_agent(node: Node) -> None:
    node.instances = node.new_agent()
    await node.instances.recover()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
async def test_an_engine_is_taken_up_whatever_became_of_its_record(node: Node, loss: Loss) -> None:
    pid = await started(node)
    loss(node.config.state_dir)
    await next_agent(node)
    view = await node.until("i1", READY)
    assert (view.pid, view.model_id, view.operation_id, view.generation) == (pid, "m1", "op1", 1)
    assert [one.instance_id for one in node.instances.views()] == ["i1"]
    target = node.instances.target("i1")
    headers = {"Authorization": f"Bearer {target.api_key}"}
    url = f"http://{target.host}:{target.port}/v1/models"
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
        assert answer.status == 200
    await until_async(lambda: node.instances.view("i1").memory_bytes, "the memory of the engine")
    assert len(node.processes()) == 1, "nothing runs twice"
    assert await node.instances.stop_everything(1.0) == ("i1",)
    assert node.processes() == []
    await node.instances.forget("i1")
    assert not list((node.config.state_dir / "engines").glob("*.json"))


@pytest.mark.parametrize("kept", [None, "{half", '{"instance_id": "i1"}'])
async def test_an_engine_of_which_nothing_is_known_is_shown_gets_no_requests_and_is_ended(
    node: Node, kept: str | None
) -> None:
    pid = await started(node)
    _record(node.config.state_dir).unlink()
    for path in (node.config.state_dir / "engines").glob("*.json"):
        path.unlink() if kept is None else path.write_text(kept)
    for _ in range(2):  # and so it stays
        await next_agent(node)
        view = node.instances.view("i1")
        assert (view.pid, view.state, view.reason_code) == (pid, UNHEALTHY, "record_lost")
        assert (view.model_id, view.runtime, view.delivery) == ("", Runtime.SIM, Delivery.PROCESS)
        with pytest.raises(AgentError, match="not ready"):
            node.instances.target("i1")
        await until_async(lambda: node.instances.view("i1").memory_bytes, "the memory of the engine")
        assert node.instances.view("i1").state is UNHEALTHY
        await node.instances.close()
    await next_agent(node)
    assert await node.instances.stop_everything(1.0) == ("i1",)
    assert node.processes() == []
    assert node.instances.view("i1").state is EXITED


async def test_a_launch_after_the_loss_meets_the_engine_that_runs(node: Node) -> None:
    await started(node)
    shutil.rmtree(node.config.state_dir / "instances")
    await next_agent(node)
    again = await node.instances.launch("i1", "op1", spec())
    assert again.instance_id == "i1"
    assert len(node.processes()) == 1
    with pytest.raises(AgentError, match="already"):
        await node.instances.launch("i1", "op2", spec())


def marked(node: Node, launch_id: str, instance_id: str) -> dict[str, str]:
    """Return the environment of a process that an agent of this folder started."""
    scratch = node.config.state_dir / "engines" / launch_id[:12]
    scratch.mkdir(parents=True)
    return {LAUNCH_VARIABLE: launch_id, INSTANCE_VARIABLE: instance_id, "HOME": str(scratch), "SIM_API_KEY": "k"}


async def test_a_second_engine_of_one_instance_has_a_name_of_its_own(node: Node) -> None:
    first = await started(node)
    second = await asyncio.create_subprocess_exec("/bin/sleep", "300", env=marked(node, "d" * 32, "i1"))
    await next_agent(node)
    await node.until("i1", READY)
    views = {view.instance_id: (view.pid, view.state) for view in node.instances.views()}
    assert views == {"i1": (first, READY), "i1.dddddddd": (second.pid, UNHEALTHY)}
    stopping = asyncio.create_task(node.instances.stop_everything(1.0))
    assert await second.wait() == -signal.SIGTERM
    assert sorted(await stopping) == ["i1", "i1.dddddddd"]


async def test_a_worker_that_outlived_its_engine_is_found_too(node: Node) -> None:
    worker = await asyncio.create_subprocess_exec("/bin/sleep", "300", env=marked(node, "b" * 32, "i9"))
    await node.instances.close()
    await next_agent(node)
    view = node.instances.view("i9")
    assert (view.pid, view.reason_code, view.runtime) == (worker.pid, "record_lost", Runtime.SIM)
    stopping = asyncio.create_task(node.instances.stop_everything(1.0))
    assert await worker.wait() == -signal.SIGTERM
    assert await stopping == ("i9",)


async def test_processes_of_others_are_not_touched(node: Node, config: AgentConfig, make_node: MakeNode) -> None:
    neighbour = make_node(config.model_copy(update={"state_dir": config.state_dir.with_name("neighbour")}))
    await neighbour.instances.recover()
    await neighbour.instances.launch("i1", "op1", spec())
    theirs = (await neighbour.until("i1", READY)).pid
    env = {LAUNCH_VARIABLE: "c" * 32, INSTANCE_VARIABLE: "i2", "HOME": "/root"}
    stranger = await asyncio.create_subprocess_exec("/bin/sleep", "300", env=env)
    await node.instances.close()
    await next_agent(node)
    assert node.instances.views() == ()
    assert await node.instances.stop_everything(0.1) == ()
    assert psutil.pid_exists(theirs or 0)
    stranger.send_signal(signal.SIGUSR1)
    assert await stranger.wait() == -signal.SIGUSR1, "an earlier signal of the agent would have ended it"


async def test_what_is_kept_beside_an_engine_has_no_secret_and_no_reader_but_the_agent(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec(secret_env={"HF_TOKEN": "the-secret-value"}))
    await node.until("i1", READY)
    (kept,) = (node.config.state_dir / "engines").glob("*.json")
    assert "the-secret-value" not in kept.read_text()
    assert node.instances.target("i1").api_key not in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("named", "expected"), [("i1", "i1"), ("", "launch-l1"), ("../x", "launch-l1"), ("a" * 129, "launch-l1")]
)
def test_a_container_whose_label_cannot_be_read_is_shown_by_what_it_carries(named: str, expected: str) -> None:
    handle = Handle(launch_id="l1", container_id="c1", boot_id="b")
    found = FoundEngine(handle, "{half", {INSTANCE_VARIABLE: named, "VLLM_API_KEY": "k"}, "m1")
    record = recovery.record_from(found)
    assert (record.instance_id, record.spec.model_id, record.spec.runtime) == (expected, "m1", Runtime.VLLM)
    assert (record.spec.delivery, record.state, record.unrecorded) == (Delivery.CONTAINER, UNHEALTHY, True)
    assert record.handle == handle
