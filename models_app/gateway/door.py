"""The door of `/v1` beside Django: an ASGI app that relays bytes as they come, in both directions."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from mirbad.kernel import clock
from models_app.gateway import body as bodies
from models_app.gateway import catalog, core, refusals, usage
from models_app.gateway.exchange import Answer, Call, Exchanges
from models_app.gateway.loader import Database, Loader, Source
from models_app.gateway.metrics import FIGURES, Figures
from models_app.gateway.pool import Pools
from models_app.gateway.refusals import Refusal
from models_app.gateway.table import Key, Model, Table

log = structlog.get_logger(__name__)

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_IDLE_SECONDS = 60.0
LINGER_SECONDS = 1.0
LINGER_BYTES = 8 * 1024 * 1024
_SLOW_SEND_SECONDS = 0.005
_ENDING_SECONDS = 2.0


class Gateway:
    """The gateway of one process: start it in the event loop that serves, then it is an ASGI app for ``/v1``."""

    def __init__(
        self,
        *,
        max_body_bytes: int,
        max_in_flight: int,
        figures: Figures = FIGURES,
        source: Source | None = None,
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self.max_in_flight = max_in_flight
        self.figures = figures
        self.pools = Pools()
        self.loader = Loader(self._follow, source or Database())
        self.exchanges = Exchanges(self.loader, self.pools, figures)
        self.in_flight = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self._visits: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Read the routing table and begin to warm connections."""
        self.loop = asyncio.get_running_loop()
        await self.loader.start()

    async def stop(self) -> None:
        """End what is still open with an error that its client can read, then close all connections."""
        if self._visits:  # the server has cancelled them just now; they write their last words
            await asyncio.wait(self._visits, timeout=_ENDING_SECONDS)
        for task in list(self._visits):
            task.cancel()
        await self.loader.stop()
        self.pools.close()
        self.loop = None

    def _follow(self, table: Table) -> None:
        self.pools.sync(table)
        self.figures.connections = self.pools.counts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI, for scopes of type http."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("the gateway runs in tasks only")
        visit = Visit(self, scope, receive, send, task)
        self._visits.add(task)
        try:
            await visit.run()
        finally:
            self._visits.discard(task)


class Visit:
    """One request of one client."""

    def __init__(self, gateway: Gateway, scope: Scope, receive: Receive, send: Send, task: asyncio.Task[Any]) -> None:
        self._gateway = gateway
        self._figures = gateway.figures
        self._receive = receive
        self._send = send
        self._task = task
        self._method: str = scope["method"]
        self._path: str = scope["path"]
        self._headers: list[core.Header] = scope["headers"]
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._request_id = core.request_id(self._headers)
        self._call: Call | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._body_read = False
        self._head_sent = False
        self._is_events = False
        self._over = False
        self._gone = False
        self._code = 0

    async def run(self) -> None:
        """Answer, whatever happens; a client that left gets nothing."""
        try:
            await self._run_and_refuse()
        except asyncio.CancelledError:
            self._task.uncancel()
            if not self._gone:  # the server ends, and has waited as long as it may
                await self._refuse(refusals.shutting_down())
        finally:
            if self._watcher is not None and not self._watcher.done() and not self._over:
                self._watcher.cancel()
            self._count()

    async def _run_and_refuse(self) -> None:
        try:
            await self._answer()
        except Refusal as refusal:
            await self._refuse(refusal)
        except _ClientLeft:
            self._gone = True
        except Exception:
            log.exception("a request failed inside the gateway", request_id=self._request_id.decode())
            await self._refuse(Refusal(500, "internal", "The gateway failed on this request."))

    async def _answer(self) -> None:
        gateway = self._gateway
        table = gateway.loader.table
        if table.version < 0:
            raise refusals.starting_up()
        if table.closed is not None:
            raise table.closed
        key = core.authenticate(table, self._headers, clock.now())
        gateway.loader.used(key.id)
        length = core.declared_length(self._headers)
        if length is not None and length > gateway.max_body_bytes:
            raise refusals.too_large(gateway.max_body_bytes)
        if gateway.in_flight >= gateway.max_in_flight:
            if length is None and self._method == "POST":
                await self._read_body(keep=False)  # a body in chunks may still be too large, and 413 comes first
            raise refusals.busy()
        gateway.in_flight += 1
        try:
            await self._serve(table, key)
        finally:
            gateway.in_flight -= 1

    async def _serve(self, table: Table, key: Key) -> None:
        kind = core.endpoint(self._method, self._path)
        if kind == "models":
            await self._json(catalog.listing(table, key))
        elif kind == "model":
            await self._json(catalog.entry(table, key, self._path.removeprefix(core.MODELS_PATH + "/")))
        else:
            await self._relay(key)

    async def _relay(self, key: Key) -> None:
        began = self._loop.time()
        peek = bodies.peek(await self._read_body(keep=True))
        body_seconds = self._loop.time() - began
        model = core.find_model(self._gateway.loader.table, key, peek.model)
        ask_usage = peek.stream and not peek.has_stream_options and self._path in core.GENERATION_PATHS
        self._call = Call(
            path=self._path,
            name=peek.model,
            body=bodies.with_usage(peek.body) if ask_usage else peek.body,
            headers=core.headers_to_node(self._headers),
            request_id=self._request_id,
            waited_seconds=0.0,
            model_id=model.id,
        )
        self._figures.in_flight[model.id] += 1
        try:
            self._watcher = self._loop.create_task(self._watch())
            answer = await self._gateway.exchanges.open(self._call, model)
            try:
                await self._pass_on(answer, withhold=ask_usage)
            finally:
                answer.close()
        finally:
            self._call.waited_seconds += body_seconds
            self._figures.in_flight[model.id] -= 1

    async def _pass_on(self, answer: Answer, *, withhold: bool) -> None:
        headers = core.headers_to_client(answer.headers)
        headers.append((b"x-request-id", self._request_id))
        self._is_events = core.is_event_stream(headers)
        reader = _reader(answer, events=self._is_events, withhold=withhold)
        if self._is_events:
            headers = [h for h in headers if h[0] not in (b"cache-control", b"content-length")]
            headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await self._start(answer.status, headers)
        first = True
        while data := await answer.read():
            if first:
                first = False
                self._figures.first_byte.observe(answer.model.id, self._loop.time() - self._began)
            passed = reader.feed(data)
            if passed:
                before = self._loop.time()
                await self._send({"type": "http.response.body", "body": passed, "more_body": True})
                took = self._loop.time() - before
                if took > _SLOW_SEND_SECONDS and self._call is not None:
                    self._call.waited_seconds += took
        await self._finish(reader.finish())
        self._tokens(answer.model, reader.usage)

    def _tokens(self, model: Model, found: usage.Usage | None) -> None:
        if found is not None:
            self._figures.tokens[model.id, "prompt"] += found.prompt or 0
            self._figures.tokens[model.id, "completion"] += found.completion or 0

    # The client's side

    async def _read_body(self, *, keep: bool) -> bytes:
        try:
            async with asyncio.timeout(BODY_IDLE_SECONDS) as silence:
                return await self._read_parts(silence, keep=keep)
        except TimeoutError:
            raise refusals.too_slow() from None

    async def _read_parts(self, silence: asyncio.Timeout, *, keep: bool) -> bytes:
        limit = self._gateway.max_body_bytes
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise refusals.too_large(limit)
            if keep and part:
                parts.append(part)
            if not message.get("more_body", False):
                self._body_read = True
                return parts[0] if len(parts) == 1 else b"".join(parts)
            silence.reschedule(self._loop.time() + BODY_IDLE_SECONDS)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._over:
            self._gone = True
            self._task.cancel()

    async def _start(self, status: int, headers: list[core.Header]) -> None:
        self._code = status
        self._head_sent = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _finish(self, data: bytes = b"") -> None:
        self._over = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _json(self, data: bytes, status: int = 200, headers: list[core.Header] | None = None) -> None:
        head = headers or [(b"content-type", b"application/json")]
        await self._start(
            status, [*head, (b"content-length", str(len(data)).encode()), (b"x-request-id", self._request_id)]
        )
        await self._finish(data)

    async def _refuse(self, refusal: Refusal) -> None:
        if self._over:
            return
        self._figures.refusals[refusal.code] += 1
        if self._head_sent:
            await self._break_off(refusal)
        elif self._body_read or self._method != "POST" or not self._has_body():
            await self._json(refusal.body(), refusal.status, refusal.headers())
        else:
            await self._refuse_unread(refusal)

    async def _break_off(self, refusal: Refusal) -> None:
        """The head has left: a stream of events ends with an error event, any other answer is left unfinished."""
        if self._call is not None:
            self._figures.broken[self._call.model_id, refusal.code] += 1
        if self._is_events:
            await self._send({"type": "http.response.body", "body": refusal.event(), "more_body": True})
            await self._finish()
        else:
            # Returning without the end makes the server cut the connection: the client sees that bytes are missing.
            self._over = True

    async def _refuse_unread(self, refusal: Refusal) -> None:
        """Refuse before the body was read, and keep reading a little: many clients look up only after sending."""
        data = refusal.body()
        head = [
            *refusal.headers(),
            (b"content-length", str(len(data)).encode()),
            (b"x-request-id", self._request_id),
            (b"connection", b"close"),
        ]
        await self._start(refusal.status, head)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        if not any(name == b"expect" for name, _ in self._headers):
            await self._drop_body()
        await self._finish()

    async def _drop_body(self) -> None:
        size = 0
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while size < LINGER_BYTES:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return

    def _has_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self._headers
        )

    def _count(self) -> None:
        model_id = self._call.model_id if self._call is not None else ""
        node_id = self._call.node_id if self._call is not None else ""
        if self._gone:
            self._figures.disconnects[model_id] += 1
        self._figures.requests[model_id, str(self._code or 499), node_id] += 1
        if self._call is not None:
            total = self._loop.time() - self._began
            self._figures.duration.observe(model_id, total)
            self._figures.overhead.observe(model_id, max(0.0, total - self._call.waited_seconds))


class _ClientLeft(Exception):
    """The client went away before its request was whole."""


def _reader(answer: Answer, *, events: bool, withhold: bool) -> usage.Reader:
    if not 200 <= answer.status < 300 or any(name == b"content-encoding" for name, _ in answer.headers):
        return usage.NoReader()
    if events:
        return usage.EventReader(withhold=withhold)
    if any(name == b"content-type" and b"json" in value for name, value in answer.headers):
        return usage.JsonReader()
    return usage.NoReader()
