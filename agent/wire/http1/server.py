"""The serving side of an HTTP/1.1 connection: one exchange at a time, bytes as they come, both ways.

Strict: both framings at once, folded headers, bare line feeds, two hosts, other codings and oversized heads are
refused with 400 and the connection ends. Requests that are sent before the one before them was answered are not
answered: the connection closes, and the client sends them again.
"""

import asyncio
import http
from collections.abc import Callable, Coroutine
from typing import Any, cast

import httptools

Header = tuple[bytes, bytes]

MAX_HEAD_BYTES = 64 * 1024
HIGH_WATER_BYTES = 256 * 1024
LOW_WATER_BYTES = 64 * 1024
HEAD_SECONDS = 20.0
"""How long a head may take to come."""
_JOIN_BYTES = 32 * 1024
_UNDECIDED_BYTES = 4096
_STATUS = {
    status: f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase if status in set(http.HTTPStatus) else ''}\r\n".encode()
    for status in range(100, 600)
}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Left(Exception):
    """The client went away before its request was whole."""


class _Bad(Exception):
    """The request is not to be understood."""


class Exchange:
    """One request and its answer: `read` until b"", then `start`, `write`, `finish`."""

    __slots__ = (
        "_body_bytes",
        "_chunked",
        "_connection",
        "_expects",
        "_head",
        "_keep_alive",
        "_over",
        "_parts",
        "_waiter",
        "gone",
        "has_body",
        "headers",
        "method",
        "on_gone",
        "target",
        "whole",
    )

    def __init__(self, connection: "ServerConnection", method: str, target: bytes, headers: list[Header]) -> None:
        self._connection = connection
        self.method = method
        self.target = target
        self.headers = headers
        self.has_body = False
        self.whole = False
        self.gone = False
        self.on_gone: Callable[[], object] | None = None
        self._parts: list[bytes] = []
        self._body_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._head: bytes | None = None
        self._chunked = False
        self._keep_alive = True
        self._expects = False
        self._over = False

    @property
    def transport(self) -> asyncio.Transport:
        """The connection below."""
        return self._connection.transport

    # The request

    def take(self) -> bytes:
        """What of the body is here now, without waiting."""
        if not self._parts:
            return b""
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._body_bytes = 0
        self._connection.resume()
        return data

    async def read(self) -> bytes:
        """The next bytes of the body, b"" at its end. Raises Left."""
        while not self._parts:
            if self.whole:
                return b""
            if self.gone:
                raise Left
            if self._expects:
                self._expects = False
                self._connection.transport.write(_CONTINUE)
            await self._wait()
        return self.take()

    async def _wait(self) -> None:
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Something changed for whoever waits in `read` or `write`."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def feed(self, data: bytes) -> None:
        """A piece of the body came."""
        self._parts.append(data)
        self._body_bytes += len(data)
        if self._body_bytes > HIGH_WATER_BYTES:
            self._connection.pause()
        self.wake()

    def leave(self) -> None:
        """The client is gone; `on_gone` is told, unless the answer is over."""
        if self.gone or self._over:
            return
        self.gone = True
        self.wake()
        if self.on_gone is not None:
            self.on_gone()

    # The answer

    def start(self, status: int, headers: list[Header], *, close: bool = False) -> None:
        """Begin the answer. Without ``content-length`` it goes in chunks. The head leaves with the first bytes."""
        connection = self._connection
        framed = status in (204, 304) or self.method == "HEAD"
        lines = [_STATUS[status], connection.fixed]
        for name, value in headers:
            if name == b"content-length":
                framed = True
            lines += (name, b": ", value, b"\r\n")
        self._keep_alive = connection.may_keep(self) and not close
        if not framed and connection.is_old:
            self._keep_alive = False
        elif not framed:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self._keep_alive:
            lines.append(b"connection: close\r\n")
        elif connection.is_old:
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    def flush(self) -> None:
        """Send the head now."""
        if self._head is not None:
            head, self._head = self._head, None
            self._connection.transport.write(head)

    async def write(self, data: bytes) -> None:
        """Send bytes of the body; waits while the client takes no more. Bytes for a client that left go nowhere."""
        if not self.write_now(data):
            await self.ready()

    async def ready(self) -> None:
        """Wait while the client takes no more."""
        while self._connection.write_paused and not self.gone:
            await self._wait()

    def write_now(self, data: bytes) -> bool:
        """`write` without waiting: whether the client takes more."""
        if not data or self.gone or self._over or self.method == "HEAD":
            return True
        connection = self._connection
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head is not None:
            head, self._head = self._head, None
            if len(data) <= _JOIN_BYTES:
                data = head + data
            else:
                connection.transport.write(head)
        connection.transport.write(data)
        return not connection.write_paused

    def finish(self, data: bytes = b"") -> None:
        """The last bytes of the body, and its end."""
        if self._over or self.gone:
            self._over = True
            return
        if self.method == "HEAD":
            tail = b""
        elif not self._chunked:
            tail = data
        elif data:
            tail = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
        else:
            tail = b"0\r\n\r\n"
        if self._head is not None:
            head, self._head = self._head, None
            if len(tail) <= _JOIN_BYTES:
                tail = head + tail
            else:
                self._connection.transport.write(head)
        if tail:
            self._connection.transport.write(tail)
        self._over = True
        self._connection.finished(self, keep=self._keep_alive)

    def cut(self) -> None:
        """End the connection without the end of the answer: the client sees that bytes are missing."""
        if self._over:
            return
        self._over = True
        self.flush()
        self._connection.transport.close()

    # Set by the connection while the head is read

    def expect(self) -> None:
        """The client waits for a word before it sends the body."""
        self._expects = True


Serve = Callable[[Exchange], Coroutine[Any, Any, None]]


class Service:
    """What the connections of one server share: `serve` runs once a request, as a task in `tasks`."""

    def __init__(
        self,
        serve: Serve,
        *,
        keep_alive_seconds: float,
        refusal: Callable[[str], tuple[list[Header], bytes]],
        connections: set[Any] | None = None,
        tasks: set[asyncio.Task[None]] | None = None,
        fixed: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self.serve = serve
        self.keep_alive_seconds = keep_alive_seconds
        self.refusal = refusal
        self.connections: set[Any] = set() if connections is None else connections
        self.tasks: set[asyncio.Task[None]] = set() if tasks is None else tasks
        self.fixed = fixed
        self.own: set[ServerConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    def opened(self, connection: "ServerConnection") -> None:
        """A connection stands; one timer looks after all of them."""
        self.connections.add(connection)
        self.own.add(connection)
        if self._sweeper is None:
            self._sweeper = connection.loop.call_later(1.0, self._sweep, connection.loop)

    def closed(self, connection: "ServerConnection") -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        self.own.discard(connection)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in list(self.own):
            connection.look(now)
        self._sweeper = loop.call_later(1.0, self._sweep, loop) if self.own else None


def mine(first: bytes) -> bool | None:
    """Of a request's first bytes: every request is ours."""
    return True


class ServerConnection(asyncio.Protocol):
    """One connection of a `Service`. `route` says of a request's first bytes whether it is served here.

    It is asked before each request and gives None while the bytes are too few to tell. What is not served here goes,
    with the connection, to a protocol that `other` makes.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        service: Service,
        route: Callable[[bytes], bool | None] = mine,
        other: Callable[[], asyncio.Protocol] | None = None,
    ) -> None:
        self.loop = loop
        self._service = service
        self._route = route
        self._other = other
        self._early = b""
        self._served = False
        self._last = False
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._parser = httptools.HttpRequestParser(self)
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._url = b""
        self._headers: list[Header] = []
        self._head_bytes = 0
        self._in_head = False
        self._at = loop.time()
        self._reading = True
        self._closing = False
        self.write_paused = False
        self.is_old = False

    @property
    def fixed(self) -> bytes:
        """Header lines that every answer carries."""
        return self._service.fixed()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection stands."""
        self.transport = cast("asyncio.Transport", transport)
        self._service.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone."""
        self._service.closed(self)
        self._closing = True
        if self._exchange is not None:
            self._exchange.leave()

    def eof_received(self) -> bool:
        """asyncio: the client sends no more; it counts as gone."""
        if self._exchange is not None:
            self._exchange.leave()
        return False

    def pause_writing(self) -> None:
        """asyncio: the client takes no more for now."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """asyncio: the client takes more again."""
        self.write_paused = False
        if self._exchange is not None:
            self._exchange.wake()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came."""
        if self._closing:
            return
        if self._exchange is None and not self._in_head:
            if self._early:
                data, self._early = self._early + data, b""
            else:
                self._at = self.loop.time()
            ours = self._route(data)
            if ours is None and len(data) < _UNDECIDED_BYTES:
                self._early = data
                return
            if ours is False and self._other is not None:
                self._hand_over(self._other(), data)
                return
            self._in_head = True
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Another protocol was offered; the answer is HTTP/1.1 all the same, and the last on this connection.
            self._last = True
        except httptools.HttpParserError as error:
            cause = error.__context__ if isinstance(error.__context__, _Bad) else None
            self._refuse(str(cause) if cause else "The request is not valid HTTP/1.1.")
            return
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse("The head of the request is too large.")

    # httptools

    def on_message_begin(self) -> None:
        """httptools: a request begins."""
        if self._exchange is not None:
            self._closing = self._last = True  # sent too early; what stands is answered, then the connection ends
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """httptools: a piece of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header, or a trailer."""
        if not self._in_head and not self._closing:
            raise _Bad("Trailers are not taken.")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """httptools: the head is whole; its exchange begins."""
        if self._closing:
            return
        self._in_head = False
        self._head_bytes = 0
        exchange = Exchange(self, self._parser.get_method().decode(), self._url, self._headers)
        self.is_old = self._parser.get_http_version() != "1.1"
        hosts = 0
        for name, value in self._headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                exchange.has_body = value != b"0"
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked" or self.is_old:
                    raise _Bad("The body has a transfer coding other than chunked.")
                exchange.has_body = True
            elif name == b"expect" and value.lower() == b"100-continue":
                exchange.expect()
        if hosts != 1 and not (hosts == 0 and self.is_old):
            raise _Bad("The request names no host, or more than one.")
        self._exchange = exchange
        task = self._task = self.loop.create_task(self._service.serve(exchange))
        self._service.tasks.add(task)
        task.add_done_callback(self._service.tasks.discard)

    def on_body(self, data: bytes) -> None:
        """httptools: a piece of the body."""
        if self._exchange is not None and not self._closing:
            self._exchange.feed(data)

    def on_message_complete(self) -> None:
        """httptools: the request is whole."""
        if self._exchange is not None and not self._closing:
            self._exchange.whole = True
            self._exchange.wake()

    # The exchange, as it goes on

    def may_keep(self, exchange: Exchange) -> bool:
        """Whether the connection may stay open after this answer."""
        return not self._last and bool(self._parser.should_keep_alive())

    def finished(self, exchange: Exchange, *, keep: bool) -> None:
        """The answer was sent. A request that did not come whole ends the connection."""
        self._exchange = None
        self._at = self.loop.time()
        self.resume()
        self._served = True
        if not keep or self._last or not exchange.whole:
            self._closing = True
            self.transport.close()

    def pause(self) -> None:
        """Read no more of the body for now."""
        if self._reading and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if not self._reading:
            self._reading = True
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def look(self, now: float) -> None:
        """Close what was idle for too long, or does not come on with its head."""
        if self._exchange is not None:
            return
        limit = self._service.keep_alive_seconds
        if self._in_head or self._early:
            limit = HEAD_SECONDS
        elif not self._served:
            limit = max(limit, HEAD_SECONDS)
        if now - self._at > limit:
            self._closing = True
            self.transport.close()

    def shutdown(self) -> None:
        """The server ends: close when idle, else after the answer."""
        self._last = True
        if self._exchange is None:
            self._closing = True
            self.transport.close()

    def _hand_over(self, other: asyncio.Protocol, data: bytes) -> None:
        self._service.closed(self)
        self._closing = True
        self.transport.set_protocol(other)
        other.connection_made(self.transport)
        other.data_received(data)

    def _refuse(self, words: str) -> None:
        self._closing = self._last = True
        if self._exchange is not None:
            # The request in hand is broken, or what follows it is: nothing here can be trusted any more.
            self.transport.close()
            self._exchange.leave()
            return
        headers, body = self._service.refusal(words)
        lines = [_STATUS[400], self.fixed, *(b"%b: %b\r\n" % header for header in headers)]
        lines += (b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body), body)
        self.transport.write(b"".join(lines))
        self.transport.close()
