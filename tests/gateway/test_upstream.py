"""The client towards agents meets servers that are broken, slow or hostile."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.wire.http1.client import HIGH_WATER_BYTES, Broken, ConnectFailed, Connection, TimedOut, UpstreamError
from models_app.gateway.pool import NodePool
from nodes.link.transport import Endpoint

pytestmark = pytest.mark.unit

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
            await asyncio.sleep(0.001)

    return answer


async def fetch(pool, *, head_seconds=2.0, idle_seconds=2.0):
    connection = await pool.connect()
    connection.begin(REQUEST, b"")
    await connection.head(head_seconds)
    body = b""
    while data := await connection.read(idle_seconds):
        body += data
    return connection, body


async def test_a_body_with_a_length_is_read_to_its_end():
    async with served(says(b"HTTP/1.1 200 OK\r\nX-Empty:\r\nContent-Length: 5\r\n\r\nhe", b"llo")) as pool:
        connection, body = await fetch(pool)
        assert (connection.status, body) == (200, b"hello")
        assert (b"x-empty", b"") in connection.headers


async def test_chunks_are_joined_as_they_come():
    async with served(says(CHUNKED, b"2\r\nhe", b"\r\n3;ext=1\r\nllo\r\n", b"0\r\n", b"\r\n")) as pool:
        assert (await fetch(pool))[1] == b"hello"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", id="body shorter than its length"),
        pytest.param(CHUNKED + b"5\r\nhel", id="chunk cut"),
        pytest.param(CHUNKED + b"5\r\nhello\r\n", id="last chunk missing"),
        pytest.param(CHUNKED + b"5\r\nhello\r\n0\r\n", id="end of chunks cut"),
        pytest.param(CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n", id="chunk size no number"),
        pytest.param(CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n", id="chunk size negative"),
        pytest.param(CHUNKED + b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n", id="chunk size overflow"),
        pytest.param(CHUNKED + b"5\nhello\n0\n\n", id="bare line feeds in chunks"),
        pytest.param(CHUNKED + b"5\r\nhelloworld\r\n0\r\n\r\n", id="chunk longer than its size"),
        pytest.param(CHUNKED + b"5\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n", id="trailer"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="length and chunks",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
            id="chunks and length",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", id="two lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello", id="length with a sign"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5 5\r\n\r\nhello", id="length with a space"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", id="another coding"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", id="chunked not last"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nhello", id="no framing"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", id="100"),
        pytest.param(b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", id="103"),
        pytest.param(b"HTTP/1.1 101 Up\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nhello", id="upgrade"),
        pytest.param(b"HTTP/1.1 000 No\r\nContent-Length: 0\r\n\r\n", id="status 000"),
        pytest.param(b"HTTP/1.1 2000 No\r\nContent-Length: 0\r\n\r\n", id="status of four digits"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", id="HTTP/1.0"),
        pytest.param(b"HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", id="HTTP/2.0"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-A: 1\r\n 2\r\nContent-Length: 0\r\n\r\n", id="folded header"),
        pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", id="bare line feeds"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello", id="space before the colon"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX A: 5\r\nContent-Length: 0\r\n\r\n", id="space in a name"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-A: a\x00b\r\nContent-Length: 0\r\n\r\n", id="NUL in a value"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-A: a\rb\r\nContent-Length: 0\r\n\r\n", id="CR in a value"),
        pytest.param(b"SSH-2.0-server\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 100_000 + b"\r\nContent-Length: 0\r\n\r\n", id="huge header"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"X-A: a\r\n" * 20_000, id="endless head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Le", id="head cut"),
        pytest.param(b"", id="nothing"),
    ],
)
@pytest.mark.parametrize("piecewise", [False, True], ids=["at once", "in pieces"])
async def test_what_is_not_strict_http_is_an_error(answer, piecewise):
    middle = len(answer) // 2
    pieces = (answer[:middle], answer[middle:]) if piecewise else (answer,)
    async with served(says(*pieces)) as pool:
        with pytest.raises(Broken):
            await fetch(pool)


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
        more.set()
        for _ in range(400):
            await asyncio.sleep(0.005)
            if not pool.idle_count:
                break
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
        with pytest.raises(Broken) as none:
            await fetch(pool)
    async with served(says(b"H")) as pool:
        with pytest.raises(Broken) as one:
            await fetch(pool)
    assert none.value.untouched
    assert not one.value.untouched


async def test_bytes_that_came_before_a_cut_are_given_first():
    async with served(says(CHUNKED + b"5\r\nhello\r\n")) as pool:
        connection = await pool.connect()
        connection.begin(REQUEST, b"")
        await connection.head(2)
        await asyncio.sleep(0.05)
        assert await connection.read(2) == b"hello"
        with pytest.raises(Broken):
            await connection.read(2)


async def test_silence_before_the_head_and_between_bytes_is_timed_apart():
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.15)
        writer.write(CHUNKED + b"1\r\na\r\n")
        for _ in range(4):
            await asyncio.sleep(0.1)
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
        await asyncio.sleep(0.3)
        before = sent
        await asyncio.sleep(0.2)
        assert sent == before
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


class FakeTransport(asyncio.Transport):
    """Swallows what is written."""

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


async def test_what_came_while_the_loop_was_held_up_is_read_before_the_peer_is_called_silent():
    connection = Connection(asyncio.get_running_loop())
    connection.connection_made(FakeTransport())
    connection.begin(REQUEST, b"")
    loop = asyncio.get_running_loop()
    loop.call_later(0.06, connection.data_received, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    loop.call_soon(time.sleep, 0.1)  # both are overdue now, the limit for longer
    await connection.head(0.05)
    assert connection.status == 200


async def _fed(pieces):
    """What a connection makes of `pieces` followed by the end of the stream: (status, body) or the error."""
    connection = Connection(asyncio.get_running_loop())
    connection.connection_made(FakeTransport())
    connection.begin(REQUEST, b"")
    for piece in pieces:
        if piece and not connection._transport.is_closing():
            connection.data_received(piece)
    connection.connection_lost(None)
    try:
        await connection.head(1)
        body = b""
        while data := await connection.read(1):
            body += data
    except UpstreamError as error:
        return error
    return connection.status, body


def fed(pieces):
    return asyncio.run(_fed(pieces))


def split(data, cuts):
    points = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *points], [*points, len(data)], strict=True)]


bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
cuts = st.lists(st.integers(min_value=0, max_value=10_000), max_size=8)


def chunked(parts):
    return CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"


@given(bodies, cuts)
@settings(max_examples=300, deadline=None)
def test_a_valid_answer_reads_the_same_however_it_is_split(parts, where):
    assert fed(split(chunked(parts), where)) == (200, b"".join(parts))


@given(bodies, cuts, st.integers(min_value=1, max_value=10_000))
@settings(max_examples=300, deadline=None)
def test_a_valid_answer_cut_anywhere_is_an_error(parts, where, end):
    whole = chunked(parts)
    assert isinstance(fed(split(whole[: -(end % len(whole)) or -1], where)), Broken)


@given(bodies, cuts, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=500, deadline=None)
def test_a_damaged_answer_gives_an_answer_or_the_named_error(parts, where, damage):
    data = bytearray(chunked(parts))
    for position, value in damage:
        data[position % len(data)] = value
    outcome = fed(split(bytes(data), where))
    assert isinstance(outcome, Broken) or 200 <= outcome[0] <= 599


@given(st.binary(max_size=300), cuts)
@settings(max_examples=500, deadline=None)
def test_noise_is_never_an_answer_by_accident(noise, where):
    outcome = fed(split(noise, where))
    assert isinstance(outcome, Broken) or noise.startswith(b"HTTP/1.1 ")
