"""An engine or a node that fails, and the connections between."""

import asyncio
import json

import pytest

from models_app.gateway import pool as pools
from models_app.gateway.table import Route, RouteState
from tests.gateway.client import Raw, ask, refused
from tests.gateway.events import STREAM, delta
from tests.gateway.fleet import model
from tests.gateway.test_upstream import FakeTransport

pytestmark = pytest.mark.e2e


def test_a_replica_that_does_not_take_the_request_is_passed_over(fleet):
    gone = Route("p0", "m", "n1", 1, RouteState.READY)
    fleet.table(model(routes=(gone, *model().routes)))
    assert ask(fleet, {"model": "m"})[0].status == 200
    assert len(fleet.engine.seen) == 1


def test_a_stream_that_breaks_ends_with_an_error_event_and_without_done(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(delta("a"))
        await asyncio.sleep(0.05)
        seen.writer.transport.abort()

    fleet.engine.script = script
    response, data = ask(fleet, STREAM)
    assert response.status == 200
    assert data.startswith(delta("a"))
    last = data.removeprefix(delta("a"))
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
    assert b"[DONE]" not in data


def test_a_plain_answer_that_breaks_is_seen_to_be_broken(fleet):
    async def script(seen):
        await seen.head("Content-Type: application/json", "Content-Length: 1000")
        await seen.write(b'{"choices":')
        await asyncio.sleep(0.05)
        seen.writer.transport.abort()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post({"model": "m"})
        answer = client.read_all()
    assert answer.endswith(b'{"choices":')


def test_an_engine_that_closes_without_an_answer_is_502(fleet):
    async def script(seen):
        seen.writer.transport.abort()

    fleet.engine.script = script
    assert refused(fleet, {"model": "m"}) == (502, "upstream_error")


def test_an_engine_that_does_not_listen_is_502(fleet):
    fleet.instances.port = 9
    assert refused(fleet, {"model": "m"}) == (502, "upstream_error")


def test_an_engine_that_is_silent_for_too_long_is_504(fleet):
    async def script(seen):
        await seen.left.wait()

    fleet.engine.script = script
    fleet.table(model(first_byte_seconds=0.2))
    assert refused(fleet, {"model": "m"}) == (504, "upstream_timeout")
    assert fleet.wait_for(fleet.engine.seen[-1].left.is_set, 1)


def test_a_stream_that_falls_silent_ends_with_an_error_event(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(delta("a"))
        await seen.left.wait()

    fleet.engine.script = script
    fleet.table(model(idle_seconds=0.2))
    _, data = ask(fleet, STREAM)
    assert b"upstream_timeout" in data
    assert b"[DONE]" not in data


def test_an_instance_of_another_generation_or_one_that_is_not_ready_gets_no_request(fleet):
    fleet.instances.generation = 2
    assert refused(fleet, {"model": "m"}) == (503, "model_not_ready")
    fleet.instances.generation, fleet.instances.ready = 1, False
    assert refused(fleet, {"model": "m"}) == (503, "model_not_ready")
    assert fleet.engine.seen == []


def test_a_node_that_is_gone_is_503_and_one_that_is_back_serves_at_once(fleet):
    fleet.run(fleet.node.deafen())
    try:
        assert refused(fleet, {"model": "m"}) == (503, "node_offline")
    finally:
        fleet.run(fleet.node.listen())
    assert ask(fleet, {"model": "m"})[0].status == 200


def test_a_kept_connection_that_went_stale_is_replaced_without_a_word(fleet):
    assert ask(fleet, {"model": "m"})[0].status == 200
    pool = fleet.gateway.pools.of(fleet.endpoint())
    assert fleet.wait_for(lambda: pool.idle_count >= 1, 2)

    async def cut_at_the_next_request():
        connection = pool._idle[-1]
        begin = connection.begin

        def begin_on_a_dead_line(head, body):
            # The agent closed it, and this side has not heard of it yet: what is written goes nowhere.
            connection._transport.abort()
            connection._transport = FakeTransport()
            begin(head, body)
            connection.connection_lost(None)

        connection.begin = begin_on_a_dead_line

    fleet.run(cut_at_the_next_request())
    before = fleet.figures.retries["n1"]
    assert ask(fleet, {"model": "m"})[0].status == 200
    assert fleet.figures.retries["n1"] == before + 1
    assert len(fleet.engine.seen) == 2


def test_connections_end_when_a_node_is_no_longer_trusted_streams_too(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(delta("a"))
        await seen.left.wait()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post(STREAM)
        client.read_until(b"data:")
        fleet.table(nodes={}, endpoints={})
        assert b"upstream_error" in client.read_until(b"0\r\n\r\n")
    assert fleet.wait_for(fleet.engine.seen[-1].left.is_set, 1)
    assert refused(fleet, {"model": "m"}) == (503, "node_offline")


def test_idle_connections_are_kept_warm(fleet):
    # A test before this one may have taken the node away: then a pause lies before the next attempt.
    seconds = pools.WARM_RETRY_SECONDS + 10
    assert fleet.wait_for(lambda: fleet.gateway.pools.of(fleet.endpoint()).idle_count >= 4, seconds)
