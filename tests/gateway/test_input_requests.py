"""Requests and clients that broke other gateways: their form, their size, their pace."""

import asyncio

import pytest

from models_app.keys import digest
from tests.gateway.downstream import CHAT, Raw, ask, refused
from tests.gateway.events import DONE, STREAM, delta
from tests.gateway.fleet import SECRET, model

pytestmark = pytest.mark.e2e

_BODY = b'{"model":"m"}'


@pytest.fixture
def fleet(each_protocol):
    return each_protocol


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
def test_two_hosts_or_none_are_refused(fleet, head):
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
        assert fleet.wait_until_stalled(lambda: sum(sent)) < 50_000_000  # of 61 million: sockets and buffers hold these
        data = client.read_all()
    for number in (0, 1234, 29_999):
        assert b"%06d" % number in data


def test_a_thousand_idle_streams_stay_open_and_leave_nothing_behind(fleet):
    if fleet.protocol != "fast":
        pytest.skip("the streams of the other protocol run the same code; a thousand handshakes take long")
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
    assert fleet.wait_for(lambda: fleet.gateway.places.taken == 0, 5)
    assert fleet.gateway.upstream.in_flight == {}


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
