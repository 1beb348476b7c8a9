"""The line to agents: events as they come, and what ends their stream."""

import time

import pytest
from aiohttp import web

from agent.wire.errors import AgentCode
from agent.wire.status import Event
from nodes import registry
from nodes.errors import AgentRefused, NodeIncompatible, NodeOffline, NodeRevoked
from nodes.link import client, streams
from tests.nodes.parts import (
    OPERATOR,
)
from tests.nodes.test_reachability import status
from tests.standins.answering import hang_up
from tests.waiting import pause_async

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("live_master")]


def stream(*events, hold=0.0, raw=(), pace=0.0):
    async def answer(request):
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        for event in events:
            line = event.model_dump_json(by_alias=True).encode() + b"\n"
            await response.write(line[:9])
            await response.write(line[9:])
        for data in (*raw, b""):
            await response.write(data)
            await pause_async(pace if data else hold)
        return response

    return answer


async def collect(stream, found, at_first=lambda: None):
    """Put the events of `stream` into `found`; do `at_first` after the first."""
    async for event in stream:
        found.append(event)
        if len(found) == 1:
            await client.in_thread(at_first)


def ping(seq):
    return Event(kind="ping", boot_id="boot-1", seq=seq)


async def test_events_come_as_they_are_sent_until_the_line_ends(agent):
    big = Event(kind="status", boot_id="boot-1", seq=2, status=status(seq=2, warnings=("x" * 300_000,)))
    agent.answers["GET", "/agent/v1/events"] = stream(ping(1), big, ping(3))
    found = []
    with pytest.raises(NodeOffline, match="closed the event stream"):
        await collect(client.events("local", 7), found)
    assert [event.seq for event in found] == [1, 2, 3]
    assert len(found[1].status.warnings[0]) == 300_000
    await hang_up()


async def test_a_silent_line_is_offline(agent, monkeypatch):
    monkeypatch.setattr(client, "EVENT_SILENCE_SECONDS", 0.2)
    agent.answers["GET", "/agent/v1/events"] = stream(ping(1), hold=20)
    with pytest.raises(NodeOffline):
        await collect(client.events("local", 0), [])
    await hang_up()


async def test_a_line_without_end_costs_neither_memory_nor_the_loop(agent):
    agent.answers["GET", "/agent/v1/events"] = stream(raw=[b"x" * 65_536] * 1_024)
    began = time.process_time()
    with pytest.raises(NodeOffline, match="does not end"):
        await collect(client.events("local", 0), [])
    # 4 MiB are read and thrown away. Joined at every piece they were half a gigabyte of copies.
    assert time.process_time() - began < 2
    await hang_up()


@pytest.mark.parametrize("first", [b"", b'{"kind": "ping", "bootId": "b", "seq": 1}\n'])
async def test_a_line_that_trickles_without_end_is_cut_off(agent, monkeypatch, first):
    monkeypatch.setattr(client, "EVENT_SILENCE_SECONDS", 0.3)
    agent.answers["GET", "/agent/v1/events"] = stream(raw=[first + b"{", *([b" "] * 200)], pace=0.05)
    with pytest.raises(NodeOffline, match="does not end"):
        await collect(client.events("local", 0), [])
    await hang_up()


async def test_a_line_that_is_no_event_makes_the_node_incompatible(agent):
    agent.answers["GET", "/agent/v1/events"] = stream(raw=(b'{"kind": "surprise"}\n',))
    with pytest.raises(NodeIncompatible):
        await collect(client.events("local", 0), [])
    await hang_up()


async def test_a_refused_event_stream_is_a_refusal(agent):
    agent.refuse("GET", "events", AgentCode.NOT_APPROVED, 403)
    with pytest.raises(AgentRefused):
        await collect(client.events("local", 0), [])
    await hang_up()


async def test_a_stream_ends_when_the_node_is_revoked(agent, monkeypatch):
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.05)
    agent.answers["GET", "/agent/v1/events"] = stream(*(ping(n) for n in range(1, 4)), hold=20)
    found = []
    with pytest.raises(NodeRevoked):
        await collect(client.events("local", 0), found, lambda: registry.revoke("local", OPERATOR))
    assert found[0].seq == 1
    await hang_up()
