"""A client of many streams at once: ``python -m tests.bench.gateway.listener PORT PATH KEY STREAMS``.

It prints one JSON line: events seen, streams that ended as they should, bytes changed or lost, and times.
"""

import asyncio
import hashlib
import json
import os
import sys

import httptools
import uvloop

from tests.bench.gateway.engine import DONE, EVENT


class Stream(asyncio.Protocol):
    """One request; its response is counted as it arrives and compared with the events that the engine sends."""

    def __init__(self, request: bytes, over: "asyncio.Future[None]") -> None:
        self._request, self._over = request, over
        self._loop = asyncio.get_running_loop()
        self.first: float | None = None
        self.events = 0
        self.whole = False
        self.last = b""
        self._parser = httptools.HttpResponseParser(self)
        self._hash = hashlib.sha256()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._began = self._loop.time()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.first is None:
            self.first = self._loop.time() - self._began
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.last = data
        self.events += data.count(b'"delta"')
        self._hash.update(data)

    def on_message_complete(self) -> None:
        self.whole = True
        self._transport.close()

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the body."""
        return self._hash.hexdigest()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._over.done():
            self._over.set_result(None)


async def main(port: int, path: str, key: str, streams: int) -> None:
    """Open all streams and wait until they end."""
    loop = asyncio.get_running_loop()
    body = json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Say something."}]}
    ).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    found: list[Stream] = []
    ends = []
    for _ in range(streams):
        over = loop.create_future()
        _, stream = await loop.create_connection(lambda over=over: Stream(head + body, over), "127.0.0.1", port)
        found.append(stream)
        ends.append(over)
    await asyncio.wait(ends, timeout=float(os.environ.get("MIRBAD_BENCH_LISTEN_SECONDS", "30")))
    lengths = {stream.events for stream in found}
    right = hashlib.sha256(EVENT * max(lengths, default=0) + DONE).hexdigest()
    firsts = sorted(stream.first for stream in found if stream.first is not None)
    print(
        json.dumps(
            {
                "events": sum(stream.events for stream in found),
                "whole": sum(stream.whole for stream in found),
                "same": sum(stream.whole and stream.digest == right for stream in found),
                "odd": [stream.last[-300:].decode("utf-8", "replace") for stream in found if stream.digest != right][
                    :3
                ],
                "first_p50": firsts[len(firsts) // 2] if firsts else None,
                "event_bytes": len(EVENT),
            }
        )
    )


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
