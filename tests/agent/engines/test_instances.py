"""The life of an instance, on the simulated engine as a real process."""

import asyncio
import json
import os
import stat

import aiohttp
import pytest

from agent.errors import AgentError
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState
from tests.agent.engines.conftest import Node, spec
from tests.waiting import stays_async

READY, EXITED = InstanceState.READY, InstanceState.EXITED


async def test_an_engine_starts_answers_with_its_key_and_stops(node: Node) -> None:
    first = await node.instances.launch("i1", "op1", spec())
    assert first.state is InstanceState.PREPARING
    view = await node.until("i1", READY)
    assert view.pid
    assert view.start_seconds is not None
    assert view.start_seconds > 0
    assert view.context_length == 8192
    target = node.instances.target("i1")
    url = f"http://{target.host}:{target.port}/v1/models"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            assert answer.status == 401
        async with session.get(url, headers={"Authorization": f"Bearer {target.api_key}"}) as answer:
            assert [item["id"] for item in (await answer.json())["data"]] == ["org/m1"]
    assert (await node.instances.stop("i1", 5.0)).state is InstanceState.STOPPING
    ended = await node.until("i1", EXITED)
    assert (ended.stop_requested, ended.exit_code, ended.reason_code) == (True, 0, "stopped")
    assert node.processes() == []
    states = [view.state for view in node.reported]
    assert [states[0], states[-1]] == [InstanceState.PREPARING, EXITED]
    assert InstanceState.STARTING in states


async def test_the_key_is_on_no_command_line_and_the_files_are_private(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec(secret_env={"HF_TOKEN": "hf_averysecretvalue"}))
    await node.until("i1", READY)
    key = node.instances.target("i1").api_key
    lines = [" ".join(process.cmdline()) for process in node.processes()]
    assert lines
    assert not any(key in line or "averysecret" in line for line in lines)
    folder = node.config.state_dir / "instances"
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "averysecret" not in (folder / "i1.json").read_text()
    assert node.processes()[0].environ()["HF_TOKEN"] == "hf_averysecretvalue"


async def test_the_same_operation_again_gets_the_same_instance(node: Node) -> None:
    views = await asyncio.gather(*(node.instances.launch("i1", "op1", spec()) for _ in range(5)))
    assert {view.operation_id for view in views} == {"op1"}
    await node.until("i1", READY)
    assert len(node.processes()) == 1


async def test_another_operation_on_a_live_instance_is_refused(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec())
    with pytest.raises(AgentError) as refused:
        await node.instances.launch("i1", "op2", spec())
    assert refused.value.code is AgentCode.INSTANCE_EXISTS


async def test_an_ended_instance_may_be_launched_again_with_another_operation(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec(args=("--die-at-start", "no such luck")))
    await node.until("i1", EXITED)
    await node.instances.launch("i1", "op2", spec())
    view = await node.until("i1", READY)
    assert (view.operation_id, view.last_lines, view.reason, view.exit_code) == ("op2", (), None, None)


async def test_an_engine_that_dies_at_start_shows_its_last_lines_and_exit_code(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec(args=("--die-at-start", "CUDA went away", "--exit-code", "7")))
    view = await node.until("i1", EXITED)
    assert view.last_lines == ("CUDA went away",)
    assert (view.exit_code, view.reason_code, view.stop_requested) == (7, "engine_exited", False)
    assert "exit code 7" in (view.reason or "")


async def test_an_engine_that_dies_later_is_seen(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec(args=("--die-after-seconds", "0.5")))
    await node.until("i1", READY)
    view = await node.until("i1", EXITED)
    assert (view.exit_code, view.stop_requested) == (1, False)


@pytest.mark.parametrize("args", [("--start-seconds", "0.6"), ("--start-seconds", "0.6", "--loading-as-200")])
async def test_an_engine_that_says_loading_is_not_ready(node: Node, args: tuple[str, ...]) -> None:
    await node.instances.launch("i1", "op1", spec(args=args))
    await node.until("i1", InstanceState.LOADING)
    with pytest.raises(AgentError) as refused:
        node.instances.target("i1")
    assert refused.value.code is AgentCode.NOT_READY
    view = await node.until("i1", READY)
    assert (view.start_seconds or 0) >= 0.6


async def test_health_that_asks_for_the_key_gets_it(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec(args=("--keyed-health",)))
    await node.until("i1", READY)


@pytest.mark.parametrize("fault", ["--hang-at-load", "--never-ready"])
async def test_an_engine_that_is_never_ready_is_ended_at_its_time_out(node: Node, fault: str) -> None:
    await node.instances.launch("i1", "op1", spec(args=(fault,), start_timeout_seconds=1))
    view = await node.until("i1", EXITED)
    assert view.reason_code == "start_timeout"
    assert node.processes() == []


async def test_an_engine_that_is_no_longer_healthy_is_told_apart_from_a_dead_one(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec(args=("--unhealthy-after-seconds", "1.0")))
    await node.until("i1", READY)
    view = await node.until("i1", InstanceState.UNHEALTHY)
    assert view.reason_code == "unhealthy"
    assert len(node.processes()) == 1


async def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec(args=("--ignore-sigterm",)))
    await node.until("i1", READY)
    await node.instances.stop("i1", 0.3)
    view = await node.until("i1", EXITED)
    assert (view.exit_code, view.stop_requested) == (137, True)
    assert node.processes() == []


async def test_a_launch_can_be_stopped_while_it_loads(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec(args=("--never-ready",)))
    await node.until("i1", InstanceState.LOADING)
    await node.instances.stop("i1", 2.0)
    view = await node.until("i1", EXITED)
    assert view.stop_requested
    assert node.processes() == []


async def test_a_stop_right_after_the_launch_leaves_nothing_running(node: Node) -> None:
    def reports(instance_id: str) -> int:
        return sum(view.instance_id == instance_id for view in node.reported)

    # After the launch, the choice of a port, the intent, the handle, and the first probe.
    for number in range(1, 6):
        instance_id = f"i{number}"
        await node.instances.launch(instance_id, f"op{number}", spec())
        await node.until_reported(lambda key=instance_id, least=number: reports(key) >= least)  # type: ignore[misc]
        await node.instances.stop(instance_id, 2.0)
    for number in range(1, 6):
        view = await node.until(f"i{number}", EXITED)
        assert view.stop_requested
    assert node.processes() == []


async def test_a_taken_port_is_left_alone_and_another_one_is_used(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.running import ports

    async def nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    stranger = await asyncio.start_server(nobody, "127.0.0.1", 0)
    taken = stranger.sockets[0].getsockname()[1]
    choose = ports.choose
    answers = iter([taken])
    monkeypatch.setattr(ports, "choose", lambda used: next(answers, None) or choose(used))
    await node.instances.launch("i1", "op1", spec())
    await node.until("i1", READY)
    assert node.instances.target("i1").port != taken
    texts = [view.progress.text for view in node.reported if view.progress]
    assert any(str(taken) in text and "another port" in text for text in texts)
    stranger.close()


async def test_an_answer_of_another_program_on_the_port_is_not_readiness(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines are given the same port: the second exits, whichever answers probes there."""
    from agent.running import ports

    await node.instances.launch("i1", "op1", spec())
    await node.until("i1", READY)
    port = node.instances.target("i1").port
    monkeypatch.setattr(ports, "choose", lambda used: port)
    await node.instances.launch("i2", "op2", spec(model_id="m2", start_timeout_seconds=30))
    view = await node.until("i2", EXITED, seconds=60)
    assert READY not in [seen.state for seen in node.reported if seen.instance_id == "i2"]
    assert view.reason_code == "engine_exited"
    assert node.instances.view("i1").state is READY


async def test_a_record_of_an_ended_instance_can_be_forgotten_a_live_one_not(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec())
    await node.until("i1", READY)
    with pytest.raises(AgentError) as refused:
        await node.instances.forget("i1")
    assert refused.value.code is AgentCode.INSTANCE_EXISTS
    await node.instances.stop("i1", 2.0)
    await node.until("i1", EXITED)
    await node.instances.forget("i1")
    with pytest.raises(AgentError):
        node.instances.view("i1")
    assert [path.name for path in (node.config.state_dir / "instances").iterdir()] == [".home"]


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "x" * 200, "a\x00b", ".hidden"])
async def test_a_name_that_could_leave_the_folder_is_refused(node: Node, name: str) -> None:
    with pytest.raises(AgentError) as refused:
        await node.instances.launch(name, "op1", spec())
    assert refused.value.code is AgentCode.INVALID_REQUEST


async def test_workers_that_outlive_their_engine_are_ended_too(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec())
    view = await node.until("i1", READY)
    record = json.loads((node.config.state_dir / "instances" / "i1.json").read_text())
    worker = await asyncio.create_subprocess_exec(
        "sleep", "300", env={"MIRBAD_LAUNCH_ID": record["launch_id"]}, cwd=node.config.state_dir / "instances"
    )
    os.kill(view.pid or 0, 9)
    ended = await node.until("i1", EXITED)
    assert ended.exit_code == 137
    assert await asyncio.wait_for(worker.wait(), 5.0) == -9


async def test_everything_of_this_folder_can_be_stopped_at_once(node: Node) -> None:
    for number in range(3):
        await node.instances.launch(f"i{number}", f"op{number}", spec())
    await node.until("i0", READY)
    assert set(await node.instances.stop_everything(2.0)) == {"i0", "i1", "i2"}
    assert {view.state for view in node.instances.views()} == {EXITED}
    assert node.processes() == []


async def test_an_unhealthy_engine_has_the_newest_reason(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec(args=("--unhealthy-after-seconds", "0.5")))
    failing = "The engine is running but fails its health checks."
    await node.until_reported(lambda: node.instances.view("i1").reason == failing)
    supervisor = node.instances._supervisors["i1"]
    text = "Docker does not answer on this node, so the state of the engine is unknown."
    await supervisor._set(state=InstanceState.UNHEALTHY, reason=text, reason_code="runtime_unavailable")
    await node.until_reported(lambda: node.instances.view("i1").reason == failing)
    assert node.instances.view("i1").reason_code == "unhealthy"
    written = len(node.reported)
    await stays_async(lambda: len(node.reported) == written, "the same reason is not reported again", 0.5)
    await node.instances.stop("i1", 1.0)
    assert (await node.until("i1", EXITED)).reason_code == "stopped"
