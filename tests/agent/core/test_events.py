"""Event streams: content, order, and slow subscribers."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.server import events, handlers, serve
from agent.server.events import EventBroadcaster, Subscriber
from agent.server.seq import BLOCK, Sequence
from agent.wire.instances import InstanceState, InstanceView
from agent.wire.status import Event, HostStatus
from tests.agent.core.conftest import Agent, Master, capabilities, launch_spec
from tests.agent.core.fleet import server_name
from tests.waiting import pause

pytestmark = pytest.mark.unit


async def _line(stream: Any) -> Event:
    return Event.model_validate_json(await asyncio.wait_for(stream.content.readline(), 10))


async def _next(stream: Any, kind: str) -> Event:
    while True:
        event = await _line(stream)
        if event.kind == kind:
            return event


async def test_a_stream_begins_with_a_whole_status(master: Master, agent: Agent) -> None:
    await master.change("PUT", "/instances/a", launch_spec())
    async with master.events("?after=5") as stream:
        assert stream.headers["Content-Type"] == "application/x-ndjson"
        first = await _line(stream)
        assert first.kind == "status"
        assert first.status is not None
        assert [view.instance_id for view in first.status.instances] == ["a"]
        assert (first.boot_id, first.seq) == (first.status.boot_id, first.status.seq)


async def test_changes_come_in_order_and_numbers_only_grow(master: Master, agent: Agent) -> None:
    await master.change("PUT", "/instances/a", launch_spec())
    async with master.events() as stream:
        first = await _line(stream)
        for state in (InstanceState.LOADING, InstanceState.READY, InstanceState.EXITED):
            agent.engines.move("a", state)
        seen = [await _next(stream, "instance") for _ in range(3)]
        assert [event.instance.state.value for event in seen if event.instance] == ["loading", "ready", "exited"]
        numbers = [first.seq, *(event.seq for event in seen)]
        assert numbers == list(range(first.seq, first.seq + 4))


async def test_every_listener_gets_the_same_numbers_and_a_read_status_leaves_no_gap(
    master: Master, agent: Agent
) -> None:
    await master.change("PUT", "/instances/a", launch_spec())
    async with master.events() as one, master.events() as two:
        await _line(one)
        status_of_two = await _line(two)
        assert (await _line(one)).seq == status_of_two.seq
        read = (await master.get("/status")).body
        agent.engines.move("a", InstanceState.READY)
        for stream in (one, two):
            whole = await _next(stream, "status")
            assert whole.seq == read["seq"] == status_of_two.seq + 1
            assert (await _next(stream, "instance")).seq == read["seq"] + 1


async def test_a_ping_keeps_the_line_alive_and_takes_no_number(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "PING_SECONDS", 0.05)
    async with master.events() as stream:
        first = await _line(stream)
        pings = [await _line(stream) for _ in range(3)]
        assert {(ping.kind, ping.seq, ping.status) for ping in pings} == {("ping", first.seq, None)}


async def test_a_status_comes_by_itself_every_few_seconds(
    start_agent: Callable[[], Awaitable[Agent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "STATUS_SECONDS", 0.1)
    agent = await start_agent()
    master = agent.new_master(agent.fleet.master)
    await master.claim()
    async with master.events() as stream:
        first = await _line(stream)
        agent.machine.host = HostStatus(memory_available_bytes=42)
        monkeypatch.setattr("agent.server.status.TELEMETRY_FRESH_SECONDS", 0.0)
        later = first
        for _ in range(100):
            later, before = await _next(stream, "status"), later
            assert later.seq > before.seq
            if later.status and later.status.host.memory_available_bytes == 42:
                break
        assert later.status.host.memory_available_bytes == 42


async def test_numbers_grow_over_restarts_of_the_agent(start_agent: Callable[[], Awaitable[Agent]]) -> None:
    numbers = []
    for _ in range(3):
        agent = await start_agent()
        master = agent.new_master(agent.fleet.master)
        await master.claim()
        numbers.append((await master.get("/status")).body["seq"])
    assert numbers == sorted(set(numbers))


async def test_the_stream_ends_when_the_agent_does(agent: Agent, master: Master) -> None:
    async with master.events() as stream:
        await _line(stream)
        await agent.server.stop()
        rest = [line async for line in stream.content]
    assert all(json.loads(line) for line in rest)


async def test_one_stream_too_many_ends_the_oldest(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_SUBSCRIBERS", 2)
    async with master.events() as one, master.events() as two, master.events() as three:
        await _line(two)
        await _line(three)
        async for line in one.content:
            assert json.loads(line)
        assert one.content.at_eof()


async def test_a_listener_that_does_not_read_costs_no_memory_and_is_told_all_when_it_does(
    agent: Agent, master: Master
) -> None:
    """Ten thousand changes for one who reads nothing: a bounded queue, then one whole status and the newest state."""
    await master.change("PUT", "/instances/a", launch_spec())
    context: ssl.SSLContext = agent.fleet.client_context(agent.folder, agent.fleet.master)
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", agent.server.port, ssl=context, server_hostname=server_name(), limit=2**14
    )
    writer.write(b"GET /agent/v1/events HTTP/1.1\r\nHost: agent\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    broadcaster = agent.server.events
    subscriber: Subscriber = broadcaster._subscribers[0]
    long = InstanceView.model_validate({**agent.engines.view("a").to_wire(), "lastLines": ["x" * 1000] * 5})
    for number in range(10_000):
        agent.engines.put(long.model_copy(update={"generation": number}))
        assert subscriber.queued <= events.QUEUED_EVENTS
        if number % 100 == 0:
            await asyncio.sleep(0)
    seen: list[dict[str, Any]] = []
    buffer = b""

    def newest() -> int:
        views = [
            (e.get("status") or {}).get("instances", [{}])[0] if e["kind"] == "status" else e["instance"] for e in seen
        ]
        return max((view["generation"] for view in views if view), default=0)

    while newest() < 9_999:
        buffer += await asyncio.wait_for(reader.read(65536), 10)
        *lines, buffer = buffer.split(b"\n")
        seen += [json.loads(line) for line in lines if line.startswith(b"{")]
    assert len(seen) < 2_000
    assert [event["seq"] for event in seen] == sorted(event["seq"] for event in seen)
    writer.close()


async def test_a_change_told_from_a_thread_arrives(agent: Agent, master: Master) -> None:
    await master.change("PUT", "/instances/a", launch_spec())
    async with master.events() as stream:
        await _line(stream)
        await asyncio.to_thread(agent.engines.changed, agent.engines.view("a"))
        assert (await _next(stream, "instance")).instance == agent.engines.view("a")


async def test_a_stale_listener_is_told_nothing_before_a_status(tmp_path: Path) -> None:
    broadcaster = EventBroadcaster(Sequence(tmp_path, "boot"))
    subscriber = broadcaster.listen()
    subscriber.offer(Event(kind="instance", boot_id="boot", seq=1))
    assert subscriber.take() == []
    assert subscriber.stale


def test_a_number_is_never_given_twice_in_one_boot(tmp_path: Path) -> None:
    given: list[int] = []
    for _ in range(4):
        sequence = Sequence(tmp_path, "boot-1")
        given += [sequence.next() for _ in range(5)]
    assert given == sorted(set(given))


def test_a_block_is_written_once_for_many_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.server import seq

    writes: list[Any] = []
    real = seq.write_json
    monkeypatch.setattr(seq, "write_json", lambda path, value: (writes.append(value), real(path, value)))
    sequence = Sequence(tmp_path, "boot-1")
    for _ in range(BLOCK + 1):
        sequence.next()
    assert len(writes) == 2


def test_numbers_grow_even_when_the_state_folder_was_lost(tmp_path: Path) -> None:
    first = Sequence(tmp_path / "a", "boot-1")
    (tmp_path / "a").mkdir()
    before = first.next()
    pause(0.01)
    (tmp_path / "b").mkdir()
    assert Sequence(tmp_path / "b", "boot-1").next() > before


@pytest.mark.parametrize("text", ["", "{", "[]", "7"])
def test_a_torn_number_file_does_not_stop_the_agent(tmp_path: Path, text: str) -> None:
    (tmp_path / "seq.json").write_text(text)
    assert Sequence(tmp_path, "boot-1").next() > 0


def test_a_full_disk_does_not_silence_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agent.server.seq.write_json", full)
    sequence = Sequence(tmp_path, "boot-1")
    assert sequence.next() < sequence.next()
    assert "No space left" in caplog.text


def test_the_number_of_capabilities_changes_when_they_do_and_only_then(tmp_path: Path) -> None:
    sequence = Sequence(tmp_path, "boot-1")
    assert sequence.note(capabilities())
    first = sequence.capabilities_seq
    assert not sequence.note(capabilities())
    again = Sequence(tmp_path, "boot-2")
    assert not again.note(capabilities())
    assert again.capabilities_seq == first
    assert again.note(capabilities(cpu_count=4))
    assert again.capabilities_seq == first + 1


async def test_a_probe_that_fails_leaves_unknowns_and_a_warning(
    master: Master, agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent.server.status.TELEMETRY_FRESH_SECONDS", 0.0)
    agent.machine.host = RuntimeError("Driver/library version mismatch")
    reply = await master.get("/status")
    assert reply.status == 200
    assert reply.body["host"]["memoryTotalBytes"] is None
    assert any("host telemetry" in warning for warning in reply.body["warnings"])
    assert "telemetry_unreadable" in reply.body["warningCodes"]
    assert len(reply.body["warningCodes"]) == len(reply.body["warnings"])
    assert "Driver/library version mismatch" in caplog.text


async def test_a_probe_that_hangs_does_not_hang_the_status(
    master: Master, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.server.status.TELEMETRY_FRESH_SECONDS", 0.0)
    monkeypatch.setattr("agent.server.status.TELEMETRY_SECONDS", 0.1)

    async def hang() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(agent.server.reporter, "_probes", agent.machine.probes().__class__(hang, hang, hang))
    reply = await asyncio.wait_for(master.get("/status"), 5)
    assert reply.body["gpus"] == []
    assert len(reply.body["warnings"]) == 2


async def test_capabilities_that_cannot_be_read_are_an_error_and_not_an_empty_machine(
    master: Master, agent: Agent
) -> None:
    agent.machine.capabilities = RuntimeError("lost")
    reply = await master.get("/capabilities")
    assert (reply.status, reply.body["code"]) == (500, "internal")
