"""Answers that broke other gateways, each through client, gateway, mutual TLS, relay and engine."""

import asyncio
import gzip
import socket
import threading
import time
from dataclasses import replace

import pytest

from models_app.gateway.balance import FAILURES_TO_EJECT
from models_app.gateway.table import NodeState, RouteEntry, RouteState
from tests.gateway.downstream import Raw, ask
from tests.gateway.events import DONE, STREAM, counted, delta, streamed, usage
from tests.gateway.fleet import model

pytestmark = pytest.mark.e2e


@pytest.fixture
def fleet(each_protocol):
    return each_protocol


def test_the_prefix_of_the_last_chunk_is_not_lost_when_usage_comes_with_it(fleet):
    last = delta("end", usage={"prompt_tokens": 1, "completion_tokens": 2})
    before = counted(fleet)
    assert streamed(fleet, delta("a") + last[:20], last[20:] + usage(1, 2) + DONE) == delta("a") + last + DONE
    assert counted(fleet) - before == 3


def test_an_event_without_choices_and_without_usage_passes(fleet):
    empty = b'data: {"choices":[],"prompt_filter_results":[]}\n\n'
    assert streamed(fleet, empty + delta("a"), DONE) == empty + delta("a") + DONE


def test_two_thousand_chunks_that_say_usage_null_are_silent(fleet):
    pieces = [delta("x", usage=None) for _ in range(2000)]
    before = counted(fleet)
    assert streamed(fleet, *pieces, usage(3, 4), DONE) == b"".join(pieces) + DONE
    assert counted(fleet) - before == 7


def test_a_cut_inside_a_character_and_inside_a_string_changes_no_byte(fleet):
    text = 'data: {"choices":[{"delta":{"content":"caf\u00e9 \\" x"}}]}\n\n'.encode()
    at = text.index(b"\xc3") + 1
    assert streamed(fleet, text[:at], text[at : at + 4], text[at + 4 :], DONE) == text + DONE


def test_events_of_two_lines_and_with_names_pass_as_they_are(fleet):
    text = b'event: message_delta\ndata: {"type":"message_delta",\ndata: "usage":{"output_tokens":9}}\nid: 7\n\n'
    before = counted(fleet)
    assert streamed(fleet, b": a comment\n\n" + text[:30], text[30:] + DONE) == b": a comment\n\n" + text + DONE
    assert counted(fleet) - before == 9


def test_deltas_of_reasoning_alone_pass(fleet):
    text = b'data: {"choices":[{"delta":{"reasoning":"hm"}}]}\n\n'
    assert streamed(fleet, text, text, usage(1, 1), DONE) == text + text + DONE


def test_a_replica_that_accepts_and_never_answers_does_not_keep_others_from_the_healthy_one(fleet):
    deaf = socket.create_server(("127.0.0.1", 0), backlog=64)
    end = replace(fleet.endpoint(), node_id="n2", port=deaf.getsockname()[1])
    routes = (RouteEntry("p2", "m", "n2", 1, RouteState.READY), RouteEntry("p1", "m", "n1", 1, RouteState.READY))
    nodes = {"n1": NodeState.SERVING, "n2": NodeState.SERVING}
    fleet.table(model(routes=routes), nodes=nodes, endpoints={"n1": fleet.endpoint(), "n2": end})
    statuses = []
    clients = [threading.Thread(target=lambda: statuses.append(ask(fleet, {"model": "m"})[0].status)) for _ in range(6)]
    began = time.monotonic()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    deaf.close()
    assert statuses == [200] * 6  # those that were given the deaf one went on to the other
    assert time.monotonic() - began < 9


def test_a_node_that_dies_on_each_request_is_ejected_and_its_requests_go_to_no_other(fleet):
    async def main():
        async def die(reader, writer):
            await reader.read(10)
            writer.transport.abort()

        return await asyncio.start_server(die, "127.0.0.1", 0, ssl=fleet.trust.server)

    dying = fleet.run(main())
    end = replace(fleet.endpoint(), node_id="n2", port=dying.sockets[0].getsockname()[1])
    routes = (RouteEntry("p2", "m", "n2", 1, RouteState.READY), RouteEntry("p1", "m", "n1", 1, RouteState.READY))
    nodes = {"n1": NodeState.SERVING, "n2": NodeState.SERVING}
    fleet.table(model(routes=routes), nodes=nodes, endpoints={"n1": fleet.endpoint(), "n2": end})
    statuses = [ask(fleet, {"model": "m"})[0].status for _ in range(12)]
    # What a node received may be what ended it: another one gets nothing of it.
    assert (statuses.count(502), statuses.count(200)) == (FAILURES_TO_EJECT, 12 - FAILURES_TO_EJECT)
    assert len(fleet.engine.seen) == 12 - FAILURES_TO_EJECT
    assert "p2" in fleet.gateway.upstream.balancer.ejected
    fleet.loop.call_soon_threadsafe(dying.close)


def test_a_connection_that_the_engine_closes_between_requests_is_not_noticed(fleet):
    async def script(seen):
        await seen.answer(b"{}")
        seen.writer.close()

    fleet.engine.script = script
    assert [ask(fleet, {"model": "m"})[0].status for _ in range(10)] == [200] * 10


@pytest.mark.parametrize("events", [False, True])
def test_a_compressed_answer_passes_unread(fleet, events):
    data = gzip.compress(delta("a") + usage(1, 1) if events else b'{"usage":{"prompt_tokens":1}}')

    async def script(seen):
        kind = "text/event-stream" if events else "application/json"
        await seen.answer(data, f"Content-Type: {kind}", "Content-Encoding: gzip")

    fleet.engine.script = script
    response, found = ask(fleet, STREAM)
    assert (response.getheader("content-encoding"), found) == ("gzip", data)
    assert "accept-encoding" not in fleet.engine.seen[-1].headers


def test_an_engine_that_dies_after_the_head_ends_the_stream_with_an_error(fleet):
    arrived = asyncio.Event()

    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await arrived.wait()
        seen.writer.transport.abort()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post(STREAM)
        assert client.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
        fleet.signal(arrived)
        data = client.read_until(b"0\r\n\r\n")
    assert b"upstream_error" in data
    assert b"[DONE]" not in data


def test_an_engine_that_tells_its_own_end_inside_a_stream_is_counted_as_failed(fleet):
    error = b'data: {"error":{"message":"EngineCore died","code":500}}\n\n'
    fleet.run(fleet.gateway.recorder.write())
    fleet.sums.clear()
    assert streamed(fleet, delta("a"), error, DONE) == delta("a") + error + DONE
    fleet.run(fleet.gateway.recorder.write())
    (sums,) = fleet.sums.values()
    assert (sums.requests, sums.failed, sums.unreported) == (1, 1, 1)
