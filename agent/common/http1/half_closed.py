"""Clients that have ended their side of the connection: they wait for the response, or they are gone.

Both look alike until something is sent to them: a client that is gone resets the connection. So the first bytes of the
response, which are always the same, are sent early.
"""

import asyncio
import socket

STATUS_START = b"HTTP/1.1 "
"""The first bytes of every response."""
CHUNK_START = b"0"
"""A zero before the size of the next chunk: valid, and without a meaning."""

_FIRST_LOOK_SECONDS = 0.05
_LOOK_SECONDS = 0.5
_TCP_CLOSE = 7  # Linux: the state of a socket that was reset


class HalfClosedWatch:
    """Aborts the transport once the kernel knows that its client is gone; `stop` it at the end of the connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = loop.call_later(_FIRST_LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """End the watch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._transport.is_closing():
            return
        try:
            found = self._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)
        except OSError:
            return
        if found[0] == _TCP_CLOSE:
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)
