"""One request to one engine: the choice of the replica, waiting for it, its connection, and retries."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog
from pydantic import ValidationError

from agent.common.http1.client import (
    STALE_WITHIN_SECONDS,
    ClientConnection,
    ConnectFailed,
    ConnectionBroken,
    TimedOut,
    UpstreamError,
)
from agent.common.http1.inline_task import as_task
from agent.wire.base import ANSWER_HEADER, API_PREFIX, GENERATION_HEADER, MODEL_HEADER
from agent.wire.errors import AgentCode, AgentErrorBody
from mirbad.kernel import clock
from models_app.gateway import core, errors
from models_app.gateway.balance import Balancer
from models_app.gateway.metrics import GatewayMetrics
from models_app.gateway.pool import NodePool, UpstreamPools
from models_app.gateway.table import ModelEntry, RouteEntry, RoutingTable

log = structlog.get_logger(__name__)

T = TypeVar("T")

_FROM_ENGINE = (ANSWER_HEADER.lower().encode(), b"engine")
"""The header of responses that come from the engine; without it the agent itself responded."""
_MAX_AGENT_ERROR_BYTES = 64 * 1024
_NEWER_TABLE_SECONDS = 1.0
_PIECE_BYTES = 64 * 1024
# The agent responds with these before it has sent anything to the engine, so another replica may be tried.
_DECLINED = frozenset({AgentCode.GENERATION_MISMATCH, AgentCode.NOT_FOUND, AgentCode.NOT_READY})


class CurrentTable(Protocol):
    """The source of the current routing table and of its successors."""

    @property
    def table(self) -> RoutingTable:
        """Return the current table."""

    async def changed(self) -> None:
        """Wait for the next table."""

    def rebuild_now(self) -> None:
        """Request a new table now."""


@dataclass(slots=True)
class UpstreamCall:
    """A request to an engine. `waited_seconds` sums up the time spent waiting rather than working.

    `model_name` is the name in the request. `headers` are the header lines to send. `read_more` returns the part of the
    body that follows `body`, b"" at its end; the whole body has `length` bytes, None if unknown. `affinity` is the
    affinity key. `model_id` and `node_id` are set while the call proceeds, `body_started` once `read_more` is in use,
    `unaccounted` once it was sent over a connection that then proved to be closed: a replica may have received it.
    """

    path: str
    model_name: str
    body: bytes | bytearray
    headers: bytes
    request_id: bytes
    waited_seconds: float = 0.0
    model_id: str = ""
    node_id: str = ""
    read_more: Callable[[], Awaitable[bytes]] | None = None
    length: int | None = None
    affinity: bytes | None = None
    body_started: bool = False
    unaccounted: bool = False


class _ReplicaDeclined(Exception):
    """A replica did not take the request; another one may. `error` is for downstream if none does."""

    def __init__(self, error: errors.GatewayError, *, stale_table: bool = False) -> None:
        super().__init__(error.code)
        self.error = error
        self.stale_table = stale_table  # the node contradicts the table: a newer one may have another route


class UpstreamResponse:
    """A response of an engine: `status`, `headers`, then `read` until b"". Always call `close`, once or more."""

    __slots__ = (
        "_balancer",
        "_call",
        "_closed",
        "_connection",
        "_pool",
        "_probe",
        "_route",
        "headers",
        "model",
        "status",
    )

    def __init__(
        self,
        connection: ClientConnection,
        model: ModelEntry,
        call: UpstreamCall,
        route: RouteEntry,
        pool: NodePool,
        balancer: Balancer,
        *,
        probe: bool,
    ) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self.model = model
        self._call = call
        self._route = route
        self._connection = connection
        self._pool = pool
        self._balancer = balancer
        self._probe = probe
        self._closed = False

    @property
    def done(self) -> bool:
        """Return whether the whole response has arrived; `take` then returns the rest of it."""
        return self._connection.done

    def take(self) -> bytes:
        """Return the bytes that have arrived, without waiting."""
        return self._connection.take()

    async def read(self) -> bytes:
        """Return the next bytes as they arrived, b"" at the end. Raises GatewayError if the response is cut short."""
        limit = self._limit()
        return await self._watched(self._connection.read(limit), limit)

    async def _watched(self, work: Awaitable[T], limit: float) -> T:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            return await work
        except TimedOut:
            setting = errors.IDLE_SETTING if limit == self.model.idle_seconds else errors.FIRST_BYTE_SETTING
            raise errors.upstream_timeout(self.model.id, limit, setting) from None
        except UpstreamError as error:
            self._balancer.failed(self._route.placement_id)
            log.warning("response cut short", model=self.model.id, node=self._route.node_id, reason=str(error))
            raise errors.broken_off(self.model.id) from None
        finally:
            self._call.waited_seconds += loop.time() - started

    async def stream(self, sink: Callable[[bytes], bool]) -> None:
        """Pass each chunk to `sink` until the end or until it returns False. Raises GatewayError like `read`."""
        limit = self._limit()
        await self._watched(self._connection.stream(sink, limit), limit)

    def _limit(self) -> float:
        """Return how long the response may pause: one that is no stream comes at once, when all of it is there."""
        return self.model.idle_seconds if _is_stream(self.headers) else self.model.whole_seconds

    def close(self) -> None:
        """End the exchange: a connection whose response is complete goes back to its pool, any other is closed."""
        if self._closed:
            return
        self._closed = True
        self._balancer.leave(self._route.placement_id, probe=self._probe)
        self._pool.release(self._connection)


class Upstream:
    """The way to all engines: through the pools, by the current routing table."""

    def __init__(self, tables: CurrentTable, pools: UpstreamPools, metrics: GatewayMetrics) -> None:
        self._tables = tables
        self._pools = pools
        self._metrics = metrics
        self._head_prefixes: dict[tuple[str, str], bytes] = {}
        self._head_prefixes_of: RoutingTable | None = None
        self.balancer = Balancer(clock.monotonic)

    @property
    def in_flight(self) -> Mapping[str, int]:
        """Return the requests in flight by placement id."""
        return self.balancer.in_flight

    async def open(self, call: UpstreamCall, model: ModelEntry) -> UpstreamResponse:
        """Send `call` to a replica of `model` and wait for the head of the response. Raises GatewayError."""
        call.model_id = model.id
        tried: set[str] | None = None
        declined: errors.GatewayError | None = None
        stale: RoutingTable | None = None
        while True:
            table = self._tables.table
            model = table.models.get(call.model_name, model)
            routes = core.usable_routes(table, model, tried or ())
            if not routes:
                if declined is None and model.wait_seconds and await as_task(self._wait_for_start(call, model, table)):
                    continue
                if stale is table and await as_task(self._wait_for_newer_table(call, table)):
                    continue
                raise declined or core.no_route_error(table, model)
            route = self.balancer.pick(routes, call.affinity)
            try:
                return await self._send(call, model, route, table)
            except _ReplicaDeclined as error:
                if call.read_more is not None and call.body_started:
                    raise error.error from None
                if call.unaccounted:
                    raise errors.broken_off(model.id) from None
                declined = error.error
                stale = table if error.stale_table else None
                tried = {*(tried or ()), route.placement_id}
                self._metrics.retries[route.node_id] += 1

    async def _wait_for_newer_table(self, call: UpstreamCall, table: RoutingTable) -> bool:
        """Wait briefly for the successor of `table`, which `rebuild_now` has requested. Return whether it arrived."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(_NEWER_TABLE_SECONDS):
                while self._tables.table is table:
                    await self._tables.changed()
        except TimeoutError:
            return False
        finally:
            call.waited_seconds += loop.time() - started
        return True

    async def _wait_for_start(self, call: UpstreamCall, model: ModelEntry, table: RoutingTable) -> bool:
        """Wait while `model` is starting, for as long as it allows. Return whether to choose a route again."""
        if not core.is_starting(table, model):
            return False
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._metrics.waiting[model.id] += 1
        try:
            async with asyncio.timeout(model.wait_seconds - call.waited_seconds):
                while core.is_starting(table, model) and not core.is_ready(table, model):
                    await self._tables.changed()
                    table = self._tables.table
                    model = table.models.get(call.model_name, model)
        except TimeoutError:
            return False
        finally:
            self._metrics.waiting[model.id] -= 1
            call.waited_seconds += loop.time() - started
        return True

    async def _send(
        self, call: UpstreamCall, model: ModelEntry, route: RouteEntry, table: RoutingTable
    ) -> UpstreamResponse:
        call.node_id = route.node_id
        pool = self._pools.of(table.endpoints[route.node_id])
        balancer, placement_id = self.balancer, route.placement_id
        probe = balancer.enter(placement_id)
        connection: ClientConnection | None = None
        try:
            connection = await self._exchange(pool, call, model, route, self._head_prefix(table, route, call.path))
            if _FROM_ENGINE not in connection.headers:
                raise await self._agent_error(connection, model, route)
        except (_ReplicaDeclined, UpstreamError) as error:
            balancer.failed(placement_id)
            balancer.leave(placement_id, probe=probe)
            raise self._failure(error, model, route) from None
        except BaseException:
            balancer.leave(placement_id, probe=probe)
            if connection is not None:
                connection.abort()
            raise
        balancer.succeeded(placement_id)
        return UpstreamResponse(connection, model, call, route, pool, balancer, probe=probe)

    def _head_prefix(self, table: RoutingTable, route: RouteEntry, path: str) -> bytes:
        """Return the part of the head that all requests to a route share, up to the value of the request id."""
        if table is not self._head_prefixes_of:
            self._head_prefixes_of, self._head_prefixes = table, {}
        prefix = self._head_prefixes.get((route.placement_id, path))
        if prefix is None:
            host = table.endpoints[route.node_id].server_name
            engine_path = core.ENGINE_PATHS.get(path, path)
            prefix = self._head_prefixes[route.placement_id, path] = (
                f"POST {API_PREFIX}/instances/{route.placement_id}/relay{engine_path} HTTP/1.1\r\nHost: {host}\r\n"
                f"{MODEL_HEADER}: {route.model_id}\r\n{GENERATION_HEADER}: {route.generation}\r\nX-Request-Id: "
            ).encode()
        return prefix

    def _failure(self, error: Exception, model: ModelEntry, route: RouteEntry) -> Exception:
        """Return the exception to raise for `error`: the next replica may be tried, or downstream gets an error."""
        self._metrics.node_failures[route.node_id] += 1
        if isinstance(error, _ReplicaDeclined):
            return error
        log.warning("no response", node=route.node_id, model=model.id, reason=str(error))
        # A request that was sent may have ended the engine, or its machine: on another replica it would do the same.
        if isinstance(error, ConnectFailed):
            return _ReplicaDeclined(errors.node_offline(model.id, route.node_id))
        if isinstance(error, TimedOut):
            return errors.upstream_timeout(model.id, model.first_byte_seconds, errors.FIRST_BYTE_SETTING)
        return errors.broken_off(model.id)

    async def _exchange(
        self, pool: NodePool, call: UpstreamCall, model: ModelEntry, route: RouteEntry, head_prefix: bytes
    ) -> ClientConnection:
        """Send the request and wait for the head of the response; once more if a kept connection was stale."""
        now = pool.loop.time
        head = b"".join((head_prefix, call.request_id, _framing(call), call.headers, b"\r\n"))
        connection = pool.take_idle()
        kept, retried = connection is not None, False
        while True:
            started = now()
            try:
                if connection is None:
                    connection = await pool.obtain()
                    kept = connection.served > 0
                if call.read_more is None:
                    await _send_whole(connection, head, call.body)
                else:
                    await _send_body(connection, head, call, call.read_more)
                await connection.head(model.first_byte_seconds)
                return connection
            except ConnectionBroken as error:
                # The agent closed a kept connection in the meantime: the request never reached it.
                stale = kept and not retried and error.untouched and now() - started <= STALE_WITHIN_SECONDS
                if not stale or call.read_more is not None:
                    raise
                self._metrics.retries[route.node_id] += 1
                connection, retried, call.unaccounted = None, True, True
            except BaseException:
                if connection is not None:
                    connection.abort()
                raise
            finally:
                call.waited_seconds += now() - started

    async def _agent_error(self, connection: ClientConnection, model: ModelEntry, route: RouteEntry) -> Exception:
        """Return the exception to raise for a response of the agent itself, which is always an error."""
        text = b""
        while len(text) <= _MAX_AGENT_ERROR_BYTES and (data := await connection.read(model.idle_seconds)):
            text += data
        connection.abort()
        try:
            body = AgentErrorBody.model_validate_json(text)
        except ValidationError:
            log.warning("invalid error body from the agent", node=route.node_id, status=connection.status)
            return errors.upstream_failed(model.id)
        self._tables.rebuild_now()
        log.info("the agent refused", node=route.node_id, model=model.id, code=body.code, detail=body.detail)
        if body.code in _DECLINED:
            return _ReplicaDeclined(errors.model_not_ready(model.id), stale_table=True)
        if body.code is AgentCode.NOT_APPROVED:
            return _ReplicaDeclined(errors.node_pending_takeover(model.id, route.node_id))
        if body.code is AgentCode.ENGINE_UNREACHABLE:
            if body.fields.get("sent") is False:
                return _ReplicaDeclined(errors.upstream_failed(model.id))
            self.balancer.failed(route.placement_id)
            self._metrics.node_failures[route.node_id] += 1
            return errors.broken_off(model.id)
        return errors.upstream_failed(model.id)


def _is_stream(headers: Sequence[core.Header]) -> bool:
    return any(name == b"content-type" and core.is_event_stream(value) for name, value in headers)


async def _send_whole(connection: ClientConnection, head: bytes, body: bytes | bytearray) -> None:
    if len(body) <= _PIECE_BYTES:
        connection.begin(head, bytes(body))
        return
    # In pieces: encrypting a large body at once would hold up every other request.
    with memoryview(body) as view:
        connection.begin(head, b"", more=True)
        for start in range(0, len(body), _PIECE_BYTES):
            if not await connection.send(bytes(view[start : start + _PIECE_BYTES])):
                return  # the engine has responded already and needs no more of the body
    connection.end()


async def _send_body(
    connection: ClientConnection, head: bytes, call: UpstreamCall, read_more: Callable[[], Awaitable[bytes]]
) -> None:
    call.body_started = True  # the bytes read from downstream from here on cannot be read again
    connection.begin(head, bytes(call.body), more=True, chunked=call.length is None)
    while data := await read_more():
        if not await connection.send(data):
            return  # the engine has responded already and needs no more of the body
    connection.end()


def _framing(call: UpstreamCall) -> bytes:
    if call.read_more is None:
        return b"\r\nContent-Length: %d\r\n" % len(call.body)
    if call.length is not None:
        return b"\r\nContent-Length: %d\r\n" % call.length
    return b"\r\nTransfer-Encoding: chunked\r\n"
