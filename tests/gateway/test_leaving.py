"""A client that leaves or does not read: the engine ends its work, and memory stays small."""

import time

import psutil
import pytest

from models_app.gateway.table import RouteState
from tests.gateway.downstream import Raw
from tests.gateway.events import STREAM, delta
from tests.gateway.fleet import model
from tests.waiting import pause_async

pytestmark = pytest.mark.e2e


def leave(fleet, script, read):
    """Send a request, `read` a part of its response, disconnect. Return the seconds until the engine noticed."""
    fleet.engine.script = script
    client = Raw(fleet)
    client.post(STREAM)
    assert fleet.wait_for(lambda: fleet.engine.seen, 5)
    read(client)
    seen = fleet.engine.seen[-1]
    assert not seen.left.is_set()
    before = fleet.metrics.disconnects["m"]
    client.socket.close()
    began = time.monotonic()
    assert fleet.wait_for(seen.left.is_set, 2)
    took = time.monotonic() - began
    assert fleet.wait_for(lambda: fleet.metrics.disconnects["m"] == before + 1, 1)
    assert not fleet.gateway.upstream.in_flight
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
            await pause_async(0.02)

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
        assert fleet.wait_for(lambda: fleet.gateway.places.taken == 1, 2)
    assert fleet.wait_for(lambda: fleet.gateway.places.taken == 0, 2)
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
        last = fleet.wait_until_stalled(lambda: seen.sent)
        # The kernel's buffers of three connections hold most of it; the processes hold little.
        assert psutil.Process().memory_info().rss - memory < 16 * 1024 * 1024
        read = 0
        while read < 2 * last:
            read += len(client.socket.recv(1 << 20))
        assert seen.sent > last


def test_a_client_that_leaves_while_it_waits_is_forgotten(fleet):
    fleet.table(model(RouteState.STARTING, wait_seconds=30.0))
    with Raw(fleet) as client:
        client.post({"model": "m"})
        assert fleet.wait_for(lambda: fleet.metrics.waiting["m"] == 1, 2)
    assert fleet.wait_for(lambda: fleet.metrics.waiting["m"] == 0, 1)
