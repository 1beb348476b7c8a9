"""The end of the server: streams that can finish do, others are told."""

import asyncio
import json
import threading

import pytest

from tests.gateway.downstream import Raw
from tests.gateway.fleet import Fleet

pytestmark = pytest.mark.e2e

STREAM = {"model": "m", "stream": True, "messages": []}


@pytest.mark.parametrize("finishes", [True, False])
def test_open_streams_finish_within_the_limit_or_end_with_an_error_event(finishes):
    fleet = Fleet()
    fleet.grace_seconds = 3 if finishes else 1
    fleet.start()
    ends = asyncio.Event()

    async def script(seen):
        await seen.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        await seen.chunk(b"data: {}\n\n")
        gone = asyncio.create_task(seen.left.wait())
        end = asyncio.create_task(ends.wait())
        await asyncio.wait({gone, end}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        end.cancel()
        await seen.chunk(b"data: [DONE]\n\n")
        await seen.end()

    fleet.engine.script = script
    with Raw(fleet) as client:
        client.post(STREAM)
        client.read_until(b"data: {}")
        stopping = threading.Thread(target=fleet.stop)
        stopping.start()
        if finishes:
            threading.Timer(0.5, lambda: fleet.loop.call_soon_threadsafe(ends.set)).start()
        rest = client.read_all()
    stopping.join(20)
    assert (b"[DONE]" in rest) is finishes
    assert rest.endswith(b"0\r\n\r\n")
    if not finishes:
        event = next(line for line in rest.split(b"\r\n") if line.startswith(b"data: "))
        assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "server_shutdown"
