"""The gateway for pages of the same process: the same path upstream, without an API key."""

import asyncio
from collections.abc import AsyncIterator

from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError, Unavailable
from models_app.gateway import core, usage
from models_app.gateway.access import AccessLog
from models_app.gateway.errors import GatewayError, unknown_model
from models_app.gateway.service import Gateway, GatewayOptions
from models_app.gateway.upstream import UpstreamCall, UpstreamResponse
from models_app.usage import PAGES_KEY

CHAT_PATH = "/v1/chat/completions"


class GatewayRefused(MirbadError):
    """An error of the gateway as an error of the pages, with the code, status and message of ``/v1``."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__(error.message, retry_after_seconds=error.retry_after)
        self.code = error.code  # type: ignore[misc]  # one class for all codes of /v1
        self.http_status = error.status  # type: ignore[misc]
        self.retryable = error.retry_after is not None  # type: ignore[misc]


_running: Gateway | None = None


def process_gateway() -> Gateway:
    """Return the gateway of this process, built from the settings; `mirbad.asgi` starts and stops it."""
    global _running  # noqa: PLW0603  one gateway per process; pages find it here
    if _running is None:
        read = settings()
        folder = read.logs_dir
        access = AccessLog(folder / "v1-access.log") if read.v1_access_log and folder.is_dir() else None
        options = GatewayOptions(
            read.v1_max_body, read.v1_max_inflight, read.v1_sticky, read.v1_max_buffered, frozenset(read.v1_origins)
        )
        _running = Gateway(options, access=access)
    return _running


async def open_stream(body: bytes) -> AsyncIterator[bytes]:
    """Request the chat completion of `body`, as sent to ``/v1/chat/completions``; return its bytes as they arrive.

    Await, then iterate; closing the iterator (or cancelling its task) stops the engine. A response cut short ends with
    an error event.

    Raises GatewayRefused (the errors of ``/v1``; an error of the engine keeps its status) and Unavailable.
    """
    if _running is None or _running.loop is not asyncio.get_running_loop() or _running.loader.table.version < 0:
        raise Unavailable("The gateway is starting. Try again in a moment.")
    gateway = _running
    try:
        peek = await gateway.bodies.peek(body)
        table = gateway.loader.table
        if table.closed is not None:
            raise table.closed
        entry = table.models.get(peek.model)
        if entry is None:
            raise unknown_model(peek.model)
        lines = core.header_lines([(b"content-type", b"application/json"), *core.trace({})])
        call = UpstreamCall(CHAT_PATH, peek.model, body, lines, core.request_id({}))
        response = await gateway.upstream.open(call, entry)
        if response.status >= 400:
            raise await _engine_error(response)
    except GatewayError as error:
        raise GatewayRefused(error) from None
    return _stream(gateway, response)


async def _engine_error(response: UpstreamResponse) -> GatewayError:
    try:
        text = b""
        while data := await response.read():
            text += data[: max(0, 2000 - len(text))]
    finally:
        response.close()
    message = text.decode("utf-8", "replace") or "The engine refused the request without a message."
    return GatewayError(response.status, "engine_error", message)


async def _stream(gateway: Gateway, response: UpstreamResponse) -> AsyncIterator[bytes]:
    reader = usage.EventReader(withhold=False)
    metrics, model_id = gateway.metrics, response.model.id
    failed = False
    metrics.in_flight[model_id] += 1
    try:
        while data := await response.read():
            yield reader.feed(data)
        reader.finish()
    except GatewayError as error:
        failed = True
        yield error.event()
    finally:
        metrics.in_flight[model_id] -= 1
        response.close()
        failed = failed or reader.failed
        gateway.recorder.count(PAGES_KEY, model_id, failed=failed, usage=reader.usage)
        if reader.usage is not None:
            metrics.tokens[model_id, "prompt"] += reader.usage.prompt or 0
            metrics.tokens[model_id, "completion"] += reader.usage.completion or 0
