"""A client that leaves or does not read: the engine ends its work, and memory stays small."""

import asyncio
import time

import psutil
import pytest

from models_app.gateway.table import RouteState
from tests.gateway.client import Raw
from tests.gateway.events import STREAM, delta
from tests.gateway.fleet import model

pytestmark = pytest.mark.e2e


def leave(fleet, script, read):
    """Ask, `read` what the case waits for, leave; seconds until the engine knew."""
    fleet.engine.script = script
    client = Raw(fleet)
    client.post(STREAM)
    assert fleet.wait_for(lambda: fleet.engine.seen, 5)
    read(client)
    seen = fleet.engine.seen[-1]
    assert not seen.left.is_set()
    before = fleet.figures.disconnects["m"]
    client.socket.close()
    began = time.monotonic()
    assert fleet.wait_for(seen.left.is_set, 2)
    took = time.monotonic() - began
    assert fleet.wait_for(lambda: fleet.figures.disconnects["m"] == before + 1, 1)
    assert not fleet.gateway.exchanges.flight
    return took


def test_a_client_that_leaves_before_the_first_byte_ends_the_engines_work_within_a_second(fleet):
    async def script(seen):
        await seen.left.wait()

    assert leave(fleet, script, lambda client: None) < 1


def test_a_client_that_leaves_amid_a_stream_ends_the_engines_work_within_a_second(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        while not seen.left.is_set():
            await seen.chunk(delta("x"))
            await asyncio.sleep(0.02)

    assert leave(fleet, script, lambda client: client.read_until(b"data:")) < 1


def test_a_client_that_leaves_amid_a_silent_stream_ends_the_engines_work_within_a_second(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(delta("x"))
        await seen.left.wait()

    assert leave(fleet, script, lambda client: client.read_until(b"data:")) < 1


def test_a_client_that_leaves_amid_a_plain_answer_ends_the_engines_work_within_a_second(fleet):
    async def script(seen):
        await seen.head("Content-Type: application/json", "Content-Length: 1000")
        await seen.write(b'{"choices":')
        await seen.left.wait()

    assert leave(fleet, script, lambda client: client.read_until(b"choices")) < 1


def test_a_client_that_leaves_while_it_sends_costs_nothing(fleet):
    with Raw(fleet) as client:
        client.head("Content-Length: 1000")
        client.socket.sendall(b"{")
        assert fleet.wait_for(lambda: fleet.gateway.in_flight == 1, 2)
    assert fleet.wait_for(lambda: fleet.gateway.in_flight == 0, 2)
    assert fleet.engine.seen == []


def test_a_reader_that_does_not_read_stops_the_engine_and_memory_does_not_grow(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        while not seen.left.is_set():
            await seen.chunk(delta("x" * 50_000))

    fleet.engine.script = script
    with Raw(fleet, receive_buffer=65536) as client:
        client.post(STREAM)
        client.read_until(b"data:")
        seen = fleet.engine.seen[-1]
        memory = psutil.Process().memory_info().rss
        last = -1
        deadline = time.monotonic() + 10
        while seen.sent != last and time.monotonic() < deadline:
            last = seen.sent
            time.sleep(0.3)
        assert seen.sent == last  # everything on the way is full, and nothing more is taken
        # The kernel's buffers of three connections hold most of it; the processes hold little.
        assert psutil.Process().memory_info().rss - memory < 16 * 1024 * 1024
        read = 0
        while read < 2 * last:
            read += len(client.socket.recv(1 << 20))
        assert seen.sent > last


def test_a_client_that_leaves_while_it_waits_is_forgotten(fleet):
    fleet.table(model(RouteState.COMING, wait_seconds=30.0))
    with Raw(fleet) as client:
        client.post({"model": "m"})
        assert fleet.wait_for(lambda: fleet.figures.waiting["m"] == 1, 2)
    assert fleet.wait_for(lambda: fleet.figures.waiting["m"] == 0, 1)
