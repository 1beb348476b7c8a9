"""One request to one engine: choice of the replica, waiting for it, the connection, and what may be tried again."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from pydantic import ValidationError

from agent.wire.base import (
    ANSWER_HEADER,
    API_PREFIX,
    GENERATION_HEADER,
    MODEL_HEADER,
)
from agent.wire.errors import AgentCode
from agent.wire.errors import Refusal as AgentRefusal
from models_app.gateway import core, refusals
from models_app.gateway.metrics import Figures
from models_app.gateway.pool import NodePool, Pools
from models_app.gateway.table import Model, Route, Table
from models_app.gateway.upstream import (
    STALE_WITHIN_SECONDS,
    Broken,
    ConnectFailed,
    Connection,
    TimedOut,
    UpstreamError,
)

log = structlog.get_logger(__name__)

_ANSWER = (ANSWER_HEADER.lower().encode(), b"engine")
_REFUSAL_BYTES = 64 * 1024
# The agent says these before the engine has seen anything, so another replica may be asked.
_NOT_TAKEN = frozenset({AgentCode.GENERATION_MISMATCH, AgentCode.NOT_FOUND, AgentCode.NOT_READY})


class Tables(Protocol):
    """Where the present routing table is, and its successor."""

    @property
    def table(self) -> Table:
        """The present table."""

    async def changed(self) -> None:
        """Wait for the next one."""

    def hurry(self) -> None:
        """Ask for the next one now."""


@dataclass(slots=True)
class Call:
    """What a client wants of an engine. `waited_seconds` sums up the time spent waiting, not working."""

    path: str
    name: str
    body: bytes
    headers: list[core.Header]
    request_id: bytes
    waited_seconds: float = 0.0
    model_id: str = ""
    node_id: str = ""


class _NotTaken(Exception):
    """A replica did not take the request; the next one may."""

    def __init__(self, refusal: refusals.Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


@dataclass(slots=True)
class Answer:
    """An engine's answer: `status`, `headers`, then `read` until b"". `close` is due in every case, once or more."""

    status: int
    headers: list[core.Header]
    model: Model
    _call: Call
    _route: Route
    _connection: Connection
    _pool: NodePool
    _flight: dict[str, int]
    _closed: bool = field(default=False)

    async def read(self) -> bytes:
        """The next bytes as they came, b"" at the end. Raises Refusal when the answer is cut short."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await self._connection.read(self.model.idle_seconds)
        except TimedOut:
            raise refusals.upstream_timeout(self.model.id) from None
        except UpstreamError as error:
            log.warning("answer cut short", model=self.model.id, node=self._route.node_id, reason=str(error))
            raise refusals.upstream_failed(self.model.id) from None
        finally:
            self._call.waited_seconds += loop.time() - began

    def close(self) -> None:
        """End the exchange: the connection goes back when the answer is whole, else it is closed at once."""
        if self._closed:
            return
        self._closed = True
        _leave(self._flight, self._route.placement_id)
        self._pool.release(self._connection)


def _leave(flight: dict[str, int], placement_id: str) -> None:
    left = flight[placement_id] - 1
    if left:
        flight[placement_id] = left
    else:
        del flight[placement_id]


class Exchanges:
    """Opens exchanges with engines, through the pools, by the present table."""

    def __init__(self, tables: Tables, pools: Pools, figures: Figures) -> None:
        self._tables = tables
        self._pools = pools
        self._figures = figures
        self._flight: dict[str, int] = {}

    @property
    def flight(self) -> Mapping[str, int]:
        """Exchanges under way by placement."""
        return self._flight

    async def open(self, call: Call, model: Model) -> Answer:
        """Send `call` to a replica of `model` and wait for the answer's head. Raises Refusal."""
        call.model_id = model.id
        tried: set[str] = set()
        refusal: refusals.Refusal | None = None
        while True:
            table = self._tables.table
            model = table.models.get(call.name, model)
            route = core.choose(table, model, self._count, tried)
            if isinstance(route, refusals.Refusal):
                if refusal is None and await self._waited(call, model, table):
                    continue
                raise refusal or route
            try:
                return await self._send(call, model, route, table)
            except _NotTaken as error:
                refusal = error.refusal
                tried.add(route.placement_id)

    def _count(self, placement_id: str) -> int:
        return self._flight.get(placement_id, 0)

    async def _waited(self, call: Call, model: Model, table: Table) -> bool:
        """Wait until `model` is no longer on its way, as long as it allows. Whether to look again."""
        if not model.wait_seconds or not core.is_coming(table, model):
            return False
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._figures.waiting[model.id] += 1
        try:
            async with asyncio.timeout(model.wait_seconds - call.waited_seconds):
                while core.is_coming(table, model) and not core.is_ready(table, model):
                    await self._tables.changed()
                    table = self._tables.table
                    model = table.models.get(call.name, model)
        except TimeoutError:
            return False
        finally:
            self._figures.waiting[model.id] -= 1
            call.waited_seconds += loop.time() - began
        return True

    async def _send(self, call: Call, model: Model, route: Route, table: Table) -> Answer:
        call.node_id = route.node_id
        pool = self._pools.of(table.endpoints[route.node_id])
        self._flight[route.placement_id] = self._count(route.placement_id) + 1
        connection: Connection | None = None
        try:
            connection = await self._ask(pool, call, model, route)
            answer = Answer(connection.status, connection.headers, model, call, route, connection, pool, self._flight)
            if _ANSWER not in connection.headers:
                raise await self._refused(connection, model, route)
        except ConnectFailed as error:
            _leave(self._flight, route.placement_id)
            log.warning("node not reached", node=route.node_id, model=model.id, reason=str(error))
            raise _NotTaken(refusals.node_offline(model.id, route.node_id)) from None
        except UpstreamError as error:
            _leave(self._flight, route.placement_id)
            if isinstance(error, TimedOut):
                raise refusals.upstream_timeout(model.id) from None
            log.warning("no answer", node=route.node_id, model=model.id, reason=str(error))
            raise refusals.upstream_failed(model.id) from None
        except BaseException:
            _leave(self._flight, route.placement_id)
            if connection is not None:
                connection.abort()
            raise
        return answer

    async def _ask(self, pool: NodePool, call: Call, model: Model, route: Route) -> Connection:
        loop = asyncio.get_running_loop()
        head = _head(pool.peer.server_name, call, route)
        connection = pool.take_idle()
        reused = connection is not None
        while True:
            began = loop.time()
            if connection is None:
                connection = await pool.connect()
            try:
                connection.begin(head, call.body)
                await connection.head(model.first_byte_seconds)
                return connection
            except Broken as error:
                # A kept connection that the agent closed meanwhile: the request never got there.
                if not reused or not error.untouched or loop.time() - began > STALE_WITHIN_SECONDS:
                    raise
                self._figures.retries[route.node_id] += 1
                connection, reused = None, False
            except BaseException:
                connection.abort()
                raise
            finally:
                call.waited_seconds += loop.time() - began

    async def _refused(self, connection: Connection, model: Model, route: Route) -> Exception:
        """What an answer of the agent itself means for the client."""
        text = b""
        while len(text) <= _REFUSAL_BYTES and (data := await connection.read(model.idle_seconds)):
            text += data
        connection.abort()
        try:
            said = AgentRefusal.model_validate_json(text)
        except ValidationError:
            log.warning("the agent answered in no known form", node=route.node_id, status=connection.status)
            return refusals.upstream_failed(model.id)
        self._tables.hurry()
        log.info("the agent refused", node=route.node_id, model=model.id, code=said.code, detail=said.detail)
        if said.code in _NOT_TAKEN:
            return _NotTaken(refusals.model_not_ready(model.id))
        if said.code is AgentCode.NOT_APPROVED:
            return _NotTaken(refusals.node_pending_takeover(model.id, route.node_id))
        return refusals.upstream_failed(model.id)


def _head(host: str, call: Call, route: Route) -> bytes:
    path = f"{API_PREFIX}/instances/{route.placement_id}/relay{call.path}"
    lines = [
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(call.body)}\r\n"
        f"{MODEL_HEADER}: {route.model_id}\r\n{GENERATION_HEADER}: {route.generation}\r\nX-Request-Id: ".encode(),
        call.request_id,
        b"\r\n",
    ]
    for name, value in call.headers:
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
