"""An engine that costs next to nothing: one small answer, or a stream of events at a steady rate.

``python -m tests.bench.gateway.engine PORT EVENTS EVERY_MS [FOLDER]``; with a folder it speaks mutual TLS with the
files in there. It responds as an agent does, so that the gateway can be measured with one hop as well.
"""

import asyncio
import json
import ssl
import sys
from pathlib import Path

import httptools
import uvloop

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello there."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 4, "total_tokens": 16},
    }
).encode()
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
_CALL = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
CALLING = json.dumps(
    {
        "id": "chatcmpl-2",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 40, "completion_tokens": 9, "total_tokens": 49},
    }
).encode()


def _calling_events() -> bytes:
    """Return a tool call in pieces: its name first, then its arguments, cut anywhere."""
    first = {**_CALL, "index": 0, "function": {"name": "weather", "arguments": ""}}
    rest = ({"index": 0, "function": {"arguments": piece}} for piece in ('{"ci', 'ty": "Pa', 'ris"}'))
    deltas = [{"role": "assistant", "content": None, "tool_calls": [first]}, *({"tool_calls": [one]} for one in rest)]
    events = b""
    for delta, reason in [*((delta, None) for delta in deltas), ({}, "tool_calls")]:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        event = {"id": "chatcmpl-2", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
        events += b"data: %b\n\n" % json.dumps(event).encode()
    return events + DONE


_HEAD = b"HTTP/1.1 200 OK\r\nMirbad-Answer: engine\r\n"
_WHOLE = _HEAD + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
_SMALL, _SMALL_CALL = _WHOLE % (len(ANSWER), ANSWER), _WHOLE % (len(CALLING), CALLING)
_STREAM = _HEAD + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENTS = _calling_events()
_STREAM_CALL = _STREAM + b"%x\r\n%b\r\n0\r\n\r\n" % (len(_EVENTS), _EVENTS)
_CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
_END = b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE)


class Served(asyncio.Protocol):
    """One connection."""

    def __init__(self, events: int, every: float) -> None:
        self._events, self._every = events, every
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._stream = self._tools = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._stream = self._stream or b'"stream": true' in body or b'"stream":true' in body
        self._tools = self._tools or b'"tools"' in body

    def on_message_complete(self) -> None:
        stream, tools = self._stream, self._tools
        self._stream = self._tools = False
        if tools or not stream:
            calling = _STREAM_CALL if stream else _SMALL_CALL
            self._transport.write(calling if tools else _SMALL)
            return
        self._transport.write(_STREAM)
        self._left = self._events
        self._next = self._loop.time()
        self._tick()

    def _tick(self) -> None:
        if self._left == 0:
            self._transport.write(_END)
            return
        self._left -= 1
        self._transport.write(_CHUNK)
        self._next += self._every
        self._timer = self._loop.call_at(self._next, self._tick)


async def main(port: int, events: int, every_ms: float, folder: str = "") -> None:
    """Serve until killed."""
    context = None
    if folder:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=Path(folder) / "ca.pem")
        context.load_cert_chain(Path(folder) / "node.pem", Path(folder) / "node.key")
        context.verify_mode = ssl.CERT_REQUIRED
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Served(events, every_ms / 1000), "127.0.0.1", port, ssl=context, backlog=1024
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:]))
