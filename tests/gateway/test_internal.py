"""The gateway for pages of the same process."""

import asyncio
import json

import pytest

from mirbad.kernel.errors import Unavailable
from models_app.gateway import internal
from models_app.gateway.internal import GatewayRefused, open_stream
from models_app.gateway.table import NodeState

pytestmark = pytest.mark.e2e

BODY = json.dumps({"model": "m", "stream": True, "messages": []}).encode()


@pytest.fixture
def running(fleet, monkeypatch):
    monkeypatch.setattr(internal, "_running", fleet.gateway)
    return fleet


def collect(fleet, body=BODY):
    async def work():
        return [piece async for piece in await open_stream(body)]

    return fleet.run(work())


def test_a_page_gets_the_bytes_of_the_stream_with_its_usage(running):
    text = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\ndata: [DONE]\n\n'

    async def script(seen):
        await seen.events(text)

    running.engine.script = script
    before = running.metrics.tokens["m", "completion"]
    assert b"".join(collect(running)) == text
    assert running.metrics.tokens["m", "completion"] == before + 2
    assert running.engine.seen[-1].body == BODY


@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        (b'{"model":"nothing"}', "model_not_found", 404),
        (b"nonsense", "invalid_json", 400),
        (b'{"stream":true}', "model_required", 400),
        (b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json", 400),
        (b'{"model":"m","messages":' + b"[" * 1000 + b"]" * 1000 + b"}", "invalid_json", 400),
    ],
)
def test_a_refusal_is_an_error_with_the_code_and_status_of_the_gateway(running, body, code, status):
    with pytest.raises(GatewayRefused) as refused:
        collect(running, body)
    assert (refused.value.code, refused.value.http_status) == (code, status)


def test_a_node_that_is_away_and_an_engine_that_refuses_are_told(running):
    running.table(state=NodeState.OFFLINE)
    with pytest.raises(GatewayRefused) as offline:
        collect(running)
    assert (offline.value.code, offline.value.retry_after_seconds) == ("node_offline", 15)

    async def script(seen):
        await seen.answer(b'{"error":{"message":"too long"}}', status="400 Bad Request")

    running.table()
    running.engine.script = script
    with pytest.raises(GatewayRefused, match="too long") as refused:
        collect(running)
    assert refused.value.http_status == 400
    assert not running.gateway.upstream.in_flight


def test_a_stream_that_breaks_ends_with_an_error_event(running):
    arrived = asyncio.Event()

    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(b"data: {}\n\n")
        await arrived.wait()
        seen.writer.transport.abort()

    running.engine.script = script

    async def read():
        stream = await open_stream(BODY)
        first = await anext(stream)
        arrived.set()
        return [first, *[piece async for piece in stream]]

    first, last = running.run(read())
    assert first == b"data: {}\n\n"
    assert b"upstream_error" in last


def test_closing_the_iterator_ends_the_engines_work(running):
    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(b"data: {}\n\n")
        await seen.left.wait()

    running.engine.script = script

    async def read_one():
        stream = await open_stream(BODY)
        assert await anext(stream) == b"data: {}\n\n"
        await stream.aclose()

    running.run(read_one())
    assert running.wait_for(running.engine.seen[-1].left.is_set, 1)
    assert not running.metrics.in_flight["m"]


async def test_without_a_running_gateway_in_this_loop_it_says_so(running, monkeypatch):
    with pytest.raises(Unavailable):
        await open_stream(BODY)
    monkeypatch.setattr(internal, "_running", None)
    with pytest.raises(Unavailable):
        await open_stream(BODY)
