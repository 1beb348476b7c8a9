"""The client's side of one request, the same for every door; and its form under ASGI.

The fast door gives `agent.wire.http1.exchange.Exchange`, which is such a client as it is.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

from agent.wire.http1.exchange import Left
from agent.wire.http1.work import Waiter, Work

Header = tuple[bytes, bytes]
Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_HIGH_WATER_BYTES = 64 * 1024


class Client(Protocol):
    """One request of one client: read its body, then start, write and finish the answer."""

    method: str
    headers: list[Header]

    @property
    def gone(self) -> bool:
        """Whether the client has left."""

    @property
    def whole(self) -> bool:
        """Whether the whole request is here, or there is nothing of it to wait for."""

    @property
    def over(self) -> bool:
        """Whether the answer has ended."""

    def take(self) -> bytes:
        """What of the body is here now, without waiting."""

    async def read(self) -> bytes:
        """The next bytes of the body, b"" at its end. Raises Left."""

    def watch(self, on_gone: Callable[[], object] | None) -> None:
        """From now on call `on_gone` when the client leaves; the body is read or is not wanted. None ends the watch."""

    def start(self, status: int, headers: list[Header], *, close: bool = False) -> None:
        """Begin the answer; it leaves with its first bytes."""

    def flush(self) -> None:
        """Let what was started leave now."""

    def write_now(self, data: bytes) -> bool:
        """Send bytes; whether the client takes more."""

    async def ready(self) -> None:
        """Wait while the client takes no more."""

    def finish(self, data: bytes = b"") -> None:
        """Send the last bytes and end."""

    def cut(self) -> None:
        """End without an end: the client sees that bytes are missing."""


class Asgi:
    """A request of an ASGI server. What is written is queued, and sent by `carry`, the server's own task."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: list[Header] = scope["headers"]
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None
        self._queue: deque[Message] = deque()
        self._queued_bytes = 0
        self._news = asyncio.Event()
        self._drained = Waiter()
        self.gone = False
        self.whole = False
        self.over = False

    async def carry(self, serving: Coroutine[Any, Any, None]) -> None:
        """Run `serving`, which writes to this client, and send what it writes."""
        work = Work(serving, lambda _: self._news.set())
        work.begin()
        try:
            while not work.done() or self._queue:
                try:
                    await self._pump()
                except asyncio.CancelledError:  # the server ends; the last words are still sent
                    if not work.cancel():
                        raise
        finally:
            self.watch(None)
            work.cancel()

    async def _pump(self) -> None:
        await self._news.wait()
        self._news.clear()
        while self._queue:
            message = self._queue.popleft()
            await self._send(message)
            self._queued_bytes -= len(message.get("body", b""))
            self._drained.wake()

    def take(self) -> bytes:
        """Nothing: ASGI tells only by waiting."""
        return b""

    async def read(self) -> bytes:
        """The next bytes of the body, b"" at its end. Raises Left."""
        while not self.whole:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                raise Left
            self.whole = not message.get("more_body", False)
            if data := message.get("body", b""):
                return bytes(data)
        return b""

    def watch(self, on_gone: Callable[[], object] | None) -> None:
        """Call `on_gone` when the client leaves."""
        if on_gone is not None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch(on_gone))
        elif self._watcher is not None and not self._watcher.done() and not self.over:
            self._watcher.cancel()  # once the end was sent, the server itself ends the watch

    async def _watch(self, on_gone: Callable[[], object]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.over:
            self.gone = True
            self._drained.wake()
            on_gone()

    def start(self, status: int, headers: list[Header], *, close: bool = False) -> None:
        """Begin the answer."""
        if close:
            headers = [*headers, (b"connection", b"close")]
        self._put({"type": "http.response.start", "status": status, "headers": headers})

    def flush(self) -> None:
        """Nothing is held back."""

    def write_now(self, data: bytes) -> bool:
        """Send bytes; whether the client takes more."""
        self._queued_bytes += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": True})
        return self._queued_bytes < _HIGH_WATER_BYTES

    async def ready(self) -> None:
        """Wait while the client takes no more."""
        while self._queued_bytes >= _HIGH_WATER_BYTES and not self.gone:
            await self._drained

    def finish(self, data: bytes = b"") -> None:
        """Send the last bytes and end."""
        self.over = True
        self._put({"type": "http.response.body", "body": data, "more_body": False})

    def cut(self) -> None:
        """Returning without the end makes the server cut the connection."""
        self.over = True

    def _put(self, message: Message) -> None:
        self._queue.append(message)
        self._news.set()
