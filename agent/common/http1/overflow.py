"""The end of connections that are refused: too many of an address, or a request that cannot be understood.

Each gets one whole response in the form of its API. The client may still be sending, and a socket that is closed with
unread data discards what it has sent: so what arrives is dropped for a moment before the connection is closed.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from agent.common.http1.target import MAX_LINE_BYTES, target_of

WAIT_SECONDS = 1.0
"""Time for the first line of a request, which says in which form to refuse it."""
LINGER_SECONDS = 1.0
"""Time for the client to read the response."""
MOST_AT_ONCE = 64


class Overflow:
    """Refuses connections; `refusal` returns the whole response to a request for a target, b"" when it is unknown."""

    def __init__(self, refusal: Callable[[bytes], bytes]) -> None:
        self._refusal = refusal
        self._open: set[_EndingConnection] = set()

    def refuse(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, connections: set[Any]) -> None:
        """Take over a new connection and refuse it once its first line says how. It stays one of `connections`."""
        if (connection := self._take(loop, transport, connections)) is None:
            transport.write(self._refusal(b""))
            transport.close()
        else:
            connection.wait(self._refusal)

    def linger(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, connections: set[Any]) -> None:
        """Take over a connection whose last response was written, and close it soon."""
        if (connection := self._take(loop, transport, connections)) is None:
            transport.close()
        else:
            connection.linger()

    def _take(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, connections: set[Any]
    ) -> "_EndingConnection | None":
        if len(self._open) >= MOST_AT_ONCE or transport.is_closing():
            return None
        connection = _EndingConnection(loop, transport, (self._open, connections))
        for those in (self._open, connections):
            those.add(connection)
        transport.set_protocol(connection)
        return connection


class _EndingConnection(asyncio.Protocol):
    """One connection that is refused, in `members_of` until it is closed."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, members_of: tuple[set[Any], ...]
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._members_of = members_of
        self._start = b""
        self._refusal: Callable[[bytes], bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, refusal: Callable[[bytes], bytes]) -> None:
        """Wait for the first line, then respond."""
        self._refusal = refusal
        self._timer = self._loop.call_later(WAIT_SECONDS, self._respond)

    def linger(self) -> None:
        """Send the end of our side; close when the client does, or after a moment."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._timer = self._loop.call_later(LINGER_SECONDS, self._transport.close)

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client (asyncio): the first line counts, the rest is dropped."""
        if self._refusal is None:
            return
        self._start += data
        if b"\n" in self._start.lstrip() or len(self._start) >= MAX_LINE_BYTES:
            self._respond()

    def eof_received(self) -> None:
        """Handle the end of the client's data (asyncio); the transport then closes itself."""
        self._respond()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection (asyncio)."""
        if self._timer is not None:
            self._timer.cancel()
        for those in self._members_of:
            those.discard(self)

    def shutdown(self) -> None:
        """Close the connection, as the server is stopping."""
        self._transport.close()

    def _respond(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._transport.write(refusal(target_of(self._start)))
        self.linger()
