"""Servers and transports for tests of the client towards agents, whose every byte a test decides."""

import asyncio
from contextlib import asynccontextmanager

from models_app.gateway.pool import NodePool
from nodes.link.transport import Endpoint
from tests.waiting import pause_async

REQUEST = b"POST /x HTTP/1.1\r\nHost: n\r\nContent-Length: 0\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def served(answer):
    """A pool towards a raw server; `answer(reader, writer)` runs once a connection."""

    async def serve(reader, writer):
        try:
            await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = NodePool(Endpoint("n", "127.0.0.1", port, "n", None, loopback_allowed=True), warm=0)
    try:
        yield pool
    finally:
        pool.retire(cut=True)
        server.close()
        await asyncio.sleep(0)


def says(*pieces):
    """A server that reads the request's head, writes `pieces` one by one and closes."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await pause_async(0.001)

    return answer


def lost(connection):
    """An event that is set when `connection` is lost."""
    event, noticed = asyncio.Event(), connection.on_lost

    def on_lost(gone):
        noticed(gone)
        event.set()

    connection.on_lost = on_lost
    return event


async def fetch(pool, *, head_seconds=2.0, idle_seconds=2.0):
    connection = await pool.connect()
    connection.begin(REQUEST, b"")
    await connection.head(head_seconds)
    body = b""
    while data := await connection.read(idle_seconds):
        body += data
    return connection, body


class FakeTransport(asyncio.Transport):
    """A transport that drops the written bytes."""

    closing = False

    def write(self, data):
        pass

    def abort(self):
        self.closing = True

    def is_closing(self):
        return self.closing

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass
