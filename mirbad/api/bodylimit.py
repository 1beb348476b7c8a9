"""Limit of the body size, enforced before Django, which reads and stores a whole body before any view runs."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mirbad.api.problems import CONTENT_TYPE, PayloadTooLarge, body

Message = Mapping[str, Any]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BYTES = 2 * 1024 * 1024


class _BodyTooLarge(Exception):
    """The body exceeds the limit."""


class BodyLimit:
    """An ASGI application around `app` that responds 413 to a body of more than `max_bytes`, declared or counted."""

    def __init__(self, app: App, max_bytes: int = MAX_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request whose body is small enough."""
        if (declared_bytes(scope) or 0) > self._max_bytes:
            await self._refuse(send)
            return
        received = 0
        answering = False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise _BodyTooLarge
            return message

        async def noted(message: Message) -> None:
            nonlocal answering
            answering = True
            await send(message)

        try:
            await self._app(scope, counted, noted)
        except _BodyTooLarge:
            if answering:
                raise
            await self._refuse(send)

    async def _refuse(self, send: Send) -> None:
        document = body(PayloadTooLarge(f"The body exceeds {self._max_bytes} bytes."))
        headers = [
            (b"content-type", CONTENT_TYPE.encode()),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": document["status"], "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(document).encode()})


def declared_bytes(scope: Scope) -> int | None:
    """Return the length of the body that the request declares, None without one."""
    for name, value in scope.get("headers", ()):
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None
