"""One request of one client: read, refused or passed on, answered and counted. The same behind every door."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import structlog

from agent.wire.http1.exchange import Left
from agent.wire.http1.work import as_task, current
from mirbad.kernel import clock
from models_app.gateway import body as bodies
from models_app.gateway import catalog, core, form, refusals, usage
from models_app.gateway.access import Line
from models_app.gateway.balance import prompt_prefix
from models_app.gateway.client import Client
from models_app.gateway.exchange import Answer, Call
from models_app.gateway.refusals import Refusal
from models_app.gateway.table import Key, Model

if TYPE_CHECKING:
    from models_app.gateway.door import Gateway

log = structlog.get_logger(__name__)

BODY_IDLE_SECONDS = 60.0
LINGER_SECONDS = 1.0
LINGER_BYTES = 8 * 1024 * 1024
SESSION_HEADER = b"x-session-id"


class Visit:
    """One request; `run` it once, as work of its own."""

    __slots__ = (
        "_began",
        "_body_read",
        "_call",
        "_client",
        "_code",
        "_failed",
        "_figures",
        "_first_byte",
        "_gateway",
        "_head_sent",
        "_headers",
        "_is_events",
        "_key",
        "_now",
        "_path",
        "_request_id",
        "_trace",
        "_usage",
    )

    def __init__(self, gateway: "Gateway", client: Client, path: str) -> None:
        self._gateway = gateway
        self._figures = gateway.figures
        self._client = client
        self._path = path
        self._headers = core.folded(client.headers)
        self._now = gateway.now
        self._began = gateway.now()
        self._request_id = core.request_id(self._headers)
        self._trace = core.trace(self._headers)
        self._key: Key | None = None
        self._call: Call | None = None
        self._usage: usage.Usage | None = None
        self._first_byte: float | None = None
        self._head_sent = False
        self._body_read = False
        self._is_events = False
        self._failed = False
        self._code = 0

    async def run(self) -> None:
        """Answer, whatever happens; a client that left gets nothing."""
        work = current()
        self._gateway.visits.add(work)
        try:
            await self._answer()
        except Refusal as refusal:
            await self._refuse(refusal)
        except Left:
            pass
        except asyncio.CancelledError:
            if not self._client.gone:  # the server ends, and has waited as long as it may
                await self._refuse(refusals.shutting_down())
        except Exception:
            log.exception("a request failed inside the gateway", request_id=self._request_id.decode())
            await self._refuse(Refusal(500, "internal", "The gateway failed on this request."))
        finally:
            self._gateway.visits.discard(work)
            self._client.watch(None)
            self._count()

    async def _answer(self) -> None:
        gateway, client = self._gateway, self._client
        table = gateway.loader.table
        if table.version < 0:
            raise refusals.starting_up()
        if table.closed is not None:
            raise table.closed
        key = self._key = core.authenticate(table, self._headers, clock.now)
        gateway.recorder.used(key.id)
        length = core.declared_length(self._headers)
        limit = gateway.options.max_body_bytes
        if length is not None and length > limit:
            raise refusals.too_large(limit)
        if gateway.in_flight >= gateway.options.max_in_flight:
            if length is None and client.method == "POST":
                await self._read_parts(
                    client.take(), keep=False
                )  # a body in chunks may still be too large, and 413 comes first
            raise refusals.busy()
        gateway.in_flight += 1
        try:
            kind = core.endpoint(client.method, self._path)
            if kind == "relay":
                await self._relay(key, length)
            elif kind == "models":
                self._json(catalog.listing(table, key))
            else:
                self._json(catalog.entry(table, key, self._path.removeprefix(core.MODELS_PATH + "/")))
        finally:
            gateway.in_flight -= 1

    async def _relay(self, key: Key, length: int | None) -> None:
        client, gateway, now = self._client, self._gateway, self._now
        began = now()
        onward = core.lines_to_node(self._headers) + core.lines(self._trace)
        call = Call(self._path, "", b"", onward, self._request_id, length=length)
        boundary = form.boundary(self._headers.get(b"content-type", b""))
        withhold = False
        if boundary is None:
            body = client.take()
            if client.whole and len(body) <= gateway.options.max_body_bytes:
                self._body_read = True
            else:
                body = await self._read_parts(body, keep=True)
                call.waited_seconds = now() - began
            peek = bodies.peek(body)
            withhold = peek.stream and not peek.has_stream_options and self._path in core.GENERATION_PATHS
            call.name, call.body = peek.model, bodies.with_usage(body) if withhold else body
        else:
            await self._read_form(form.FormPeek(boundary), call)
            call.waited_seconds = now() - began
        model = core.find_model(gateway.loader.table, key, call.name)
        call.model_id = model.id
        counted = gateway.limiter.enter(key, self._began)
        call.familiar = self._familiar(call, model)
        self._call = call
        in_flight = self._figures.in_flight
        in_flight[model.id] += 1
        try:
            if call.more is None:
                client.watch(current().cancel)
            answer = await gateway.exchanges.open(call, model)
            try:
                await self._pass_on(answer, withhold=withhold)
            finally:
                answer.close()
        except Refusal:
            self._failed = True
            raise
        finally:
            in_flight[model.id] -= 1
            found = self._usage
            if counted:
                gateway.limiter.leave(key, (found.prompt or 0) + (found.completion or 0) if found is not None else 0)
            gateway.recorder.count(key.id, model.id, failed=self._failed, usage=found)

    def _familiar(self, call: Call, model: Model) -> bytes | None:
        sticky = self._gateway.options.sticky
        if sticky == "none" or len(model.routes) == 1:
            return None
        if session := self._headers.get(SESSION_HEADER):
            return session
        return prompt_prefix(call.body) if sticky == "prefix" else None

    async def _pass_on(self, answer: Answer, *, withhold: bool) -> None:
        headers = core.headers_to_client(answer.headers)
        found = dict(headers)
        kind = found.get(b"content-type", b"")
        self._is_events = core.is_event_stream(kind)
        if self._is_events:
            headers = [h for h in headers if h[0] not in (b"cache-control", b"content-length")]
            headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        headers.append((b"x-request-id", self._request_id))
        compressed = b"content-encoding" in found
        reader = usage.reader_of(answer.status, kind, compressed=compressed, withhold=withhold)
        try:
            self._start(answer.status, headers)
            await self._pass_body(answer, reader)
        finally:
            self._usage = reader.usage
            self._failed = self._failed or reader.failed or answer.status >= 500
        self._tokens(answer.model, reader.usage)

    async def _pass_body(self, answer: Answer, reader: usage.Reader) -> None:
        client, sink = self._client, None
        while True:
            data = answer.take()
            if data:
                if self._first_byte is None:
                    self._first_byte = self._now() - self._began
                    self._figures.first_byte.observe(answer.model.id, self._first_byte)
                data = reader.feed(data)
            if answer.done:  # what was taken is the last: its end goes out with it
                if not client.whole:
                    await self._drop_body()
                client.finish(data + reader.finish())
                return
            if data and not client.write_now(data):
                await self._until_ready()
            if sink is None:
                client.flush()
                sink = self._sink(reader, answer.model)
            await answer.stream(sink)
            await self._until_ready()

    def _sink(self, reader: usage.Reader, model: Model) -> Callable[[bytes], bool]:
        """What takes one piece of a stream from the engine to the client at once; its own time is not waiting."""
        call, now, feed, write = self._call, self._now, reader.feed, self._client.write_now

        def take(data: bytes) -> bool:
            began = now()
            if self._first_byte is None:
                self._first_byte = began - self._began
                self._figures.first_byte.observe(model.id, self._first_byte)
            goes_on = write(feed(data))
            if call is not None:
                call.waited_seconds -= now() - began
            return goes_on

        return take

    async def _until_ready(self) -> None:
        before = self._now()
        await self._client.ready()
        if self._call is not None:
            self._call.waited_seconds += self._now() - before

    def _tokens(self, model: Model, found: usage.Usage | None) -> None:
        if found is not None:
            self._figures.tokens[model.id, "prompt"] += found.prompt or 0
            self._figures.tokens[model.id, "completion"] += found.completion or 0

    # The client's side

    async def _read_parts(self, data: bytes, *, keep: bool) -> bytes:
        limit = self._gateway.options.max_body_bytes
        parts, size = [data], len(data)
        while True:
            if size > limit:
                raise refusals.too_large(limit)
            data = await as_task(_piece(self._client.read))
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
            data = self._client.take() or await as_task(_piece(self._client.read))
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
            data = await as_task(_piece(self._client.read))
            size += len(data)
            if size > limit:
                raise refusals.too_large(limit)
            if data:
                peek.feed(data)
            else:
                self._body_read = True
                peek.finish()
                self._client.watch(current().cancel)
            return data

        if not self._body_read:
            call.more = more

    def _start(self, status: int, headers: list[core.Header], *, close: bool = False) -> None:
        self._code = status
        self._head_sent = True
        self._client.start(status, headers, close=close)

    def _json(self, data: bytes, status: int = 200, headers: list[core.Header] | None = None) -> None:
        head = headers or [(b"content-type", b"application/json")]
        self._start(status, [*head, (b"content-length", b"%d" % len(data)), (b"x-request-id", self._request_id)])
        self._client.finish(data)

    async def _refuse(self, refusal: Refusal) -> None:
        if self._client.over:
            return
        self._figures.refusals[refusal.code] += 1
        if self._head_sent:
            self._break_off(refusal)
        elif self._body_read or self._client.method != "POST" or self._client.whole or not self._has_body():
            self._json(refusal.body(), refusal.status, refusal.headers())
        else:
            await self._refuse_unread(refusal)

    def _break_off(self, refusal: Refusal) -> None:
        """The head has left: a stream of events ends with an error event, any other answer is left unfinished."""
        if self._call is not None:
            self._figures.broken[self._call.model_id, refusal.code] += 1
        if self._is_events:
            self._client.finish(refusal.event())
        else:
            self._client.cut()

    async def _refuse_unread(self, refusal: Refusal) -> None:
        """Refuse before the body was read, and keep reading a little: many clients look up only after sending."""
        data = refusal.body()
        head = [*refusal.headers(), (b"content-length", b"%d" % len(data)), (b"x-request-id", self._request_id)]
        self._start(refusal.status, head, close=True)
        self._client.write_now(data)
        if b"expect" not in self._headers:
            await self._drop_body()
        self._client.finish()

    async def _drop_body(self) -> None:
        await as_task(self._drop())

    async def _drop(self) -> None:
        size = 0
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while size < LINGER_BYTES and (data := await self._client.read()):
                    size += len(data)
        except (TimeoutError, Left):
            return

    def _has_body(self) -> bool:
        return b"transfer-encoding" in self._headers or self._headers.get(b"content-length", b"0") != b"0"

    def _count(self) -> None:
        call, figures = self._call, self._figures
        model_id = call.model_id if call is not None else ""
        node_id = call.node_id if call is not None else ""
        total = self._now() - self._began
        gone = self._client.gone
        own = max(0.0, total - call.waited_seconds) if call is not None else total
        if gone:
            figures.disconnects[model_id] += 1
        status = 499 if gone and not self._code else self._code
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
                    self._path[:200],
                    model_id,
                    node_id,
                    status,
                    "left" if gone else "failed" if self._failed else "ok" if status < 400 else "refused",
                    total,
                    self._first_byte,
                    own,
                    found.prompt if found is not None else None,
                    found.completion if found is not None else None,
                )
            )


async def _piece(read: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
    """The next bytes of a body. Raises Refusal (408) when they do not come in time."""
    try:
        async with asyncio.timeout(BODY_IDLE_SECONDS):
            return await read()
    except TimeoutError:
        raise refusals.too_slow() from None
