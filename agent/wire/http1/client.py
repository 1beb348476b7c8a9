"""One HTTP/1.1 connection to a server of ours or to an engine: a strict client protocol that fails closed.

A response must be framed by Content-Length or by chunks and must end as it said it would. Interim answers, upgrades,
trailers, oversized heads and bytes that nobody asked for are errors; httptools in its strict mode refuses the rest
(both framings at once, folded headers, bare line feeds, malformed chunks).
"""

import asyncio
from collections.abc import Callable
from typing import Any, Literal, cast

import httptools

from agent.wire.http1.work import Waiter

MAX_HEAD_BYTES = 64 * 1024
HIGH_WATER_BYTES = 256 * 1024
LOW_WATER_BYTES = 64 * 1024
STALE_WITHIN_SECONDS = 5.0
"""A kept connection that ends untouched so soon was closed before the request came: more than a held-up loop takes."""
LAST_CHANCE_SECONDS = 0.05
_JOIN_BYTES = 16 * 1024


class UpstreamError(Exception):
    """The exchange with the server did not end as HTTP says it should."""


class ConnectFailed(UpstreamError):
    """No connection, or its TLS handshake failed."""


class Broken(UpstreamError):
    """The connection ended early, or what came is not valid. `untouched`: not one byte of an answer had come."""

    def __init__(self, detail: str, *, untouched: bool = False) -> None:
        super().__init__(detail)
        self.untouched = untouched


class TimedOut(UpstreamError):
    """Silence for longer than is allowed, before the head or between bytes."""


class Connection(asyncio.Protocol):
    """Carries one exchange at a time: `begin`, `head`, `read` until it gives b"", then back to the pool.

    Nothing is read ahead beyond `HIGH_WATER_BYTES`: a reader that does not come stops the peer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._parser = httptools.HttpResponseParser(self)
        self._waiter = Waiter()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._overdue = False
        self._error: UpstreamError | None = None
        self._state: Literal["idle", "head", "body", "done", "dead"] = "idle"
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._head_bytes = 0
        self._any_byte = False
        self._sink: Callable[[bytes], bool] | None = None
        self._paused = False
        self._sending = False
        self._chunked = False
        self._write_paused = False
        self._keep_alive = False
        self._limit_seconds = 0.0
        self._quiet_since = 0.0
        self.served = 0
        self.idle_since = loop.time()
        self.on_lost: Any = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []

    # The exchange, as the gateway uses it

    def begin(self, head: bytes, body: bytes, *, more: bool = False, chunked: bool = False) -> None:
        """Send a request. The head is complete, with its Content-Length, or with ``chunked`` as its coding.

        With `more` the body goes on: `send`, then `end`.
        """
        self._state = "head"
        self._sending, self._chunked = more, chunked
        self._buffer.clear()
        self._buffered = self._head_bytes = self.status = 0
        self._any_byte = self._keep_alive = False
        self.headers = []
        self.served += 1
        self._quiet_since = self._loop.time()
        if chunked:
            body = _chunk(body)
        if len(body) <= _JOIN_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    async def send(self, data: bytes) -> bool:
        """Send the next piece of the body when the server takes more. False: its answer is here already."""
        while self._write_paused and self._state == "head":
            self._watch()
            await self._waiter
        if self._state != "head":
            return False
        self._transport.write(_chunk(data) if self._chunked else data)
        return True

    def end(self) -> None:
        """The body is sent."""
        self._sending = False
        if self._chunked and self._state != "dead":
            self._transport.write(b"0\r\n\r\n")

    async def head(self, limit_seconds: float) -> None:
        """Wait for the head; `status` and `headers` (names in lower case) are set then. Raises UpstreamError."""
        self._limit_seconds = limit_seconds
        while self._state == "head":
            self._watch()
            await self._waiter
        if self._state == "dead" and self._error is not None and not self.status:
            raise self._error

    def take(self) -> bytes:
        """What of the body is here now, without waiting; b"" when that is nothing."""
        return self._drain() if self._buffer else b""

    async def stream(self, sink: Callable[[bytes], bool], limit_seconds: float) -> None:
        """Give `sink` each piece as it comes, without a task's turn for each of them.

        It ends when the answer is whole, or when `sink` gives False because it takes no more for now; what is here then
        is left for `take`. Raises UpstreamError.
        """
        self._limit_seconds = limit_seconds
        if self._buffer or self._state == "done":
            return
        self._sink = sink
        self._watch()
        try:
            await self._waiter
        finally:
            self._sink = None
        if self._error is not None and not self._buffer:
            raise self._error

    async def read(self, limit_seconds: float) -> bytes:
        """The next bytes of the body as they came, b"" at its end. Raises UpstreamError when it was cut short."""
        self._limit_seconds = limit_seconds
        while not self._buffer:
            if self._state == "done":
                return b""
            if self._error is not None:
                raise self._error
            self._watch()
            await self._waiter
        return self._drain()

    def _drain(self) -> bytes:
        data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        self._buffer.clear()
        self._buffered = 0
        if self._paused and self._state == "body":
            self._paused = False
            self._transport.resume_reading()
        return data

    @property
    def reusable(self) -> bool:
        """Whether another exchange may follow on this connection."""
        return (
            self._state == "done"
            and self._keep_alive
            and not self._sending
            and not self._buffer
            and not self._transport.is_closing()
        )

    @property
    def done(self) -> bool:
        """Whether the whole answer is here; with `take` giving b"" it is also read."""
        return self._state == "done"

    @property
    def alive(self) -> bool:
        """Whether the connection is idle and, for all that is known, open."""
        return self._state == "idle" and not self._transport.is_closing()

    def rest(self) -> None:
        """Mark a finished exchange as over; the connection is idle again."""
        # The timer stays: it ends by itself, and to make one for each short exchange would cost more.
        self._state = "idle"
        self.idle_since = self._loop.time()

    def abort(self) -> None:
        """Close at once, whatever is going on; whoever waits gets Broken."""
        self._fail(Broken("the connection was closed on this side"))

    # Waiting and time-outs

    def _watch(self) -> None:
        self._quiet_since = self._loop.time()
        self._overdue = False
        due = self._quiet_since + self._limit_seconds
        if self._timer is None or self._timer_due > due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_due = self._loop.call_later(self._limit_seconds, self._tick), due

    def _tick(self) -> None:
        # One timer a connection, moved lazily: re-arming it for every event would cost more than the event.
        self._timer = None
        if not self._waiter.waited_for:
            return
        now = self._loop.time()
        left = self._quiet_since + self._limit_seconds - now
        if left > 0:
            self._overdue = False
            self._timer, self._timer_due = self._loop.call_later(left, self._tick), now + left
        elif not self._overdue:
            # A loop that was held up runs its timers first: what came meanwhile is read before anyone is called silent.
            self._overdue = True
            self._timer, self._timer_due = self._loop.call_later(LAST_CHANCE_SECONDS, self._tick), now
        else:
            self._fail(TimedOut("the engine was silent for too long"))

    def _fail(self, error: UpstreamError) -> None:
        if self._state == "dead":
            return
        if self._state != "done":
            self._error = error
            self._state = "dead"
        self._keep_alive = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        self._loop.call_soon(self._waiter.wake)  # who aborts may be amid something

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection, TLS included, stands."""
        self._transport = cast("asyncio.Transport", transport)

    def pause_writing(self) -> None:
        """asyncio: the server takes no more for now."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """asyncio: the server takes more again."""
        self._write_paused = False
        self._waiter.wake()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        if self._state not in ("head", "body"):
            self._fail(Broken("bytes came that nobody asked for"))
            return
        self._any_byte = True
        if self._state == "head":
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__ if isinstance(error.__context__, UpstreamError) else None
            self._fail(cause or Broken(f"not valid HTTP: {error}"))
            return
        if self._state == "head":
            # What the parser has not yet told of, too: one line without an end.
            if self._head_bytes > MAX_HEAD_BYTES:
                self._fail(Broken("the head of the answer is too large"))
        elif self._sink is None or self._state != "body":
            self._waiter.wake()
        elif self._buffer:
            self._quiet_since = self._loop.time()
            if not self._sink(self._drain()):
                self._sink = None
                self._waiter.wake()

    def eof_received(self) -> bool:
        """asyncio: the peer will send no more."""
        self._lost()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone."""
        self._lost()
        if self.on_lost is not None:
            self.on_lost(self)

    def _lost(self) -> None:
        self._fail(Broken("the connection ended before the answer did", untouched=not self._any_byte))

    # httptools

    def on_message_begin(self) -> None:
        """httptools: the first byte of a message; a second message is one too many."""
        if self._state != "head" or self.status:
            raise Broken("more than one answer came")

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header, or a trailer when the body has begun."""
        if self._state != "head":
            raise Broken("trailers came")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """httptools: the head is whole."""
        status = self._parser.get_status_code()
        if not 200 <= status <= 599:
            raise Broken(f"an answer with status {status} came")
        if self._parser.get_http_version() != "1.1":
            raise Broken("the answer is not HTTP/1.1")
        if self._head_bytes > MAX_HEAD_BYTES and sum(len(n) + len(v) for n, v in self.headers) > MAX_HEAD_BYTES:
            raise Broken("the head of the answer is too large")
        found = dict(self.headers)
        if b"transfer-encoding" in found:
            codings = [value for name, value in self.headers if name == b"transfer-encoding"]
            if len(codings) > 1 or codings[0].strip().lower() != b"chunked":
                raise Broken("the answer has a transfer coding other than chunked")
        elif b"content-length" not in found and status not in (204, 304):
            raise Broken("the answer says neither its length nor that it comes in chunks")
        self.status = status
        self._keep_alive = self._parser.should_keep_alive()
        self._state = "body"

    def on_body(self, data: bytes) -> None:
        """httptools: a piece of the body, without the marks of its chunks."""
        self._buffer.append(data)
        self._buffered += len(data)
        if self._buffered > HIGH_WATER_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """httptools: the body ended as announced."""
        self._state = "done"
        if self._paused:
            self._paused = False
            self._transport.resume_reading()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
