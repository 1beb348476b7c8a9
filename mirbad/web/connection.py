"""The connection of pages and `/api`: uvicorn's own protocol, strict and with limits in front of every request.

Heads have a size and a time, bodies a pace; trailers, second hosts and foreign transfer codings are refused; offers of
another protocol than the websocket are ignored; a client that ends its side of the connection still gets its response.
"""

import asyncio
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from agent.common.http1.half_closed import CHUNK_START, STATUS_START, HalfClosedWatch
from agent.common.http1.server import HEAD_SECONDS, MAX_HEAD_BYTES, MAX_HEADERS
from agent.common.http1.sockets import SocketLimit
from agent.common.http1.target import path_of, refused_target
from agent.common.http1.upgrade import plain_head
from mirbad.web.refusals import Refusals

BODY_FIRST_SECONDS = 20.0
BODY_BYTES_PER_SECOND = 4096
BODY_TOTAL_SECONDS = 120.0


def _is_v1(target: bytes) -> bool:
    return path_of(target).lstrip(b"/").startswith(b"v1/")


class _Unacceptable(Exception):
    """The request cannot be accepted."""


class _AfterStart:
    """A transport that leaves out the start of the response, which was sent already."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._left = len(STATUS_START)

    def write(self, data: bytes) -> None:
        """Send `data` without the part that was sent."""
        left, self._left = self._left, 0
        self._transport.write(data[left:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class PageConnection(HttpToolsProtocol):
    """One connection to pages, `/api` and, after a request for these, `/v1`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        sockets: SocketLimit | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._sockets = sockets
        self._refusals = refusals or Refusals()
        self._address = ""
        self._half_closed: HalfClosedWatch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.used = False
        self._refused = False
        self._is_websocket = False
        self._in_head = True
        self._head_bytes = self._head_size = 0
        self._has_body = False
        self._body_at, self._received = 0.0, 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Handle a new connection (asyncio)."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        if self._sockets is not None and not self._sockets.enter(self._address, self):
            self._refused = True
            self.connections.discard(self)
            self._refusals.overflow.refuse(self.loop, transport, self.connections)
            return
        self._arm(max(HEAD_SECONDS, self.timeout_keep_alive), self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection (asyncio)."""
        self._leave()
        super().connection_lost(exc)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Handle the end of the client's data: it waits for the response, or it is gone (asyncio)."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self._refused or not self._probe():
            return None
        cycle.keep_alive = False
        self._half_closed = HalfClosedWatch(self.loop, self.transport)
        return True

    def _probe(self) -> bool:
        cycle = self.cycle
        if not cycle.response_started:
            self.transport.write(STATUS_START)
            cycle.transport = cast("asyncio.Transport", _AfterStart(self.transport))
        elif cycle.chunked_encoding:
            self.transport.write(CHUNK_START)
        else:
            return False
        return True

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client (asyncio)."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self._should_upgrade():
                self._open_websocket()
            else:
                self._decline(data[offer.args[0] :])
            return
        except httptools.HttpParserError as error:
            cause = error.__context__ if isinstance(error.__context__, _Unacceptable) else None
            if self._in_head:
                self.url = refused_target(error, self.url, data)
            self._refuse(400, "bad_request", str(cause) if cause else "The request is not valid HTTP/1.1.")
            return
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(400, "bad_request", "The head of the request is too large.")
        elif self._in_head and self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._arm(self.timeout_keep_alive, self.timeout_keep_alive_handler)  # empty lines, or an unread body

    # httptools

    def on_message_begin(self) -> None:
        """Handle the start of a request (httptools)."""
        super().on_message_begin()
        self._in_head = True
        self._head_size = 0
        self._arm(HEAD_SECONDS, self._head_is_late)

    def on_url(self, url: bytes) -> None:
        """Handle a piece of the target (httptools)."""
        super().on_url(url)
        self._head_size += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header, or a trailer (httptools)."""
        if not self._in_head:
            raise _Unacceptable("Trailers are not supported.")
        self._head_size += len(name) + len(value) + 4
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Handle the end of the head: the request begins (httptools)."""
        if self._head_size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            raise _Unacceptable("The head of the request is too large.")
        self._has_body = self._check_framing()
        if self.parser.should_upgrade() and not self._should_upgrade():
            return  # the parser skips the body now; the head is read again without the offer
        self._in_head = False
        self._head_bytes = 0
        self._disarm()
        super().on_headers_complete()
        if self._has_body and not _is_v1(self.url):  # there the gateway has a pace of its own
            self._body_at, self._received = self.loop.time(), 0
            self._arm(BODY_FIRST_SECONDS, self._check_pace)

    def _check_framing(self) -> bool:
        """Return whether a body follows. Raises _Unacceptable for heads that two servers could read differently."""
        hosts, has_body = 0, False
        is_http10 = self.parser.get_http_version() != "1.1"
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                has_body = value != b"0"
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked" or is_http10:
                    raise _Unacceptable("The body has a transfer coding other than chunked.")
                has_body = True
        if hosts != 1 and not (hosts == 0 and is_http10):
            raise _Unacceptable("The request must have exactly one Host header.")
        return has_body

    def on_body(self, body: bytes) -> None:
        """Handle a piece of the body (httptools)."""
        self._received += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of the request (httptools)."""
        if self._in_head:
            return  # the head with an offer, which is read again
        self._disarm()
        self._in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Handle the end of a response (uvicorn)."""
        self.used = True
        super().on_response_complete()

    def _should_upgrade(self) -> bool:
        """Return whether the request opens a websocket. Offers of other requests are ignored."""
        return self.parser.get_method() == b"GET" and not self._has_body and super()._should_upgrade()

    def _open_websocket(self) -> None:
        """Hand the connection to a websocket, which stays one of the address's connections until it ends."""
        self._disarm()
        if self._half_closed is not None:
            self._half_closed.stop()
        self._is_websocket = True
        self.handle_websocket_upgrade()
        websocket: Any = self.transport.get_protocol()
        lost = websocket.connection_lost

        def connection_lost(error: Exception | None) -> None:
            self._leave()
            lost(error)

        websocket.connection_lost = connection_lost

    def _decline(self, rest: bytes) -> None:
        """Read the request again without its offer of another protocol; `rest` follows its head."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(400, "bad_request", "CONNECT is not supported.")
            return
        head = plain_head(method, self.url, self.parser.get_http_version(), self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it
        self._head_bytes = 0
        self.data_received(head + rest)

    # Limits

    def close_idle(self) -> bool:
        """Close the connection if no request is in progress. Return whether it was closed."""
        if self._is_websocket or (self.cycle is not None and not self.cycle.response_complete):
            return False
        self._refused = True
        self.transport.close()
        return True

    def _head_is_late(self) -> None:
        self._refuse(408, "request_timeout", "The head of the request did not arrive in time.")

    def _check_pace(self) -> None:
        elapsed = self.loop.time() - self._body_at
        left = min(BODY_FIRST_SECONDS + self._received / BODY_BYTES_PER_SECOND, BODY_TOTAL_SECONDS) - elapsed
        if left > 0:
            self._arm(left, self._check_pace)
        else:
            self._refuse(408, "request_timeout", "The request body arrived too slowly. Send it again.")

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Refuse the request in progress and close the connection; a response that has begun is cut."""
        self._refused = True
        self._disarm()
        cycle = self.cycle
        begun = False
        if cycle is not None:
            begun = not cycle.response_complete if self._in_head else cycle.response_started
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()
        if begun:
            self.transport.close()
            return
        self.transport.write(self._refusals.response(self.url, status, code, detail))
        self.flow.resume_reading()
        self._leave()
        self.connections.discard(self)
        self._refusals.overflow.linger(self.loop, self.transport, self.connections)

    def _arm(self, seconds: float, call: Any) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, call)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave(self) -> None:
        """Forget the connection, which has ended."""
        self._disarm()
        if self._half_closed is not None:
            self._half_closed.stop()
        if self._sockets is not None:
            self._sockets.leave(self._address, self)


_sockets: SocketLimit | None = None


def process_sockets() -> SocketLimit:
    """Return the limit of connections by address of this process, built from the settings."""
    global _sockets  # noqa: PLW0603  one limit per process, for both servers on its port
    if _sockets is None:
        from mirbad.kernel.conf import settings

        read = settings()
        _sockets = SocketLimit(read.max_connections_per_address, read.trusted_proxies)
    return _sockets
