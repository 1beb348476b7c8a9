"""The serving side of an HTTP/1.1 connection: one exchange at a time, bytes as they come, both ways.

Strict: both framings at once, folded headers, bare line feeds, two hosts, other codings and oversized heads are
refused with 400 and the connection ends. Requests that are sent before the one before them was answered are not
answered: the connection closes, and the client sends them again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import httptools

from agent.wire.http1.exchange import STATUS_LINES, Exchange, Header
from agent.wire.http1.work import Work, Works

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 20.0
"""How long a head may take to come."""
_UNDECIDED_BYTES = 4096


class _Bad(Exception):
    """The request is not to be understood."""


Serve = Callable[[Exchange], Coroutine[Any, Any, None]]


class Service:
    """What the connections of one server share: `serve` runs once a request, as work, which is held in `works`."""

    def __init__(
        self,
        serve: Serve,
        *,
        keep_alive_seconds: float,
        refusal: Callable[[str], tuple[list[Header], bytes]],
        connections: set[Any] | None = None,
        works: "Works | set[Any]",
        fixed: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self.serve = serve
        self.keep_alive_seconds = keep_alive_seconds
        self.refusal = refusal
        self.connections: set[Any] = set() if connections is None else connections
        self.works = works
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
        self._begun = False
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
        exchange = self._exchange
        if exchange is None:
            if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
                self._refuse("The head of the request is too large.")
        elif self._begun:
            exchange.wake()
        else:
            self._begin(exchange)

    def _begin(self, exchange: Exchange) -> None:
        # Behind the parser's turn: most requests are whole by now, and are served in one go.
        self._begun = True
        service = self._service
        work = Work(service.serve(exchange), service.works.discard)
        service.works.add(work)
        work.begin()

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
        if self._in_head:
            self._headers.append((name.lower(), value))
        elif not self._closing:
            raise _Bad("Trailers are not taken.")

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
        self._begun = False

    def on_body(self, data: bytes) -> None:
        """httptools: a piece of the body."""
        if self._exchange is not None and not self._closing:
            self._exchange.feed(data)

    def on_message_complete(self) -> None:
        """httptools: the request is whole."""
        if self._exchange is not None and not self._closing:
            self._exchange.whole = True

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
        if self._exchange is not None and self._begun:
            # The request in hand is broken, or what follows it is: nothing here can be trusted any more.
            self.transport.close()
            self._exchange.leave()
            return
        headers, body = self._service.refusal(words)
        lines = [STATUS_LINES[400], self.fixed, *(b"%b: %b\r\n" % header for header in headers)]
        lines += (b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body), body)
        self.transport.write(b"".join(lines))
        self.transport.close()
