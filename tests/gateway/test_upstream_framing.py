"""Answers that the client towards agents reads: strict HTTP alone, however its bytes come."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.common.http1.client import ClientConnection, ConnectionBroken, UpstreamError
from tests.gateway.upstream import CHUNKED, REQUEST, FakeTransport, fetch, says, served

pytestmark = pytest.mark.unit


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
        with pytest.raises(ConnectionBroken):
            await fetch(pool)


async def _fed(pieces):
    """Return the (status, body) or the error of a connection that receives `pieces` and the end of the stream."""
    connection = ClientConnection(asyncio.get_running_loop())
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
    assert isinstance(fed(split(whole[: -(end % len(whole)) or -1], where)), ConnectionBroken)


@given(bodies, cuts, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=500, deadline=None)
def test_a_damaged_answer_gives_an_answer_or_the_named_error(parts, where, damage):
    data = bytearray(chunked(parts))
    for position, value in damage:
        data[position % len(data)] = value
    outcome = fed(split(bytes(data), where))
    status, body = (200, b"") if isinstance(outcome, ConnectionBroken) else outcome
    assert 200 <= status <= 599
    assert len(body) <= len(data)


@given(st.binary(max_size=300), cuts)
@settings(max_examples=500, deadline=None)
def test_noise_is_never_an_answer_by_accident(noise, where):
    is_answer = not isinstance(fed(split(noise, where)), ConnectionBroken)
    assert is_answer <= noise.startswith(b"HTTP/1.1 ")
