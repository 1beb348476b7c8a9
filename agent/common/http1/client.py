"""A client connection of HTTP/1.1 to an agent or an engine: a strict protocol that fails closed.

A response must be framed by Content-Length or by chunks, and must end as announced. Interim responses, upgrades,
trailers, oversized heads and unsolicited bytes are errors; httptools in strict mode rejects the rest (both framings at
once, folded headers, bare line feeds, malformed chunks).
"""

import asyncio
import select
from collections.abc import Callable
from typing import Any, Literal, cast

import httptools

from agent.common.http1.inline_task import Waiter

MAX_HEAD_BYTES = 64 * 1024
HIGH_WATER_BYTES = 256 * 1024
LOW_WATER_BYTES = 64 * 1024
STALE_WITHIN_SECONDS = 5.0
"""A kept connection that ends untouched within this time was closed before the request arrived. Longer than an event
loop may stall.
"""
LAST_CHANCE_SECONDS = 0.05
_JOIN_BYTES = 16 * 1024


class UpstreamError(Exception):
    """The response of the server violates HTTP, or did not arrive whole."""


class ConnectFailed(UpstreamError):
    """The connection or its TLS handshake failed."""


class ConnectionBroken(UpstreamError):
    """The connection ended early, or the data is invalid. `untouched`: no byte of a response had arrived."""

    def __init__(self, detail: str, *, untouched: bool = False) -> None:
        super().__init__(detail)
        self.untouched = untouched


class TimedOut(UpstreamError):
    """No data arrived within the limit, before the head or between bytes."""


class ClientConnection(asyncio.Protocol):
    """Carries one request at a time: `begin`, `head`, `read` until b"", then back to the pool.

    Nothing is read ahead beyond `HIGH_WATER_BYTES`: a slow reader stops the peer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._parser = httptools.HttpResponseParser(self)
        self._waiter = Waiter()
        self._hang_up_poll: select.poll | None = None
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

    # The request, as the gateway uses it

    def begin(self, head: bytes, body: bytes, *, more: bool = False, chunked: bool = False) -> None:
        """Send a request. The head is complete, with its Content-Length, or with ``chunked`` as its coding.

        With `more` the body continues: call `send`, then `end`.
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
        """Send the next piece of the body when the server accepts more. Return False when its response has started."""
        while self._write_paused and self._state == "head":
            self._watch()
            await self._waiter
        if self._state != "head":
            return False
        self._transport.write(_chunk(data) if self._chunked else data)
        return True

    def end(self) -> None:
        """End the body of the request."""
        self._sending = False
        if self._chunked and self._state != "dead":
            self._transport.write(b"0\r\n\r\n")

    async def head(self, limit_seconds: float) -> None:
        """Wait for the head, then `status` and `headers` (names in lower case) are set. Raises UpstreamError."""
        self._limit_seconds = limit_seconds
        while self._state == "head":
            self._watch()
            await self._waiter
        if self._state == "dead" and self._error is not None and not self.status:
            raise self._error

    def take(self) -> bytes:
        """Return the part of the body that has arrived, without waiting; b"" for none."""
        return self._drain() if self._buffer else b""

    async def stream(self, sink: Callable[[bytes], bool], limit_seconds: float) -> None:
        """Pass each piece to `sink` as it arrives, without a turn of the event loop for each.

        Returns when the response is whole, or when `sink` returns False because it accepts no more for now; the rest is
        left for `take`. Raises UpstreamError.
        """
        self._limit_seconds = limit_seconds
        if self._buffer or self._state == "done":
            return
        if self._error is not None:
            # It broke while the last piece was being taken, when nobody waited: no wake comes after it.
            raise self._error
        self._sink = sink
        self._watch()
        try:
            await self._waiter
        finally:
            self._sink = None
        if self._error is not None and not self._buffer:
            raise self._error

    async def read(self, limit_seconds: float) -> bytes:
        """Return the next bytes of the body, b"" at its end. Raises UpstreamError for a body that is cut short."""
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
        """Return whether the connection can carry another request."""
        return (
            self._state == "done"
            and self._keep_alive
            and not self._sending
            and not self._buffer
            and not self._transport.is_closing()
        )

    @property
    def is_chunked(self) -> bool:
        """Return whether the body of the present response arrives in chunks."""
        return any(name == b"transfer-encoding" for name, _ in self.headers)

    @property
    def done(self) -> bool:
        """Return whether the whole response has arrived; it is also read once `take` returns b""."""
        return self._state == "done"

    @property
    def alive(self) -> bool:
        """Return whether the connection is idle and open.

        The kernel is asked: an end of the peer that this loop has not read yet would take the next request with it, and
        nobody could tell whether the peer had received it.
        """
        return self._state == "idle" and not self._transport.is_closing() and not self._has_hung_up()

    def _has_hung_up(self) -> bool:
        poll = self._hang_up_poll
        return poll is not None and bool(poll.poll(0))

    def rest(self) -> None:
        """Mark the request as finished; the connection is idle again."""
        # The timer stays: it expires by itself, and a timer for each short request costs more.
        self._state = "idle"
        self.idle_since = self._loop.time()

    def abort(self) -> None:
        """Close at once; a waiting caller receives ConnectionBroken."""
        self._fail(ConnectionBroken("the connection was closed on this side"))

    # Waiting and timeouts

    def _watch(self) -> None:
        self._quiet_since = self._loop.time()
        self._overdue = False
        due = self._quiet_since + self._limit_seconds
        if self._timer is None or self._timer_due > due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_due = self._loop.call_later(self._limit_seconds, self._tick), due

    def _tick(self) -> None:
        # One timer per connection, moved lazily: re-arming it for every event would cost more than the event.
        self._timer = None
        if not self._waiter.waited_for:
            return
        now = self._loop.time()
        left = self._quiet_since + self._limit_seconds - now
        if left > 0:
            self._overdue = False
            self._timer, self._timer_due = self._loop.call_later(left, self._tick), now + left
        elif not self._overdue:
            # A stalled loop runs its timers first: read the bytes that arrived meanwhile before the time is over.
            self._overdue = True
            self._timer, self._timer_due = self._loop.call_later(LAST_CHANCE_SECONDS, self._tick), now
        else:
            self._fail(TimedOut("no data arrived within the limit"))

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
        self._loop.call_soon(self._waiter.wake)  # the caller of abort may be in the middle of a callback

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a new connection, TLS included (asyncio)."""
        self._transport = cast("asyncio.Transport", transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.fileno() >= 0:
            self._hang_up_poll = select.poll()
            self._hang_up_poll.register(raw.fileno(), select.POLLRDHUP)

    def pause_writing(self) -> None:
        """Handle a full send buffer (asyncio)."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Handle a drained send buffer (asyncio)."""
        self._write_paused = False
        self._waiter.wake()

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the peer (asyncio)."""
        if self._state not in ("head", "body"):
            self._fail(ConnectionBroken("unexpected bytes arrived"))
            return
        self._any_byte = True
        if self._state == "head":
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__ if isinstance(error.__context__, UpstreamError) else None
            self._fail(cause or ConnectionBroken(f"not valid HTTP: {error}"))
            return
        if self._state == "head":
            # Bytes that the parser has not reported yet count too: a single line without an end.
            if self._head_bytes > MAX_HEAD_BYTES:
                self._fail(ConnectionBroken("the head of the response is too large"))
        elif self._sink is None or self._state != "body":
            self._waiter.wake()
        elif self._buffer:
            self._quiet_since = self._loop.time()
            if not self._sink(self._drain()):
                self._sink = None
                self._waiter.wake()

    def eof_received(self) -> bool:
        """Handle the end of the peer's data (asyncio)."""
        self._lost()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection (asyncio)."""
        self._lost()
        if self.on_lost is not None:
            self.on_lost(self)

    def _lost(self) -> None:
        self._fail(ConnectionBroken("the connection closed before the response ended", untouched=not self._any_byte))

    # httptools

    def on_message_begin(self) -> None:
        """Handle the first byte of a message; a second message is an error (httptools)."""
        if self._state != "head" or self.status:
            raise ConnectionBroken("more than one response arrived")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header, or a trailer after the start of the body (httptools)."""
        if self._state != "head":
            raise ConnectionBroken("the response has trailers")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Handle the end of the head (httptools)."""
        status = self._parser.get_status_code()
        if not 200 <= status <= 599:
            raise ConnectionBroken(f"the response has status {status}")
        if self._parser.get_http_version() != "1.1":
            raise ConnectionBroken("the response is not HTTP/1.1")
        if self._head_bytes > MAX_HEAD_BYTES and sum(len(n) + len(v) for n, v in self.headers) > MAX_HEAD_BYTES:
            raise ConnectionBroken("the head of the response is too large")
        found = dict(self.headers)
        if b"transfer-encoding" in found:
            codings = [value for name, value in self.headers if name == b"transfer-encoding"]
            if len(codings) > 1 or codings[0].strip().lower() != b"chunked":
                raise ConnectionBroken("the response has a transfer coding other than chunked")
        elif b"content-length" not in found and status not in (204, 304):
            raise ConnectionBroken("the response has neither Content-Length nor chunked coding")
        self.status = status
        self._keep_alive = self._parser.should_keep_alive()
        self._state = "body"

    def on_body(self, data: bytes) -> None:
        """Handle a piece of the body, without chunk framing (httptools)."""
        self._buffer.append(data)
        self._buffered += len(data)
        if self._buffered > HIGH_WATER_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Handle the announced end of the body (httptools)."""
        self._state = "done"
        if self._paused:
            self._paused = False
            self._transport.resume_reading()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
