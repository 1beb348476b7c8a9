"""One gateway request, from the first header to the last byte: read, refused or relayed, then counted and logged."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from agent.common.http1.inline_task import as_task, current
from agent.common.http1.request import ClientLeft
from mirbad.kernel import clock
from models_app.gateway import body as bodies
from models_app.gateway import catalog, core, errors, form, usage
from models_app.gateway.access import AccessLogLine
from models_app.gateway.arrival import BodyArrival
from models_app.gateway.balance import prompt_prefix
from models_app.gateway.downstream import Downstream
from models_app.gateway.errors import GatewayError
from models_app.gateway.limits import tokens_spent
from models_app.gateway.table import KeyEntry, ModelEntry
from models_app.gateway.upstream import UpstreamCall, UpstreamResponse

if TYPE_CHECKING:
    from models_app.gateway.service import Gateway

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 1.0
DRAIN_BYTES = 8 * 1024 * 1024
SESSION_HEADER = b"x-session-id"


class GatewayRequest:
    """One request to `/v1`. Call `run` once, inside an inline task of its own."""

    __slots__ = (
        "_arrival",
        "_call",
        "_cors",
        "_downstream",
        "_events",
        "_failed",
        "_first_byte",
        "_gateway",
        "_head_sent",
        "_headers",
        "_is_events",
        "_key",
        "_metrics",
        "_now",
        "_path",
        "_request_id",
        "_started",
        "_status",
        "_trace",
        "_usage",
    )

    def __init__(self, gateway: "Gateway", downstream: Downstream, path: str) -> None:
        self._gateway = gateway
        self._metrics = gateway.metrics
        self._downstream = downstream
        self._path = core.plain_path(path)
        self._headers = core.fold_headers(downstream.headers)
        self._cors = core.cors_headers(self._headers, gateway.options.origins) if gateway.options.origins else []
        self._now = gateway.now
        self._started = gateway.now()
        self._request_id = core.request_id(self._headers)
        self._trace = core.trace(self._headers)
        self._key: KeyEntry | None = None
        self._call: UpstreamCall | None = None
        self._usage: usage.TokenUsage | None = None
        self._first_byte: float | None = None
        self._head_sent = False
        self._arrival: BodyArrival | None = None
        self._is_events = False
        self._events = 0
        self._failed = False
        self._status = 0

    async def run(self) -> None:
        """Serve the request, whatever happens. A client that disconnected gets no response."""
        task = current()
        self._gateway.requests.add(task)
        try:
            await self._serve()
        except GatewayError as error:
            await self._refuse(error)
        except ClientLeft:
            pass
        except asyncio.CancelledError:
            if not self._downstream.gone:  # the server is stopping, and the grace period is over
                await self._refuse(errors.shutting_down())
        except Exception:
            log.exception("a request failed inside the gateway", request_id=self._request_id.decode())
            await self._refuse(GatewayError(500, "internal", "The gateway failed on this request. Try again."))
        finally:
            self._gateway.requests.discard(task)
            self._downstream.watch(None)
            self._record()

    async def _serve(self) -> None:
        gateway, downstream = self._gateway, self._downstream
        if downstream.method == "OPTIONS":
            preflight = core.preflight_headers(self._headers, gateway.options.origins)
            if preflight is not None:  # without a key: browsers send none
                self._start(204, preflight)
                downstream.finish()
                return
        table = gateway.loader.table
        if table.version < 0:
            raise errors.starting_up()
        if table.closed is not None:
            raise table.closed
        key = self._key = core.authenticate(table, self._headers, clock.now)
        gateway.recorder.used(key.id)
        length = core.declared_length(self._headers)
        limit = gateway.options.max_body_bytes
        if length is not None and length > limit:
            raise errors.too_large(limit)
        arrival = self._arrival = gateway.arrival(downstream, key.id)
        try:
            gateway.places.enter(key.id)
        except GatewayError:
            if length is None and downstream.method == "POST":
                await arrival.discard()  # a chunked body may still be too large, and 413 takes precedence
            raise
        try:
            kind = core.endpoint(downstream.method, self._path)
            if kind == "relay":
                await self._relay(key, arrival, length)
            elif kind == "models":
                self._json(catalog.listing(table, key))
            else:
                self._json(catalog.entry(table, key, self._path.removeprefix(core.MODELS_PATH + "/")))
        finally:
            gateway.places.leave(key.id)

    async def _relay(self, key: KeyEntry, arrival: BodyArrival, length: int | None) -> None:
        gateway = self._gateway
        limited = gateway.limiter.enter(key, self._started)  # before the body: one that is slow counts, too
        try:
            await self._relay_body(key, arrival, length)
        finally:
            arrival.release()
            if limited:
                gone = self._downstream.gone
                reached = self._call is not None and self._call.node_id and (gone or 200 <= self._status < 300)
                sent = arrival.size if reached and self._path in core.TOKEN_PATHS else None
                gateway.limiter.leave(key, tokens_spent(self._usage, key, sent, self._events, left=gone))

    async def _relay_body(self, key: KeyEntry, arrival: BodyArrival, length: int | None) -> None:
        gateway = self._gateway
        if (encoding := self._headers.get(b"content-encoding")) is not None:
            core.check_encoding(encoding)
        header_lines = core.upstream_header_lines(self._headers) + core.header_lines([*self._trace, key.header])
        call = UpstreamCall(self._path, "", b"", header_lines, self._request_id, length=length)
        boundary = form.boundary(self._headers.get(b"content-type", b""))
        if (boundary is not None) is not (self._path in core.FORM_PATHS):
            raise errors.wrong_kind(form=boundary is None)
        withhold = False
        if boundary is None:
            body = arrival.at_once()
            peek = await gateway.bodies.peek(await arrival.whole() if body is None else body)
            # Asked for whatever the client says: limits count tokens. The event that it did not ask for is withheld.
            withhold = peek.stream and not peek.asks_usage and self._path in core.GENERATION_PATHS
            call.model_name, call.body = peek.model, bodies.with_usage(peek) if withhold else peek.body
        else:
            await self._read_form(form.FormPeek(boundary), arrival, call)
        call.waited_seconds = arrival.waited
        model = core.find_model(gateway.loader.table, key, call.model_name)
        call.model_id = model.id
        call.affinity = self._affinity_key(call, model)
        self._call = call
        in_flight = self._metrics.in_flight
        in_flight[model.id] += 1
        try:
            if call.read_more is None:
                self._downstream.watch(current().cancel)
            response = await gateway.upstream.open(call, model)
            call.body = b""  # sent: a long answer must not keep it
            arrival.release()
            try:
                await self._forward(response, withhold=withhold)
            finally:
                response.close()
        except GatewayError:
            self._failed = True
            raise
        finally:
            in_flight[model.id] -= 1
            gateway.recorder.count(key.id, model.id, failed=self._failed, usage=self._usage)

    def _affinity_key(self, call: UpstreamCall, model: ModelEntry) -> bytes | None:
        sticky = self._gateway.options.sticky
        if sticky == "none" or len(model.routes) == 1:
            return None
        if session := self._headers.get(SESSION_HEADER):
            return session
        return prompt_prefix(call.body) if sticky == "prefix" else None

    # Response: upstream to downstream

    async def _forward(self, response: UpstreamResponse, *, withhold: bool) -> None:
        headers = core.downstream_headers(response.headers)
        by_name = dict(headers)
        kind = by_name.get(b"content-type", b"")
        self._is_events = core.is_event_stream(kind)
        if self._is_events:
            headers = [h for h in headers if h[0] not in (b"cache-control", b"content-length")]
            headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        headers.append((b"x-request-id", self._request_id))
        compressed = b"content-encoding" in by_name
        reader = usage.reader_for(response.status, kind, compressed=compressed, withhold=withhold)
        try:
            self._start(response.status, headers)
            await self._forward_body(response, reader)
        finally:
            self._usage, self._events = reader.usage, reader.events
            self._failed = self._failed or reader.failed or response.status >= 500
        self._count_tokens(response.model, reader.usage)

    async def _forward_body(self, response: UpstreamResponse, reader: usage.UsageReader) -> None:
        downstream, sink = self._downstream, None
        while True:
            data = response.take()
            if data:
                if self._first_byte is None:
                    self._first_byte = self._now() - self._started
                    self._metrics.first_byte.observe(response.model.id, self._first_byte)
                data = reader.feed(data)
            if response.done:  # `data` is the last of it: send it together with the end
                if not downstream.whole:
                    await self._drain_body()
                downstream.finish(data + reader.finish())
                return
            if data and not downstream.write_now(data):
                await self._until_ready()
            if sink is None:
                downstream.flush()
                sink = self._sink(reader, response.model)
            await response.stream(sink)
            await self._until_ready()

    def _sink(self, reader: usage.UsageReader, model: ModelEntry) -> Callable[[bytes], bool]:
        """Return a function that forwards one chunk at once and does not count its own time as waiting."""
        call, now, feed, write = self._call, self._now, reader.feed, self._downstream.write_now

        def forward(data: bytes) -> bool:
            started = now()
            if self._first_byte is None:
                self._first_byte = started - self._started
                self._metrics.first_byte.observe(model.id, self._first_byte)
            accepts_more = write(feed(data))
            if call is not None:
                call.waited_seconds -= now() - started
            return accepts_more

        return forward

    async def _until_ready(self) -> None:
        started = self._now()
        await self._downstream.ready()
        if self._call is not None:
            self._call.waited_seconds += self._now() - started

    def _count_tokens(self, model: ModelEntry, used: usage.TokenUsage | None) -> None:
        if used is not None:
            self._metrics.tokens[model.id, "prompt"] += used.prompt or 0
            self._metrics.tokens[model.id, "completion"] += used.completion or 0

    # Downstream: the request body, our own responses and errors

    async def _read_form(self, peek: form.FormPeek, arrival: BodyArrival, call: UpstreamCall) -> None:
        """Read a form up to its model field; `call.read_more` then streams the rest."""
        chunks: list[bytes] = []
        while peek.model is None:
            data = await arrival.next(keep=True)
            if not data:
                peek.finish()
                break
            peek.feed(data)
            chunks.append(data)
        call.model_name = peek.model or ""
        call.body = b"".join(chunks)

        async def read_more() -> bytes:
            data = await arrival.next()
            if data:
                peek.feed(data)
            else:
                peek.finish()
                self._downstream.watch(current().cancel)
            return data

        if not arrival.ended:
            call.read_more = read_more

    def _start(self, status: int, headers: list[core.Header], *, close: bool = False) -> None:
        self._status = status
        self._head_sent = True
        self._downstream.start(status, headers + self._cors if self._cors else headers, close=close)

    def _json(self, data: bytes, status: int = 200, headers: list[core.Header] | None = None) -> None:
        head = headers or [(b"content-type", b"application/json")]
        self._start(status, [*head, (b"content-length", b"%d" % len(data)), (b"x-request-id", self._request_id)])
        self._downstream.finish(data)

    async def _refuse(self, error: GatewayError) -> None:
        if self._downstream.over:
            return
        self._metrics.refusals[error.code] += 1
        if self._head_sent:
            self._break_off(error)
        elif self._downstream.method != "POST" or self._downstream.whole or self._body_read() or not self._has_body():
            self._json(error.body(self._path), error.status, error.headers())
        else:
            await self._refuse_unread(error)

    def _break_off(self, error: GatewayError) -> None:
        """End a response that has begun: an event stream with an error event, any other by closing the connection."""
        if self._call is not None:
            self._metrics.broken[self._call.model_id, error.code] += 1
        if self._is_events:
            self._downstream.finish(error.event(self._path))
        else:
            self._downstream.cut()

    async def _refuse_unread(self, error: GatewayError) -> None:
        """Refuse before the body is read, then read a little of it: many clients read only after they have sent all."""
        data = error.body(self._path)
        head = [*error.headers(), (b"content-length", b"%d" % len(data)), (b"x-request-id", self._request_id)]
        self._start(error.status, head, close=True)
        self._downstream.write_now(data)
        if b"expect" not in self._headers:
            await self._drain_body()
        self._downstream.finish()

    async def _drain_body(self) -> None:
        await as_task(self._drain())

    async def _drain(self) -> None:
        size = 0
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while size < DRAIN_BYTES and (data := await self._downstream.read()):
                    size += len(data)
        except (TimeoutError, ClientLeft):
            return

    def _body_read(self) -> bool:
        return self._arrival is not None and self._arrival.ended

    def _has_body(self) -> bool:
        return b"transfer-encoding" in self._headers or self._headers.get(b"content-length", b"0") != b"0"

    # Metrics and access log

    def _record(self) -> None:
        call, metrics = self._call, self._metrics
        model_id = call.model_id if call is not None else ""
        node_id = call.node_id if call is not None else ""
        total = self._now() - self._started
        gone = self._downstream.gone
        own = max(0.0, total - call.waited_seconds) if call is not None else total
        if gone:
            metrics.disconnects[model_id] += 1
        status = 499 if gone and not self._status else self._status
        metrics.requests[model_id, str(status), node_id] += 1
        if call is not None:
            metrics.duration.observe(model_id, total)
            metrics.overhead.observe(model_id, own)
        recorder = self._gateway.recorder
        if recorder.wants_lines:
            used = self._usage
            recorder.line(
                AccessLogLine(
                    clock.now().timestamp(),
                    self._request_id.decode(),
                    self._trace[0][1][3:35].decode(),
                    self._key.id if self._key is not None else None,
                    self._downstream.method,
                    self._path[:200],
                    model_id,
                    node_id,
                    status,
                    "left" if gone else "failed" if self._failed else "ok" if status < 400 else "refused",
                    total,
                    self._first_byte,
                    own,
                    used.prompt if used is not None else None,
                    used.completion if used is not None else None,
                )
            )
