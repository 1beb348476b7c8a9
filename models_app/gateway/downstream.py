"""The downstream side of one request: the interface that every protocol offers, and its form under ASGI.

The `protocol` module passes `agent.common.http1.request.ServerRequest`, which has the interface as it is.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

from agent.common.http1.inline_task import InlineTask, Waiter
from agent.common.http1.request import ClientLeft

Header = tuple[bytes, bytes]
Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_HIGH_WATER_BYTES = 64 * 1024


class Downstream(Protocol):
    """One request of one client: read its body, then start, write and finish the response."""

    method: str
    headers: list[Header]

    @property
    def gone(self) -> bool:
        """Return whether the client has disconnected."""

    @property
    def whole(self) -> bool:
        """Return whether the whole request has arrived, or none of it will be waited for."""

    @property
    def over(self) -> bool:
        """Return whether the response has ended."""

    def take(self) -> bytes:
        """Return the bytes of the body that have arrived, without waiting."""

    async def read(self) -> bytes:
        """Return the next bytes of the body, b"" at its end. Raises ClientLeft."""

    def watch(self, on_gone: Callable[[], object] | None) -> None:
        """Call `on_gone` once the client disconnects; the body is read or not needed. None ends the watch."""

    def start(self, status: int, headers: list[Header], *, close: bool = False) -> None:
        """Begin the response; the head is sent with the first bytes."""

    def flush(self) -> None:
        """Send the head now."""

    def write_now(self, data: bytes) -> bool:
        """Send bytes. Return whether the client accepts more now."""

    async def ready(self) -> None:
        """Wait until the client accepts more bytes."""

    def finish(self, data: bytes = b"") -> None:
        """Send the last bytes and end the response."""

    def cut(self) -> None:
        """Close the connection without the end of the response, so that the client notices the missing bytes."""


class AsgiDownstream:
    """A request of an ASGI server. Writes are queued; `run`, in the task of the server, sends them."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: list[Header] = scope["headers"]
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None
        self._queue: deque[Message] = deque()
        self._queued_bytes = 0
        self._written = asyncio.Event()
        self._drained = Waiter()
        self.gone = False
        self.whole = False
        self.over = False

    async def run(self, serving: Coroutine[Any, Any, None]) -> None:
        """Run `serving`, which writes to this object, and send the queued messages."""
        work = InlineTask(serving, lambda _: self._written.set())
        work.begin()
        try:
            while not work.done() or self._queue:
                try:
                    await self._pump()
                except asyncio.CancelledError:  # the server is stopping; the error of the request is still sent
                    if not work.cancel():
                        raise
        finally:
            self.watch(None)
            work.cancel()

    async def _pump(self) -> None:
        await self._written.wait()
        self._written.clear()
        while self._queue:
            message = self._queue.popleft()
            await self._send(message)
            self._queued_bytes -= len(message.get("body", b""))
            self._drained.wake()

    def take(self) -> bytes:
        """Return nothing: ASGI has no way to read without waiting."""
        return b""

    async def read(self) -> bytes:
        """Return the next bytes of the body, b"" at its end. Raises ClientLeft."""
        while not self.whole:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                raise ClientLeft
            self.whole = not message.get("more_body", False)
            if data := message.get("body", b""):
                return bytes(data)
        return b""

    def watch(self, on_gone: Callable[[], object] | None) -> None:
        """Call `on_gone` once the client disconnects; None ends the watch."""
        if on_gone is not None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch(on_gone))
        elif self._watcher is not None and not self._watcher.done() and not self.over:
            self._watcher.cancel()  # after the last message the server ends the watch itself

    async def _watch(self, on_gone: Callable[[], object]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.over:
            self.gone = True
            self._drained.wake()
            on_gone()

    def start(self, status: int, headers: list[Header], *, close: bool = False) -> None:
        """Begin the response."""
        if close:
            headers = [*headers, (b"connection", b"close")]
        self._put({"type": "http.response.start", "status": status, "headers": headers})

    def flush(self) -> None:
        """Do nothing: no message is held back."""

    def write_now(self, data: bytes) -> bool:
        """Send bytes. Return whether the client accepts more now."""
        self._queued_bytes += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": True})
        return self._queued_bytes < _HIGH_WATER_BYTES

    async def ready(self) -> None:
        """Wait until the client accepts more bytes."""
        while self._queued_bytes >= _HIGH_WATER_BYTES and not self.gone:
            await self._drained

    def finish(self, data: bytes = b"") -> None:
        """Send the last bytes and end the response."""
        self.over = True
        self._put({"type": "http.response.body", "body": data, "more_body": False})

    def cut(self) -> None:
        """End without the last message, which makes the server close the connection."""
        self.over = True

    def _put(self, message: Message) -> None:
        self._queue.append(message)
        self._written.set()
