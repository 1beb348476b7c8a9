"""The serving side of a connection: however bytes come, one request is one exchange, and damage ends in a refusal."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.common.http1.inline_task import InlineTasks
from agent.common.http1.request import ClientLeft, whole_response
from agent.common.http1.server import ServerConnection, Service
from tests.gateway.upstream import FakeTransport

pytestmark = pytest.mark.unit


class Wire(FakeTransport):
    """A transport that keeps the written bytes and refuses them after its end."""

    def __init__(self):
        super().__init__()
        self.sent = b""

    def write(self, data):
        assert not self.closing, "written behind the end"
        self.sent += data

    def close(self):
        self.closing = True

    def is_closing(self):
        return self.closing

    def set_protocol(self, protocol):
        """Keep the protocol: a refused connection reads no more of these bytes."""

    def can_write_eof(self):
        return False


class Served:
    """A connection whose service tells of each request in its answer."""

    def __init__(self):
        self.seen = []
        self.tasks = InlineTasks()
        service = Service(
            self._serve,
            keep_alive_seconds=60,
            refusal=lambda _, status, words: whole_response(status, [], words.encode()),
            tasks=self.tasks,
        )
        self.wire = Wire()
        self.connection = ServerConnection(asyncio.get_running_loop(), service)
        self.connection.connection_made(self.wire)

    async def _serve(self, exchange):
        body = b""
        try:
            while data := await exchange.read():
                body += data
        except ClientLeft:
            return
        self.seen.append((exchange.method, exchange.target, body))
        exchange.start(200, [(b"content-length", b"%d" % len(body))])
        exchange.finish(body)

    async def feed(self, pieces):
        for piece in pieces:
            if piece and not self.wire.closing:
                self.connection.data_received(piece)
        self.connection.connection_lost(None)
        await self.tasks.all_over(5)
        assert not self.tasks.under_way, "a task that does not end"


async def _fed(pieces):
    served = Served()
    await served.feed(pieces)
    return served


def fed(pieces):
    return asyncio.run(_fed(pieces))


def split(data, cuts):
    points = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *points], [*points, len(data)], strict=True)]


bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=5)
cuts = st.lists(st.integers(min_value=0, max_value=10_000), max_size=8)


def request(parts, *, chunked):
    head = b"POST /v1/x?y HTTP/1.1\r\nHost: h\r\nX: 1\r\n"
    if chunked:
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"
    body = b"".join(parts)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@given(bodies, cuts, st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_request_is_the_same_however_it_is_split(parts, where, chunked):
    served = fed(split(request(parts, chunked=chunked), where))
    body = b"".join(parts)
    assert served.seen == [("POST", b"/v1/x?y", body)]
    assert served.wire.sent.startswith(b"HTTP/1.1 200 OK\r\n")
    assert served.wire.sent.endswith(b"\r\n\r\n" + body)


@given(bodies, cuts, st.booleans())
@settings(max_examples=100, deadline=None)
def test_one_request_after_the_other_is_served_on_one_connection(parts, where, chunked):
    whole = request(parts, chunked=chunked)
    served = fed([*split(whole, where), *split(whole, where)])
    assert len(served.seen) == 2
    assert served.wire.sent.count(b"HTTP/1.1 200 OK\r\n") == 2


@given(bodies, st.booleans())
@settings(max_examples=50, deadline=None)
def test_a_request_that_is_sent_too_early_is_not_served_and_ends_the_connection(parts, chunked):
    whole = request(parts, chunked=chunked)
    served = fed([whole + whole])
    assert len(served.seen) == 1
    assert served.wire.closing


@given(bodies, cuts, st.booleans(), st.integers(min_value=1, max_value=10_000))
@settings(max_examples=100, deadline=None)
def test_a_request_cut_anywhere_is_never_served(parts, where, chunked, end):
    whole = request(parts, chunked=chunked)
    served = fed(split(whole[: -(end % len(whole)) or -1], where))
    assert served.seen == []


damages = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4)


@given(bodies, cuts, st.booleans(), damages)
@settings(max_examples=250, deadline=None)
def test_a_damaged_request_is_served_once_or_refused_or_cut(parts, where, chunked, damage):
    data = bytearray(request(parts, chunked=chunked))
    for position, value in damage:
        data[position % len(data)] = value
    served = fed(split(bytes(data), where))
    assert served.wire.sent.count(b"HTTP/1.1 200 OK\r\n") == len(served.seen)
    answers = {line for line in served.wire.sent.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")}
    assert answers <= {b"HTTP/1.1 200 OK", b"HTTP/1.1 400 Bad Request"}
    assert bool(answers) is bool(served.wire.sent)


@given(st.binary(max_size=300), cuts)
@settings(max_examples=250, deadline=None)
def test_noise_reaches_no_one(noise, where):
    served = fed(split(noise, where))
    assert len(served.seen) <= noise.count(b"\r\n\r\n")
