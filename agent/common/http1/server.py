"""A server connection of HTTP/1.1: one request at a time, bytes streamed both ways.

Strict: both framings at once, folded headers, bare line feeds, two hosts, other codings and oversized heads are refused
with 400, and the connection closes. Offers of another protocol are ignored. Pipelined requests are not answered: the
connection closes, and the client sends them again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import httptools

from agent.common.http1.half_closed import HalfClosedWatch
from agent.common.http1.inline_task import InlineTask, InlineTasks
from agent.common.http1.overflow import Overflow
from agent.common.http1.request import Header, ServerRequest
from agent.common.http1.sockets import SocketLimit
from agent.common.http1.target import refused_target
from agent.common.http1.upgrade import plain_head

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 200
HEAD_SECONDS = 20.0
"""Time within which a head must be complete."""
_UNDECIDED_BYTES = 4096


class _Bad(Exception):
    """The request cannot be understood."""


Serve = Callable[[ServerRequest], Coroutine[Any, Any, None]]
Refusal = Callable[[bytes, int, str], bytes]
"""Returns the whole response to a target (b"" if it is unknown), a status and a sentence; the connection closes."""


class Service:
    """State that the connections of one server share. `serve` runs once per request, as an inline task in `tasks`.

    With `half_closed`, a client that ends its side after the request still gets the response. `sockets` limits the
    connections of an address; those beyond, and refused requests, end in `overflow`.
    """

    def __init__(
        self,
        serve: Serve,
        *,
        keep_alive_seconds: float,
        refusal: Refusal,
        connections: set[Any] | None = None,
        tasks: "InlineTasks | set[Any]",
        fixed: Callable[[], bytes] = lambda: b"",
        half_closed: bool = False,
        sockets: SocketLimit | None = None,
        overflow: Overflow | None = None,
    ) -> None:
        self.serve = serve
        self.keep_alive_seconds = keep_alive_seconds
        self.refusal = refusal
        self.connections: set[Any] = set() if connections is None else connections
        self.tasks = tasks
        self.fixed = fixed
        self.half_closed = half_closed
        self.sockets = sockets
        self.overflow = overflow or Overflow(lambda target: refusal(target, 503, "Too many connections."))
        self.own: set[ServerConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    def opened(self, connection: "ServerConnection") -> None:
        """Add a connection; one timer checks all of them."""
        self.connections.add(connection)
        self.own.add(connection)
        if self._sweeper is None:
            self._sweeper = connection.loop.call_later(1.0, self._sweep, connection.loop)

    def closed(self, connection: "ServerConnection") -> None:
        """Remove a connection."""
        self.connections.discard(connection)
        self.own.discard(connection)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in list(self.own):
            connection.close_if_stale(now)
        self._sweeper = loop.call_later(1.0, self._sweep, loop) if self.own else None


def any_request(first: bytes) -> bool | None:
    """Route every request to this server."""
    return True


class ServerConnection(asyncio.Protocol):
    """One connection of a `Service`. `route` decides from a request's first bytes whether it is served here.

    `route` is called before each request and returns None while the bytes are too few to decide. A request for others
    is handed over, with the connection, to a protocol that `other` creates.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        service: Service,
        route: Callable[[bytes], bool | None] = any_request,
        other: Callable[[], asyncio.Protocol] | None = None,
    ) -> None:
        self.loop = loop
        self._service = service
        self._route = route
        self._other = other
        self._early = b""
        self._served = False
        self.used = False
        self._last = False
        self._keeps = True
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._parser = httptools.HttpRequestParser(self)
        self._request: ServerRequest | None = None
        self._begun = False
        self._url = b""
        self._headers: list[Header] = []
        self._head_bytes = 0
        self._head_size = 0
        self._in_head = False
        self._address = ""
        self._half_closed: HalfClosedWatch | None = None
        self._at = loop.time()
        self._reading = True
        self._closing = False
        self.write_paused = False
        self.is_http10 = False

    @property
    def fixed(self) -> bytes:
        """Header lines of every response."""
        return self._service.fixed()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a new connection (asyncio)."""
        self.transport = cast("asyncio.Transport", transport)
        self._service.opened(self)
        if (sockets := self._service.sockets) is not None:
            self._address = str((transport.get_extra_info("peername") or ("",))[0])
            if not sockets.enter(self._address, self):
                self._closing = True
                self._forget()
                self._service.overflow.refuse(self.loop, self.transport, self._service.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection (asyncio)."""
        self._forget()
        self._closing = True
        if self._half_closed is not None:
            self._half_closed.stop()
        if self._request is not None:
            self._request.leave()

    def eof_received(self) -> bool:
        """Handle the end of the client's data: it waits for the response, or it is gone (asyncio)."""
        request = self._request
        if request is None:
            return False
        if not self._service.half_closed or not request.whole or self.write_paused or not request.probe():
            request.leave()
            return False
        self._last = True
        self._half_closed = HalfClosedWatch(self.loop, self.transport)
        return True

    def pause_writing(self) -> None:
        """Handle a full send buffer (asyncio)."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """Handle a drained send buffer (asyncio)."""
        self.write_paused = False
        if self._request is not None:
            self._request.wake()

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client (asyncio)."""
        if self._closing:
            return
        if self._request is None and not self._in_head:
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
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if not self._closing:
                self._decline(data[offer.args[0] :])
                return
        except httptools.HttpParserError as error:
            cause = error.__context__ if isinstance(error.__context__, _Bad) else None
            if self._in_head:
                self._url = refused_target(error, self._url, data)
            self._refuse(str(cause) if cause else "The request is not valid HTTP/1.1.")
            return
        request = self._request
        if request is None:
            if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
                self._refuse("The head of the request is too large.")
        elif self._begun:
            request.wake()
        else:
            self._begin(request)

    def _decline(self, rest: bytes) -> None:
        """Read the request again without its offer of another protocol; `rest` follows its head."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse("CONNECT is not supported.")
            return
        head = plain_head(method, self._url, self._parser.get_http_version(), self._headers)
        self._parser = httptools.HttpRequestParser(self)
        self._feed(head + rest)

    def _begin(self, request: ServerRequest) -> None:
        # After the parser has returned: most requests are whole by now, and are served in one go.
        self._begun = True
        service = self._service
        task = InlineTask(service.serve(request), service.tasks.discard)
        service.tasks.add(task)
        task.begin()

    # httptools

    def on_message_begin(self) -> None:
        """Handle the start of a request (httptools)."""
        if self._request is not None:
            self._closing = self._last = True  # pipelined: answer the current request, then close
        self._url = b""
        self._headers = []
        self._head_size = 0

    def on_url(self, url: bytes) -> None:
        """Handle a piece of the target (httptools)."""
        self._url += url
        self._head_size += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header, or a trailer (httptools)."""
        if self._in_head:
            self._headers.append((name.lower(), value))
            self._head_size += len(name) + len(value) + 4
        elif not self._closing:
            raise _Bad("Trailers are not supported.")

    def on_headers_complete(self) -> None:
        """Handle the end of the head: the request begins (httptools)."""
        if self._closing:
            return
        if self._head_size > MAX_HEAD_BYTES or len(self._headers) > MAX_HEADERS:
            raise _Bad("The head of the request is too large.")
        if self._parser.should_upgrade():
            return  # the parser skips the body now; the head is read again without the offer
        self._in_head = False
        self._head_bytes = 0
        self._keeps = bool(self._parser.should_keep_alive())  # later the parser has forgotten
        request = ServerRequest(self, self._parser.get_method().decode(), self._url, self._headers)
        self.is_http10 = self._parser.get_http_version() != "1.1"
        hosts = 0
        for name, value in self._headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                request.has_body = value != b"0"
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked" or self.is_http10:
                    raise _Bad("The body has a transfer coding other than chunked.")
                request.has_body = True
            elif name == b"expect" and value.lower() == b"100-continue":
                request.expect()
        if hosts != 1 and not (hosts == 0 and self.is_http10):
            raise _Bad("The request must have exactly one Host header.")
        self._request = request
        self._begun = False

    def on_body(self, data: bytes) -> None:
        """Handle a piece of the body (httptools)."""
        if self._request is not None and not self._closing:
            self._request.feed(data)

    def on_message_complete(self) -> None:
        """Handle the end of the request (httptools)."""
        if self._request is not None and not self._closing:
            self._request.whole = True

    # The request in progress

    def may_keep(self, request: ServerRequest) -> bool:
        """Return whether the connection may stay open after this response."""
        return not self._last and self._keeps

    def finished(self, request: ServerRequest, *, keep: bool) -> None:
        """Note that the response was sent. A request that did not arrive whole closes the connection."""
        self._request = None
        self._at = self.loop.time()
        self.resume()
        self._served = self.used = True
        if not keep or self._last or not request.whole:
            self._closing = True
            self.transport.close()

    def pause(self) -> None:
        """Stop reading the body for now."""
        if self._reading and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def resume(self) -> None:
        """Continue reading."""
        if not self._reading:
            self._reading = True
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def close_if_stale(self, now: float) -> None:
        """Close the connection when it was idle for too long, or its head is incomplete for too long."""
        if self._request is not None:
            return
        limit = self._service.keep_alive_seconds
        if self._in_head or self._early:
            limit = HEAD_SECONDS
        elif not self._served:
            limit = max(limit, HEAD_SECONDS)
        if now - self._at <= limit or self._closing:
            return
        if self._in_head:
            self._refuse("The head of the request did not arrive in time.", 408)
        else:
            self._closing = True
            self.transport.close()

    def close_idle(self) -> bool:
        """Close the connection if no request is in progress. Return whether it was closed."""
        if self._request is not None:
            return False
        self._closing = True
        self.transport.close()
        return True

    def _forget(self) -> None:
        self._service.closed(self)
        if self._service.sockets is not None:
            self._service.sockets.leave(self._address, self)

    def shutdown(self) -> None:
        """Close the connection now when it is idle, else after its response."""
        self._last = True
        if self._request is None:
            self._closing = True
            self.transport.close()

    def _hand_over(self, other: asyncio.Protocol, data: bytes) -> None:
        self._forget()
        self._closing = True
        self.transport.set_protocol(other)
        other.connection_made(self.transport)
        other.data_received(data)

    def _refuse(self, words: str, status: int = 400) -> None:
        """Refuse the request in progress, unless its response has begun, and close the connection.

        Nothing on this connection can be trusted any more.
        """
        self._closing = self._last = True
        request = self._request
        if request is None or not request.started:
            self.transport.write(self._service.refusal(self._url, status, words))
            self.resume()
            self._forget()
            self._service.overflow.linger(self.loop, self.transport, self._service.connections)
        else:
            self.transport.close()
        if request is not None and self._begun:
            request.leave()
