"""One request of one client: read, refused or passed on, answered and counted. The same behind every door."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import structlog

from agent.wire.http1.exchange import Left
from mirbad.kernel import clock
from models_app.gateway import body as bodies
from models_app.gateway import catalog, core, form, refusals, usage
from models_app.gateway.access import Line
from models_app.gateway.balance import prompt_prefix
from models_app.gateway.client import Client
from models_app.gateway.exchange import Answer, Call
from models_app.gateway.refusals import Refusal
from models_app.gateway.table import Key, Model, Table

if TYPE_CHECKING:
    from models_app.gateway.door import Gateway

log = structlog.get_logger(__name__)

BODY_IDLE_SECONDS = 60.0
LINGER_SECONDS = 1.0
LINGER_BYTES = 8 * 1024 * 1024
SESSION_HEADER = b"x-session-id"
_SLOW_SEND_SECONDS = 0.005


class Visit:
    """One request; `run` it once, in its own task."""

    def __init__(self, gateway: "Gateway", client: Client, task: asyncio.Task[Any]) -> None:
        self._gateway = gateway
        self._figures = gateway.figures
        self._client = client
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._request_id = core.request_id(client.headers)
        self._trace = core.trace(client.headers)
        self._key: Key | None = None
        self._call: Call | None = None
        self._usage: usage.Usage | None = None
        self._first_byte: float | None = None
        self._head_sent = False
        self._body_read = False
        self._is_events = False
        self._failed = False
        self._gone = False
        self._code = 0

    async def run(self) -> None:
        """Answer, whatever happens; a client that left gets nothing."""
        try:
            await self._run_and_refuse()
        except asyncio.CancelledError:
            self._task.uncancel()
            if not self._client.gone:  # the server ends, and has waited as long as it may
                await self._refuse(refusals.shutting_down())
        finally:
            self._client.done()
            self._gone = self._client.gone
            self._count()

    async def _run_and_refuse(self) -> None:
        try:
            await self._answer()
        except Refusal as refusal:
            await self._refuse(refusal)
        except Left:
            pass
        except Exception:
            log.exception("a request failed inside the gateway", request_id=self._request_id.decode())
            await self._refuse(Refusal(500, "internal", "The gateway failed on this request."))

    async def _answer(self) -> None:
        gateway, client = self._gateway, self._client
        table = gateway.loader.table
        if table.version < 0:
            raise refusals.starting_up()
        if table.closed is not None:
            raise table.closed
        key = self._key = core.authenticate(table, client.headers, clock.now())
        gateway.recorder.used(key.id)
        length = core.declared_length(client.headers)
        limit = gateway.options.max_body_bytes
        if length is not None and length > limit:
            raise refusals.too_large(limit)
        if gateway.in_flight >= gateway.options.max_in_flight:
            if length is None and client.method == "POST":
                await self._read_body(keep=False)  # a body in chunks may still be too large, and 413 comes first
            raise refusals.busy()
        gateway.in_flight += 1
        try:
            await self._serve(table, key, length)
        finally:
            gateway.in_flight -= 1

    async def _serve(self, table: Table, key: Key, length: int | None) -> None:
        client = self._client
        kind = core.endpoint(client.method, client.path)
        if kind == "models":
            await self._json(catalog.listing(table, key))
        elif kind == "model":
            await self._json(catalog.entry(table, key, client.path.removeprefix(core.MODELS_PATH + "/")))
        else:
            await self._relay(key, length)

    async def _relay(self, key: Key, length: int | None) -> None:
        client, gateway = self._client, self._gateway
        began = self._loop.time()
        boundary = form.boundary(core.content_type(client.headers))
        call = Call(
            path=client.path,
            name="",
            body=b"",
            headers=[*core.headers_to_node(client.headers), *self._trace],
            request_id=self._request_id,
            length=length,
        )
        withhold = False
        if boundary is None:
            peek = bodies.peek(await self._read_body(keep=True))
            withhold = peek.stream and not peek.has_stream_options and client.path in core.GENERATION_PATHS
            call.name, call.body = peek.model, bodies.with_usage(peek.body) if withhold else peek.body
        else:
            await self._read_form(form.FormPeek(boundary), call)
        call.waited_seconds = self._loop.time() - began
        model = core.find_model(gateway.loader.table, key, call.name)
        call.model_id = model.id
        counted = gateway.limiter.enter(key, self._began)
        call.familiar = self._familiar(call, model)
        self._call = call
        self._figures.in_flight[model.id] += 1
        try:
            await self._exchange(call, model, withhold=withhold)
        except Refusal:
            self._failed = True
            raise
        finally:
            self._figures.in_flight[model.id] -= 1
            found = self._usage
            if counted:
                gateway.limiter.leave(key, (found.prompt or 0) + (found.completion or 0) if found is not None else 0)
            gateway.recorder.count(key.id, model.id, failed=self._failed, usage=found)

    async def _exchange(self, call: Call, model: Model, *, withhold: bool) -> None:
        if call.more is None:
            self._client.watch(self._task.cancel)
        answer = await self._gateway.exchanges.open(call, model)
        try:
            await self._pass_on(answer, withhold=withhold)
        finally:
            answer.close()

    def _familiar(self, call: Call, model: Model) -> bytes | None:
        sticky = self._gateway.options.sticky
        if sticky == "none" or len(model.routes) == 1:
            return None
        for name, value in self._client.headers:
            if name == SESSION_HEADER and value:
                return value
        return prompt_prefix(call.body) if sticky == "prefix" else None

    async def _pass_on(self, answer: Answer, *, withhold: bool) -> None:
        headers = core.headers_to_client(answer.headers)
        headers.append((b"x-request-id", self._request_id))
        self._is_events = core.is_event_stream(headers)
        reader = usage.reader_of(answer.status, answer.headers, events=self._is_events, withhold=withhold)
        if self._is_events:
            headers = [h for h in headers if h[0] not in (b"cache-control", b"content-length")]
            headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        try:
            await self._start(answer.status, headers)
            await self._pass_body(answer, reader)
        finally:
            self._usage = reader.usage
            self._failed = self._failed or reader.failed or answer.status >= 500
        self._tokens(answer.model, reader.usage)

    async def _pass_body(self, answer: Answer, reader: usage.Reader) -> None:
        client, loop = self._client, self._loop
        sink = self._sink(client.writer(), reader)
        flushed = False
        while True:
            data = answer.take()
            if not data and not answer.done:
                if not flushed:
                    flushed = True
                    await client.flush()
                if sink is None or self._first_byte is None:
                    data = await answer.read()
                else:
                    await answer.stream(sink)
                    await self._until_ready()
                    continue
            if self._first_byte is None and data:
                self._first_byte = loop.time() - self._began
                self._figures.first_byte.observe(answer.model.id, self._first_byte)
            passed = reader.feed(data) if data else b""
            if answer.done:  # what was taken is the last: its end goes out with it
                if not client.whole:
                    await self._drop_body()
                await client.finish(passed + reader.finish())
                return
            if passed:
                before = loop.time()
                await client.write(passed)
                took = loop.time() - before
                if took > _SLOW_SEND_SECONDS and self._call is not None:
                    self._call.waited_seconds += took

    def _sink(self, write: Callable[[bytes], bool] | None, reader: usage.Reader) -> Callable[[bytes], bool] | None:
        """What takes one piece of a stream from the engine to the client at once; its own time is not waiting."""
        call, now = self._call, self._loop.time
        if write is None or call is None:
            return None

        def take(data: bytes) -> bool:
            began = now()
            goes_on = write(reader.feed(data))
            call.waited_seconds -= now() - began
            return goes_on

        return take

    async def _until_ready(self) -> None:
        before = self._loop.time()
        await self._client.ready()
        if self._call is not None:
            self._call.waited_seconds += self._loop.time() - before

    def _tokens(self, model: Model, found: usage.Usage | None) -> None:
        if found is not None:
            self._figures.tokens[model.id, "prompt"] += found.prompt or 0
            self._figures.tokens[model.id, "completion"] += found.completion or 0

    # The client's side

    async def _read_body(self, *, keep: bool) -> bytes:
        data = self._client.take()
        limit = self._gateway.options.max_body_bytes
        if self._client.whole and len(data) <= limit:
            self._body_read = True
            return data
        return await self._read_parts(data, limit, keep=keep)

    async def _read_parts(self, data: bytes, limit: int, *, keep: bool) -> bytes:
        parts, size = [data], len(data)
        while True:
            if size > limit:
                raise refusals.too_large(limit)
            data = await _piece(self._client.read)
            if not data:
                self._body_read = True
                return b"".join(parts)
            size += len(data)
            if keep:
                parts.append(data)

    async def _read_form(self, peek: form.FormPeek, call: Call) -> None:
        """Read as much of a form as it takes to know the model; the rest goes on as it comes."""
        limit = self._gateway.options.max_body_bytes
        parts: list[bytes] = []
        size = 0
        while peek.model is None:
            data = self._client.take() or await _piece(self._client.read)
            if not data:
                self._body_read = True
                peek.finish()
                break
            size += len(data)
            if size > limit:
                raise refusals.too_large(limit)
            peek.feed(data)
            parts.append(data)
        call.name = peek.model or ""
        call.body = b"".join(parts)

        async def more() -> bytes:
            nonlocal size
            data = await _piece(self._client.read)
            size += len(data)
            if size > limit:
                raise refusals.too_large(limit)
            if data:
                peek.feed(data)
            else:
                self._body_read = True
                peek.finish()
                self._client.watch(self._task.cancel)
            return data

        if not self._body_read:
            call.more = more

    async def _start(self, status: int, headers: list[core.Header], *, close: bool = False) -> None:
        self._code = status
        self._head_sent = True
        await self._client.start(status, headers, close=close)

    async def _json(self, data: bytes, status: int = 200, headers: list[core.Header] | None = None) -> None:
        head = headers or [(b"content-type", b"application/json")]
        await self._start(status, [*head, (b"content-length", b"%d" % len(data)), (b"x-request-id", self._request_id)])
        await self._client.finish(data)

    async def _refuse(self, refusal: Refusal) -> None:
        if self._client.over:
            return
        self._figures.refusals[refusal.code] += 1
        if self._head_sent:
            await self._break_off(refusal)
        elif self._body_read or self._client.method != "POST" or self._client.whole or not self._has_body():
            await self._json(refusal.body(), refusal.status, refusal.headers())
        else:
            await self._refuse_unread(refusal)

    async def _break_off(self, refusal: Refusal) -> None:
        """The head has left: a stream of events ends with an error event, any other answer is left unfinished."""
        if self._call is not None:
            self._figures.broken[self._call.model_id, refusal.code] += 1
        if self._is_events:
            await self._client.finish(refusal.event())
        else:
            self._client.cut()

    async def _refuse_unread(self, refusal: Refusal) -> None:
        """Refuse before the body was read, and keep reading a little: many clients look up only after sending."""
        data = refusal.body()
        head = [*refusal.headers(), (b"content-length", b"%d" % len(data)), (b"x-request-id", self._request_id)]
        await self._start(refusal.status, head, close=True)
        await self._client.write(data)
        if not any(name == b"expect" for name, _ in self._client.headers):
            await self._drop_body()
        await self._client.finish()

    async def _drop_body(self) -> None:
        size = 0
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while size < LINGER_BYTES and (data := await self._client.read()):
                    size += len(data)
        except (TimeoutError, Left):
            return

    def _has_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self._client.headers
        )

    def _count(self) -> None:
        call, figures = self._call, self._figures
        model_id = call.model_id if call is not None else ""
        node_id = call.node_id if call is not None else ""
        total = self._loop.time() - self._began
        own = max(0.0, total - call.waited_seconds) if call is not None else total
        if self._gone:
            figures.disconnects[model_id] += 1
        status = 499 if self._gone and not self._code else self._code
        figures.requests[model_id, str(status), node_id] += 1
        if call is not None:
            figures.duration.observe(model_id, total)
            figures.overhead.observe(model_id, own)
        recorder = self._gateway.recorder
        if recorder.wants_lines:
            found = self._usage
            recorder.line(
                Line(
                    clock.now().timestamp(),
                    self._request_id.decode(),
                    self._trace[0][1][3:35].decode(),
                    self._key.id if self._key is not None else None,
                    self._client.method,
                    self._client.path[:200],
                    model_id,
                    node_id,
                    status,
                    "left" if self._gone else "failed" if self._failed else "ok" if status < 400 else "refused",
                    total,
                    self._first_byte,
                    own,
                    found.prompt if found is not None else None,
                    found.completion if found is not None else None,
                )
            )


async def _piece(read: Callable[[], Awaitable[bytes]]) -> bytes:
    """The next bytes of a body. Raises Refusal (408) when they do not come in time."""
    try:
        async with asyncio.timeout(BODY_IDLE_SECONDS):
            return await read()
    except TimeoutError:
        raise refusals.too_slow() from None
