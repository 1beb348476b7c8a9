"""The client towards agents meets servers that are broken, slow or hostile."""

import asyncio
import time

import pytest

from agent.common.http1.client import HIGH_WATER_BYTES, ClientConnection, ConnectFailed, ConnectionBroken, TimedOut
from models_app.gateway.pool import NodePool
from nodes.link.transport import Endpoint
from tests.gateway.upstream import CHUNKED, REQUEST, FakeTransport, fetch, lost, says, served
from tests.waiting import pause_async, until_still

pytestmark = pytest.mark.unit


async def test_bytes_behind_an_answer_cost_the_connection_but_not_the_answer():
    async with served(says(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n")) as pool:
        connection, body = await fetch(pool)
        assert body == b"hello"
        pool.release(connection)
        assert pool.take_idle() is None


async def test_bytes_on_an_idle_connection_close_it():
    more = asyncio.Event()

    async def answer(reader, writer):
        await says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")(reader, writer)
        await more.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await reader.read()

    async with served(answer) as pool:
        connection, _ = await fetch(pool)
        pool.release(connection)
        assert pool.idle_count == 1
        closed = lost(connection)
        more.set()
        await asyncio.wait_for(closed.wait(), 5)
        assert pool.idle_count == 0
        assert pool.take_idle() is None


async def test_a_connection_that_is_told_to_close_is_not_kept():
    async with served(says(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")) as pool:
        connection, _ = await fetch(pool)
        pool.release(connection)
        assert pool.take_idle() is None


async def test_one_connection_carries_many_answers():
    async def answer(reader, writer):
        for size in range(50):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (size, b"x" * size))
        await reader.read()

    async with served(answer) as pool:
        connection = await pool.connect()
        for size in range(50):
            connection.begin(REQUEST, b"")
            await connection.head(2)
            body = b""
            while data := await connection.read(2):
                body += data
            assert len(body) == size
            pool.release(connection)
            assert pool.take_idle() is connection


async def test_an_answer_cut_before_its_first_byte_is_untouched_and_only_that():
    async with served(says()) as pool:
        with pytest.raises(ConnectionBroken) as none:
            await fetch(pool)
    async with served(says(b"H")) as pool:
        with pytest.raises(ConnectionBroken) as one:
            await fetch(pool)
    assert none.value.untouched
    assert not one.value.untouched


async def test_bytes_that_came_before_a_cut_are_given_first():
    async with served(says(CHUNKED + b"5\r\nhello\r\n")) as pool:
        connection = await pool.connect()
        connection.begin(REQUEST, b"")
        closed = lost(connection)
        await connection.head(2)
        await asyncio.wait_for(closed.wait(), 5)
        assert await connection.read(2) == b"hello"
        with pytest.raises(ConnectionBroken):
            await connection.read(2)


@pytest.mark.parametrize(
    "cut", [b"10\r\nhello", b"5\r\nhello", b"5\r\nhello\r", b"5\r\nhello\r\n", b"5\r\nhello\r\n0\r\n"]
)
@pytest.mark.parametrize("takes_more", [True, False])
async def test_a_stream_that_breaks_amid_a_piece_ends_at_once(cut, takes_more):
    async with served(says(CHUNKED, cut)) as pool:
        connection = await pool.connect()
        connection.begin(REQUEST, b"")
        await connection.head(2)
        got = []

        def sink(data):
            got.append(data)
            return takes_more

        async def read():
            while True:
                got.append(connection.take())
                await connection.stream(sink, 600)

        with pytest.raises(ConnectionBroken):
            await asyncio.wait_for(read(), 5)
        assert b"".join(got) == b"hello"


async def test_a_stream_that_broke_while_nobody_waited_ends_at_once():
    async with served(says(CHUNKED + b"10\r\nhello")) as pool:
        connection = await pool.connect()
        connection.begin(REQUEST, b"")
        closed = lost(connection)
        await connection.head(2)
        await asyncio.wait_for(closed.wait(), 5)
        assert connection.take() == b"hello"
        with pytest.raises(ConnectionBroken):
            await asyncio.wait_for(connection.stream(lambda data: True, 600), 5)


async def test_silence_before_the_head_and_between_bytes_is_timed_apart():
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        await pause_async(0.15)
        writer.write(CHUNKED + b"1\r\na\r\n")
        for _ in range(4):
            await pause_async(0.1)
            writer.write(b"1\r\nb\r\n")
        await reader.read()

    async with served(answer) as pool:
        with pytest.raises(TimedOut):
            await fetch(pool, head_seconds=0.05)
        connection = await pool.connect()
        connection.begin(REQUEST, b"")
        await connection.head(5.0)
        assert [await connection.read(0.6) for _ in range(5)] == [b"a", b"b", b"b", b"b", b"b"]
        with pytest.raises(TimedOut):
            await connection.read(0.6)


async def test_a_reader_that_does_not_come_stops_the_server():
    sent = 0

    async def answer(reader, writer):
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        while True:
            writer.write(piece)
            await writer.drain()
            sent += len(piece)

    async with served(answer) as pool:
        connection = await pool.connect()
        connection.begin(REQUEST, b"")
        await connection.head(2)
        before = await asyncio.to_thread(until_still, lambda: sent)
        assert connection._buffered <= HIGH_WATER_BYTES + 2**18
        read = 0
        while read < 2 * before:
            read += len(await connection.read(2))
        assert sent > before
        connection.abort()


async def test_nobody_listening_is_a_failed_connection():
    pool = NodePool(Endpoint("n", "127.0.0.1", 9, "n", None, loopback_allowed=True), warm=0)
    with pytest.raises(ConnectFailed):
        await pool.connect()


async def test_an_address_that_may_not_be_dialled_is_not_dialled():
    called = False

    async def answer(reader, writer):
        nonlocal called
        called = True

    async with served(answer) as pool:
        peer = Endpoint("n", "localhost", pool.peer.port, "n", None, loopback_allowed=False)
        with pytest.raises(ConnectFailed, match="loopback"):
            await NodePool(peer, warm=0).connect()
    assert not called


async def test_what_came_while_the_loop_was_held_up_is_read_before_the_peer_is_called_silent():
    connection = ClientConnection(asyncio.get_running_loop())
    connection.connection_made(FakeTransport())
    connection.begin(REQUEST, b"")
    loop = asyncio.get_running_loop()
    loop.call_later(0.06, connection.data_received, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    loop.call_soon(time.sleep, 0.1)  # both are overdue now, the limit for longer
    await connection.head(0.05)
    assert connection.status == 200
