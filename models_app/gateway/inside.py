"""The gateway for pages of the same process: the same core, without a key."""

import asyncio
from collections.abc import AsyncIterator

from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError, Unavailable
from models_app.gateway import body as bodies
from models_app.gateway import core, usage
from models_app.gateway.access import AccessLog
from models_app.gateway.door import Gateway, Options
from models_app.gateway.exchange import Answer, Call
from models_app.gateway.refusals import Refusal, unknown_model
from models_app.usage import PAGES_KEY

CHAT_PATH = "/v1/chat/completions"


class GatewayRefused(MirbadError):
    """The gateway's refusal, as an error of the pages; code, status and words are those of ``/v1``."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message, retry_after_seconds=refusal.retry_after)
        self.code = refusal.code  # type: ignore[misc]  # one class for all codes of /v1
        self.http_status = refusal.status  # type: ignore[misc]
        self.retryable = refusal.retry_after is not None  # type: ignore[misc]


_running: Gateway | None = None


def make() -> Gateway:
    """The gateway of this process, by its settings; `mirbad.asgi` starts and stops it."""
    global _running  # noqa: PLW0603  one gateway a process; pages find it here
    if _running is None:
        read = settings()
        folder = read.logs_dir
        access = AccessLog(folder / "v1-access.log") if read.v1_access_log and folder.is_dir() else None
        _running = Gateway(Options(read.v1_max_body, read.v1_max_inflight, read.v1_sticky), access=access)
    return _running


async def open_stream(body: bytes, *, model: str) -> AsyncIterator[bytes]:
    """Ask the model served as `model` for a chat completion and give back its answer's bytes as they come.

    `body` is the JSON of a request to ``/v1/chat/completions`` that names the same model. Await it, then iterate;
    closing the iterator (or cancelling its task) ends the engine's work. An answer cut short ends with an error event.

    Raises GatewayRefused (the refusals of ``/v1``; an engine's own error has its status) and Unavailable.
    """
    if _running is None or _running.loop is not asyncio.get_running_loop() or _running.loader.table.version < 0:
        raise Unavailable("The gateway of this process is not running yet. Try again in a moment.")
    gateway = _running
    try:
        peek = bodies.peek(body)
        table = gateway.loader.table
        if table.closed is not None:
            raise table.closed
        found = table.models.get(model)
        if found is None or peek.model != model:
            raise unknown_model(model)
        lines = core.lines([(b"content-type", b"application/json"), *core.trace({})])
        call = Call(CHAT_PATH, model, body, lines, core.request_id({}))
        answer = await gateway.exchanges.open(call, found)
        if answer.status >= 400:
            raise await _engine_error(answer)
    except Refusal as refusal:
        raise GatewayRefused(refusal) from None
    return _bytes(gateway, answer)


async def _engine_error(answer: Answer) -> Refusal:
    try:
        text = b""
        while data := await answer.read():
            text += data[: max(0, 2000 - len(text))]
    finally:
        answer.close()
    return Refusal(answer.status, "engine_error", text.decode("utf-8", "replace") or "The engine refused the request.")


async def _bytes(gateway: Gateway, answer: Answer) -> AsyncIterator[bytes]:
    reader = usage.EventReader(withhold=False)
    failed = False
    gateway.figures.in_flight[answer.model.id] += 1
    try:
        while data := await answer.read():
            yield reader.feed(data)
        reader.finish()
    except Refusal as refusal:
        failed = True
        yield refusal.event()
    finally:
        gateway.figures.in_flight[answer.model.id] -= 1
        answer.close()
        failed = failed or reader.failed
        gateway.recorder.count(PAGES_KEY, answer.model.id, failed=failed, usage=reader.usage)
        if reader.usage is not None:
            gateway.figures.tokens[answer.model.id, "prompt"] += reader.usage.prompt or 0
            gateway.figures.tokens[answer.model.id, "completion"] += reader.usage.completion or 0
