"""One request on a server connection, and its response."""

import asyncio
import http
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from agent.common.http1.half_closed import CHUNK_START, STATUS_START
from agent.common.http1.inline_task import Waiter

if TYPE_CHECKING:
    from agent.common.http1.server import ServerConnection

Header = tuple[bytes, bytes]

HIGH_WATER_BYTES = 256 * 1024
_JOIN_BYTES = 32 * 1024
STATUS_LINES = {
    status: f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase if status in set(http.HTTPStatus) else ''}\r\n".encode()
    for status in range(100, 600)
}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def whole_response(status: int, headers: Iterable[Header], body: bytes) -> bytes:
    """Return a whole response, after which the connection closes."""
    lines = [STATUS_LINES[status], *(b"%b: %b\r\n" % header for header in headers)]
    return b"".join([*lines, b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body), body])


class ClientLeft(Exception):
    """The client disconnected before its request was whole."""


class ServerRequest:
    """One request and its response: `read` until b"", then `start`, `write`, `finish`."""

    __slots__ = (
        "_body_bytes",
        "_chunked",
        "_connection",
        "_expects",
        "_head",
        "_keep_alive",
        "_over",
        "_parts",
        "_probed",
        "_started",
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
        self._waiter = Waiter()
        self._head: bytes | None = None
        self._chunked = False
        self._keep_alive = True
        self._expects = False
        self._over = False
        self._probed = False
        self._started = False

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of the connection."""
        return self._connection.transport

    @property
    def over(self) -> bool:
        """Return whether the response has ended."""
        return self._over

    @property
    def started(self) -> bool:
        """Return whether a part of the response may have been sent."""
        return self._started or self._probed

    def watch(self, on_gone: Callable[[], object] | None) -> None:
        """Call `on_gone` when the client disconnects, or at once if it has; None ends the watch."""
        self.on_gone = on_gone
        if self.gone and on_gone is not None:
            on_gone()

    # The request

    def take(self) -> bytes:
        """Return the part of the body that has arrived, without waiting."""
        if not self._parts:
            return b""
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._body_bytes = 0
        self._connection.resume()
        return data

    async def read(self) -> bytes:
        """Return the next bytes of the body, b"" at its end. Raises ClientLeft."""
        while not self._parts:
            if self.whole:
                return b""
            if self.gone:
                raise ClientLeft
            if self._expects:
                self._expects = False
                self._connection.transport.write(_CONTINUE)
            await self._waiter
        return self.take()

    def wake(self) -> None:
        """Wake the coroutine that waits in `read` or `write`."""
        self._waiter.wake()

    def feed(self, data: bytes) -> None:
        """Add a piece of the body. The connection wakes the reader after the parser has returned."""
        self._parts.append(data)
        self._body_bytes += len(data)
        if self._body_bytes > HIGH_WATER_BYTES:
            self._connection.pause()

    def leave(self) -> None:
        """Note that the client has disconnected, and call `on_gone` unless the response has ended."""
        if self.gone or self._over:
            return
        self.gone = True
        self.wake()
        if self.on_gone is not None:
            self.on_gone()

    # The response

    def start(self, status: int, headers: list[Header], *, close: bool = False) -> None:
        """Begin the response; without ``content-length`` it is chunked. The head is sent with the first bytes."""
        connection = self._connection
        self._started = True
        framed = status in (204, 304) or self.method == "HEAD"
        status_line = STATUS_LINES[status]
        lines = [status_line[len(STATUS_START) :] if self._probed else status_line, connection.fixed]
        for name, value in headers:
            if name == b"content-length":
                framed = True
            lines += (name, b": ", value, b"\r\n")
        self._keep_alive = connection.may_keep(self) and not close
        if not framed and connection.is_http10:
            self._keep_alive = False
        elif not framed:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self._keep_alive:
            lines.append(b"connection: close\r\n")
        elif connection.is_http10:
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    def flush(self) -> None:
        """Send the head now."""
        if self._head is not None:
            head, self._head = self._head, None
            self._connection.transport.write(head)

    def probe(self) -> bool:
        """Send the start of the next part: a client that is gone reacts to it. Return False if that is unknown."""
        if self._head is not None:
            self.flush()
        elif not self._started:
            self._probed = True
            self._connection.transport.write(STATUS_START)
        elif self._chunked:
            self._connection.transport.write(CHUNK_START)
        else:
            return False
        return True

    async def write(self, data: bytes) -> None:
        """Send bytes of the body; wait while the client accepts no more. Drop bytes for a disconnected client."""
        if not self.write_now(data):
            await self.ready()

    async def ready(self) -> None:
        """Wait while the client accepts no more."""
        while self._connection.write_paused and not self.gone:
            await self._waiter

    def write_now(self, data: bytes) -> bool:
        """Send bytes of the body without waiting. Return whether the client accepts more."""
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
        """Send the last bytes of the body, and its end."""
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
        """Close the connection before the end of the response, so that the client notices missing bytes."""
        if self._over:
            return
        self._over = True
        self.flush()
        self._connection.transport.close()

    # Set by the connection while the head is read

    def expect(self) -> None:
        """Note that the client waits for ``100 Continue`` before it sends the body."""
        self._expects = True
