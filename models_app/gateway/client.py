"""The client's side of one request, the same for every door; and its form under ASGI."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from agent.wire.http1.exchange import Exchange, Left

Header = tuple[bytes, bytes]
Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Client(Protocol):
    """One request of one client: read its body, then start, write and finish the answer."""

    method: str
    path: str
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

    def watch(self, on_gone: Callable[[], object]) -> None:
        """From now on call `on_gone` when the client leaves; the body is read or is not wanted."""

    async def start(self, status: int, headers: list[Header], *, close: bool = False) -> None:
        """Begin the answer."""

    async def flush(self) -> None:
        """Let what was started and written leave now."""

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the client takes no more."""

    async def ready(self) -> None:
        """Wait while the client takes no more."""

    def writer(self) -> Callable[[bytes], bool] | None:
        """What sends bytes without waiting and says whether the client takes more; None where only `write` can."""

    async def finish(self, data: bytes = b"") -> None:
        """Send the last bytes and end."""

    def cut(self) -> None:
        """End without an end: the client sees that bytes are missing."""

    def done(self) -> None:
        """The request is over; nothing is watched any more."""


class Direct:
    """A request on a connection of `agent.wire.http1.server`."""

    __slots__ = ("_exchange", "_over", "headers", "method", "path")

    def __init__(self, exchange: Exchange, path: str) -> None:
        self._exchange = exchange
        self._over = False
        self.method = exchange.method
        self.path = path
        self.headers = exchange.headers

    @property
    def gone(self) -> bool:
        """Whether the client has left."""
        return self._exchange.gone

    @property
    def whole(self) -> bool:
        """Whether the whole request is here."""
        return self._exchange.whole

    @property
    def over(self) -> bool:
        """Whether the answer has ended."""
        return self._over

    def take(self) -> bytes:
        """What of the body is here now."""
        return self._exchange.take()

    async def read(self) -> bytes:
        """The next bytes of the body, b"" at its end. Raises Left."""
        return await self._exchange.read()

    def watch(self, on_gone: Callable[[], object]) -> None:
        """Call `on_gone` when the client leaves."""
        if self._exchange.gone:
            on_gone()
        self._exchange.on_gone = on_gone

    async def start(self, status: int, headers: list[Header], *, close: bool = False) -> None:
        """Begin the answer; it leaves with its first bytes."""
        self._exchange.start(status, headers, close=close)

    async def flush(self) -> None:
        """Let the head leave now."""
        self._exchange.flush()

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the client takes no more."""
        await self._exchange.write(data)

    async def ready(self) -> None:
        """Wait while the client takes no more."""
        await self._exchange.ready()

    def writer(self) -> Callable[[bytes], bool] | None:
        """The exchange's own."""
        return self._exchange.write_now

    async def finish(self, data: bytes = b"") -> None:
        """Send the last bytes and end."""
        self._over = True
        self._exchange.on_gone = None
        self._exchange.finish(data)

    def cut(self) -> None:
        """End without an end."""
        self._over = True
        self._exchange.on_gone = None
        self._exchange.cut()

    def done(self) -> None:
        """The request is over."""
        self._exchange.on_gone = None


class Asgi:
    """A request of an ASGI server."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: list[Header] = scope["headers"]
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None
        self.gone = False
        self.whole = False
        self.over = False

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

    def watch(self, on_gone: Callable[[], object]) -> None:
        """Call `on_gone` when the client leaves."""
        self._watcher = asyncio.get_running_loop().create_task(self._watch(on_gone))

    async def _watch(self, on_gone: Callable[[], object]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.over:
            self.gone = True
            on_gone()

    async def start(self, status: int, headers: list[Header], *, close: bool = False) -> None:
        """Begin the answer."""
        if close:
            headers = [*headers, (b"connection", b"close")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def flush(self) -> None:
        """Nothing is held back."""

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the client takes no more."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def ready(self) -> None:
        """`write` has waited already."""

    def writer(self) -> Callable[[bytes], bool] | None:
        """ASGI sends by waiting only."""
        return None

    async def finish(self, data: bytes = b"") -> None:
        """Send the last bytes and end."""
        self.over = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    def cut(self) -> None:
        """Returning without the end makes the server cut the connection."""
        self.over = True

    def done(self) -> None:
        """The request is over; once its end was sent the server itself ends the watch."""
        if self._watcher is not None and not self._watcher.done() and not self.over:
            self._watcher.cancel()
