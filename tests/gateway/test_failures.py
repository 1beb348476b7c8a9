"""An engine or a node that fails, and the connections between."""

import asyncio
import json

import pytest

from models_app.gateway import pool as pools
from models_app.gateway.table import RouteEntry, RouteState
from tests.gateway.downstream import CHAT, Raw, ask, refused
from tests.gateway.events import STREAM, delta
from tests.gateway.fleet import model
from tests.gateway.upstream import FakeTransport
from tests.waiting import stays

pytestmark = pytest.mark.e2e


def test_a_replica_that_does_not_take_the_request_is_passed_over(fleet):
    gone = RouteEntry("p0", "m", "n1", 1, RouteState.READY)
    fleet.table(model(routes=(gone, *model().routes)))
    assert ask(fleet, {"model": "m"})[0].status == 200
    assert len(fleet.engine.seen) == 1


def replicas(fleet, count=3):
    """Place the model `count` times; each replica leads to the one engine, which counts what arrives."""
    routes = tuple(RouteEntry(f"p{number}", "m", "n1", 1, RouteState.READY) for number in range(1, count + 1))
    fleet.instances.known = {route.placement_id for route in routes}
    fleet.table(model(routes=routes))


async def _dies(seen):
    seen.writer.transport.abort()


async def _closes(seen):
    seen.writer.close()


async def _dies_in_its_head(seen):
    await seen.write(b"HTTP/1.1 200 OK\r\nContent-Le")
    seen.writer.transport.abort()


async def _dies_in_its_body(seen):
    await seen.head("Content-Type: application/json", "Content-Length: 1000")
    seen.writer.transport.abort()


@pytest.mark.parametrize("ending", [_dies, _closes, _dies_in_its_head])
@pytest.mark.parametrize("body", [{"model": "m"}, STREAM, {"model": "m", "prompt": "x" * 300_000}])
@pytest.mark.parametrize("warm", [False, True])
def test_a_request_that_an_engine_did_not_survive_is_sent_to_no_other_replica(fleet, ending, body, warm):
    replicas(fleet)
    if warm:
        for _ in range(6):  # kept connections, to the agent and to the engine
            assert ask(fleet, {"model": "m"})[0].status == 200
    before = len(fleet.engine.seen)
    fleet.engine.script = ending
    response, data = ask(fleet, body)
    assert (response.status, json.loads(data)["error"]["code"]) == (502, "upstream_error")
    assert response.headers["x-should-retry"] == "false"
    assert len(fleet.engine.seen) - before == 1


def test_a_request_that_reached_no_engine_is_sent_to_the_next_replica(fleet, monkeypatch):
    replicas(fleet)
    port, targets = fleet.engine.port, []
    real = fleet.instances.target

    def target(instance_id):
        # The first engine that is tried does not listen any more.
        targets.append(instance_id)
        fleet.instances.port = 9 if len(targets) == 1 else port
        return real(instance_id)

    monkeypatch.setattr(fleet.instances, "target", target)
    assert ask(fleet, {"model": "m"})[0].status == 200
    assert (len(set(targets)), len(fleet.engine.seen)) == (2, 1)


@pytest.mark.parametrize("ending", [_dies, _dies_in_its_body])
def test_the_agent_knows_whose_requests_an_engine_broke_off(fleet, ending):
    fleet.engine.script = ending
    with Raw(fleet) as client:
        client.head("Content-Length: 13", "X-Request-Id: poison-1")
        client.socket.sendall(b'{"model":"m"}')
        client.read_until(b"content-length")
        found = fleet.run(_suspects(fleet))
    assert [(one.request_id, one.key_id) for one in found if one.request_id == "poison-1"] == [("poison-1", 1)]


async def _suspects(fleet):
    return fleet.node.relay._requests.suspects("p1")


def test_a_request_that_ended_well_is_no_suspect(fleet):
    assert ask(fleet, {"model": "m"}, X_Request_Id="harmless-1")[0].status == 200
    assert "harmless-1" not in [one.request_id for one in fleet.run(_suspects(fleet))]


def test_a_stream_that_breaks_ends_with_an_error_event_and_without_done(fleet):
    arrived = asyncio.Event()

    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(delta("a"))
        await arrived.wait()
        seen.writer.transport.abort()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post(STREAM)
        assert client.read_until(delta("a")).startswith(b"HTTP/1.1 200 ")
        fleet.signal(arrived)
        rest = client.read_until(b"0\r\n\r\n")
    (event,) = [line for line in rest.split(b"\r\n") if line.startswith(b"data: ")]
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
    assert b"[DONE]" not in rest


def test_a_plain_answer_that_breaks_is_seen_to_be_broken(fleet):
    arrived = asyncio.Event()

    async def script(seen):
        await seen.head("Content-Type: application/json", "Content-Length: 1000")
        await seen.write(b'{"choices":')
        await arrived.wait()
        seen.writer.transport.abort()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post({"model": "m"})
        assert b"content-length: 1000" in client.read_until(b'{"choices":')
        fleet.signal(arrived)
        assert client.read_all() == b""


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
    for path in (CHAT, "/v1/messages"):
        error = json.loads(ask(fleet, {"model": "m"}, path)[1])["error"]
        assert "'firstByteTimeoutSeconds' of the model (on its page: First-token timeout)" in error["message"]


def test_a_whole_response_may_pause_as_long_as_it_may_take(fleet):
    go = asyncio.Event()

    async def script(seen):
        kind = "text/event-stream" if seen.json.get("stream") else "application/json"
        await seen.head(f"Content-Type: {kind}", "Content-Length: 2")
        await go.wait()
        await seen.write(b"{}")

    fleet.engine.script = script
    fleet.table(model(first_byte_seconds=5.0, idle_seconds=0.2))
    assert b"'idleTimeoutSeconds' of the model (on its page: Stream idle timeout)" in ask(fleet, STREAM)[1]
    with Raw(fleet) as client:
        client.post({"model": "m"})
        assert client.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
        stays(lambda: not fleet.engine.seen[-1].left.is_set(), "the response to wait", 0.5)
        fleet.signal(go)
        assert client.read_until(b"{}") == b"{}"


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
        connection = pool._idle._waiting[-1]
        begin = connection.begin

        def begin_on_a_dead_line(head, body):
            # The agent closed it, and this side has not heard of it yet: what is written goes nowhere.
            connection._transport.abort()
            connection._transport = FakeTransport()
            begin(head, body)
            connection.connection_lost(None)

        connection.begin = begin_on_a_dead_line

    fleet.run(cut_at_the_next_request())
    before = fleet.metrics.retries["n1"]
    assert ask(fleet, {"model": "m"})[0].status == 200
    assert fleet.metrics.retries["n1"] == before + 1
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
