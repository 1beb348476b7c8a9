"""Inputs that broke other gateways, each through client, gateway, mutual TLS, relay and engine."""

import asyncio
import gzip
import json
import socket
import threading
import time
from dataclasses import replace

import pytest

from models_app.gateway.table import NodeState, Route, RouteState
from models_app.keys import digest
from tests.gateway.client import CHAT, Raw, ask, refused
from tests.gateway.fleet import SECRET, Fleet, model

pytestmark = pytest.mark.e2e

STREAM = {"model": "m", "stream": True}
DONE = b"data: [DONE]\n\n"


def delta(text, **more):
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}], **more}).encode() + b"\n\n"


def usage(prompt, completion):
    return b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (prompt, completion)


def streamed(fleet, *pieces, body=None):
    async def script(seen):
        await seen.events(*pieces)

    fleet.engine.script = script
    return ask(fleet, body or STREAM)[1]


def counted(fleet):
    return sum(value for (model_id, kind), value in fleet.figures.tokens.items() if model_id == "m")


@pytest.fixture(scope="module", params=["fast", "asgi"])
def _each_door(request):
    fleet = Fleet(door=request.param, max_body_bytes=64 * 1024 * 1024, max_in_flight=1100).start()
    yield fleet
    fleet.stop()


@pytest.fixture
def fleet(_each_door):
    from tests.gateway.engine import hello

    _each_door.engine.script = hello
    _each_door.engine.seen.clear()
    _each_door.instances.ready, _each_door.instances.port = True, None
    _each_door.table()
    return _each_door


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
    routes = (Route("p2", "m", "n2", 1, RouteState.READY), Route("p1", "m", "n1", 1, RouteState.READY))
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


def test_a_replica_that_dies_before_its_first_byte_loses_no_request(fleet):
    async def main():
        async def die(reader, writer):
            await reader.read(10)
            writer.transport.abort()

        return await asyncio.start_server(die, "127.0.0.1", 0, ssl=fleet.trust.server)

    dying = fleet.run(main())
    end = replace(fleet.endpoint(), node_id="n2", port=dying.sockets[0].getsockname()[1])
    routes = (Route("p2", "m", "n2", 1, RouteState.READY), Route("p1", "m", "n1", 1, RouteState.READY))
    nodes = {"n1": NodeState.SERVING, "n2": NodeState.SERVING}
    fleet.table(model(routes=routes), nodes=nodes, endpoints={"n1": fleet.endpoint(), "n2": end})
    assert [ask(fleet, {"model": "m"})[0].status for _ in range(8)] == [200] * 8
    assert "p2" in fleet.gateway.exchanges.balance.ejected
    fleet.loop.call_soon_threadsafe(dying.close)


def test_a_connection_that_the_engine_closes_between_requests_is_not_noticed(fleet):
    async def script(seen):
        await seen.answer(b"{}")
        seen.writer.close()

    fleet.engine.script = script
    assert [ask(fleet, {"model": "m"})[0].status for _ in range(10)] == [200] * 10


def left(fleet, script, *, stream, read=b""):
    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post({"model": "m", "stream": stream})
        assert fleet.wait_for(lambda: fleet.engine.seen, 5)
        if read:
            client.read_until(read)
    assert fleet.wait_for(lambda: fleet.engine.seen[-1].left.is_set(), 1)


def test_a_client_that_leaves_after_three_events_ends_the_engines_work(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        for number in range(3):
            await seen.chunk(delta(f"n{number}"))
        await seen.left.wait()

    left(fleet, script, stream=True, read=b"n2")


@pytest.mark.parametrize("stream", [True, False], ids=["before the first event", "in a call that is not streamed"])
def test_a_client_that_leaves_before_anything_ends_the_engines_work(fleet, stream):
    async def script(seen):
        await seen.left.wait()

    left(fleet, script, stream=stream)


@pytest.mark.parametrize("chunked", [False, True], ids=["by its length", "in chunks"])
def test_a_hundred_megabytes_are_refused(fleet, chunked):
    piece = b"x" * (1024 * 1024)
    with Raw(fleet) as client:
        client.head("Transfer-Encoding: chunked" if chunked else f"Content-Length: {100 * len(piece)}")
        try:
            for _ in range(100):
                client.socket.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        except OSError:
            pass  # the gateway has said enough
        assert client.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    assert fleet.engine.seen == []


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


_BODY = b'{"model":"m"}'


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"Host: x\r\nContent-Length: 13\r\nTransfer-Encoding: chunked\r\n", id="length and chunks"),
        pytest.param(b"Host: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 13\r\n", id="chunks and length"),
        pytest.param(b"Host: x\r\nContent-Length: 13\r\nContent-Length: 14\r\n", id="two lengths"),
        pytest.param(b"Host: x\r\nContent-Length: 13\r\nX-A: 1\r\n folded\r\n", id="folded"),
        pytest.param(b"Host: x\nContent-Length: 13\n", id="bare line feeds"),
        pytest.param(b"Host: x\r\nContent-Length : 13\r\n", id="space before the colon"),
        pytest.param(b"Host: x\r\nContent-Length: +13\r\n", id="length with a sign"),
        pytest.param(b"Host: x\r\nTransfer-Encoding: gzip, chunked\r\n", id="another coding"),
        pytest.param(b"Host: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", id="two codings"),
    ],
)
def test_what_two_servers_could_read_in_two_ways_reaches_no_engine(fleet, head):
    _smuggled(fleet, head)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"Host: x\r\nHost: y\r\nContent-Length: 13\r\n", id="two hosts"),
        pytest.param(b"Content-Length: 13\r\n", id="no host"),
    ],
)
def test_two_hosts_or_none_are_refused_at_the_fast_door(fleet, head):
    if fleet.door != "fast":
        pytest.skip("uvicorn's own server takes them; the gateway reads no host")
    _smuggled(fleet, head)


def _smuggled(fleet, head):
    line = b"\n" if b"\r" not in head else b"\r\n"
    start = b"POST /v1/chat/completions HTTP/1.1" + line + b"Authorization: Bearer " + SECRET.encode() + line
    with Raw(fleet) as client:
        client.socket.sendall(start + head + line + _BODY)
        assert client.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert fleet.engine.seen == []


def test_a_slow_reader_gets_every_byte_and_holds_the_engine_back(fleet):
    pieces = [delta(f"{n:06d}" + "x" * 2000) for n in range(30_000)]
    sent = []

    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        for piece in pieces:
            await seen.chunk(piece)
            sent.append(len(piece))
        await seen.end()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.head("Content-Length: 27", "Connection: close")
        client.socket.sendall(b'{"model":"m","stream":true}')
        time.sleep(1)
        assert sum(sent) < 50_000_000  # of 61 million: what sockets and buffers hold has left
        data = client.read_all()
    for number in (0, 1234, 29_999):
        assert b"%06d" % number in data


def test_a_thousand_idle_streams_stay_open_and_leave_nothing_behind(fleet):
    if fleet.door != "fast":
        pytest.skip("the streams of the other door are the same behind it; a thousand handshakes take their time")
    go_on = asyncio.Event()

    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(delta("a"))
        await go_on.wait()
        await seen.chunk(DONE)
        await seen.end()

    async def one(opened):
        reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nConnection: close\r\n"
            b'Content-Length: 27\r\n\r\n{"model":"m","stream":true}' % (CHAT.encode(), SECRET.encode())
        )
        try:
            await reader.readuntil(b"}}]}")
        finally:
            opened.release()
        rest = await reader.read()
        writer.close()
        return b"[DONE]" in rest

    async def many():
        opened = asyncio.Semaphore(0)
        clients = []
        for _ in range(0, 1000, 50):
            clients += [asyncio.create_task(one(opened)) for _ in range(50)]
            for _ in range(50):
                await opened.acquire()
        fleet.loop.call_soon_threadsafe(go_on.set)
        return await asyncio.gather(*clients)

    fleet.engine.script = script
    fleet.table(model(first_byte_seconds=60.0, idle_seconds=60.0))
    assert asyncio.run(many()) == [True] * 1000
    assert fleet.wait_for(lambda: fleet.gateway.in_flight == 0, 5)
    assert fleet.gateway.exchanges.flight == {}


def test_an_engine_that_dies_after_the_head_ends_the_stream_with_an_error(fleet):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await asyncio.sleep(0.05)
        seen.writer.transport.abort()

    fleet.engine.script = script
    data = ask(fleet, STREAM)[1]
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


def test_a_key_that_is_revoked_during_a_stream_ends_no_answer_but_the_next_request(fleet):
    go_on = asyncio.Event()

    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(delta("a"))
        await go_on.wait()
        await seen.chunk(DONE)
        await seen.end()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post(STREAM)
        client.read_until(b'"a"')
        fleet.table(keys={})
        assert refused(fleet, STREAM) == (401, "invalid_api_key")
        fleet.loop.call_soon_threadsafe(go_on.set)
        client.read_until(b"0\r\n\r\n")


def form_of(boundary, *parts):
    lines = []
    for name, value, file in parts:
        named = f'; filename="{file}"' if file else ""
        lines.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode())
        lines.append(value + b"\r\n")
    return b"".join(lines) + f"--{boundary}--\r\n".encode()


@pytest.mark.parametrize("model_first", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_form_of_megabytes_reaches_the_engine_byte_by_byte(fleet, model_first, chunked):
    sound = bytes(range(256)) * 12_000
    parts = [("model", b"m", ""), ("file", sound, "a.wav")]
    data = form_of("xyz", *(parts if model_first else parts[::-1]))
    kind = {"Content_Type": "multipart/form-data; boundary=xyz"}
    path = "/v1/audio/transcriptions"
    sent = iter([data[:1000], data[1000:2_000_000], data[2_000_000:]]) if chunked else data
    response, _ = ask(fleet, sent, path, **kind)
    seen = fleet.engine.seen[-1]
    assert (response.status, seen.path, seen.body == data) == (200, path, True)
    assert seen.headers["content-type"] == "multipart/form-data; boundary=xyz"


def test_a_form_that_goes_wrong_on_its_way_ends_the_engines_request(fleet):
    data = form_of("xyz", ("model", b"m", ""), ("file", b"x" * 1_000_000, "a"), ("model", b"other", ""))
    kind = {"Content_Type": "multipart/form-data; boundary=xyz"}
    status, code = refused(fleet, data, "/v1/audio/translations", **kind)
    assert (status, code) == (400, "invalid_form")


def test_a_key_limit_and_trace_go_with_the_request(fleet):
    parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    ask(fleet, {"model": "m"}, traceparent=parent, tracestate="x=1", x_request_id="r-1")
    seen = fleet.engine.seen[-1].headers
    assert (seen["traceparent"], seen["tracestate"], seen["x-request-id"]) == (parent, "x=1", "r-1")
    ask(fleet, {"model": "m"}, traceparent="00-nonsense", tracestate="x=1")
    seen = fleet.engine.seen[-1].headers
    assert len(seen["traceparent"]) == 55
    assert "tracestate" not in seen


def test_tokenize_goes_where_engines_serve_it(fleet):
    ask(fleet, {"model": "m", "prompt": "x"}, "/v1/tokenize")
    assert fleet.engine.seen[-1].path == "/tokenize"


def test_use_is_added_up_by_key_and_model(fleet):
    fleet.run(fleet.gateway.recorder.write())
    fleet.sums.clear()
    ask(fleet, {"model": "m"})
    ask(fleet, {"model": "org/m"})
    refused(fleet, {"model": "nothing"})
    fleet.run(fleet.gateway.recorder.write())
    ((place, sums),) = fleet.sums.items()
    assert place[:2] == (1, "m")
    assert (sums.requests, sums.failed, sums.prompt_tokens, sums.completion_tokens) == (2, 0, 6, 4)
    assert digest(SECRET)
