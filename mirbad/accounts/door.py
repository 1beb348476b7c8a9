"""The bound on log-in requests in work, before Django: each takes a thread, and hundreds of them stop all others.

A request gets a place once its body has arrived, so that a few slow senders do not keep everybody out.
"""

import asyncio
import json

from mirbad.api import problems
from mirbad.api.bodylimit import App, Message, Receive, Scope, Send
from mirbad.kernel.errors import MirbadError, Unavailable

PATHS = frozenset({"/login", "/login/"})
AT_ONCE = 4
MOST_WAITING = 64
WAIT_SECONDS = 10.0
MOST_BYTES = 16 * 1024


class LoginDoor:
    """An ASGI application around `app`. Requests for the log-in page wait here, in the event loop, for a place."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._free = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request; one for the log-in page when it is whole and has a place, else respond with 503 or 413."""
        if scope["path"] not in PATHS:
            await self._app(scope, receive, send)
            return
        body = await _whole(receive)
        if body is None:
            return  # the client has left
        if len(body) > MOST_BYTES:
            await refuse(scope, send, problems.PayloadTooLarge(f"The log-in form exceeds {MOST_BYTES} bytes."))
        elif await self._enter():
            try:
                await self._app(scope, _again(body, receive), send)
            finally:
                self._free.release()
        else:
            text = "Many people are logging in at the moment. Try again in a few seconds."
            await refuse(scope, send, Unavailable(text, retry_after_seconds=int(WAIT_SECONDS)))

    async def _enter(self) -> bool:
        if self._waiting >= MOST_WAITING:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
        return True


async def _whole(receive: Receive) -> bytes | None:
    """Return the body, None when the client left. Of one that is too large, only the beginning."""
    body = b""
    while len(body) <= MOST_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a function that gives `body`, and after it what `receive` does."""
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


async def refuse(scope: Scope, send: Send, error: MirbadError) -> None:
    """Respond with `error`, as problem+json or as text, and close the connection: its body was not read."""
    wants_json = any(name == b"accept" and b"json" in value for name, value in scope["headers"])
    content, kind = error.detail.encode(), "text/plain; charset=utf-8"
    if wants_json:
        content, kind = json.dumps(problems.body(error)).encode(), problems.CONTENT_TYPE
    headers = [
        (b"content-type", kind.encode()),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),
    ]
    if error.retry_after_seconds is not None:
        headers.append((b"retry-after", str(error.retry_after_seconds).encode()))
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
