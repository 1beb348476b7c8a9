"""One request to one engine: choice of the replica, waiting for it, the connection, and what may be tried again."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

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
from agent.wire.http1.client import (
    STALE_WITHIN_SECONDS,
    Broken,
    ConnectFailed,
    Connection,
    TimedOut,
    UpstreamError,
)
from mirbad.kernel import clock
from models_app.gateway import core, refusals
from models_app.gateway.balance import Balance
from models_app.gateway.metrics import Figures
from models_app.gateway.pool import NodePool, Pools
from models_app.gateway.table import Model, Route, Table

log = structlog.get_logger(__name__)

T = TypeVar("T")

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
    """What a client wants of an engine. `waited_seconds` sums up the time spent waiting, not working.

    `more` gives what of the body follows `body`, b"" at its end; the whole has `length` bytes, None when that is not
    known. `familiar` is what stickiness goes by.
    """

    path: str
    name: str
    body: bytes
    headers: list[core.Header]
    request_id: bytes
    waited_seconds: float = 0.0
    model_id: str = ""
    node_id: str = ""
    more: Callable[[], Awaitable[bytes]] | None = None
    length: int | None = None
    familiar: bytes | None = None
    begun: bool = False


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
    _balance: Balance
    _closed: bool = field(default=False)

    @property
    def done(self) -> bool:
        """Whether the engine has said all; what `take` then gives is the last."""
        return self._connection.done

    def take(self) -> bytes:
        """What is here now, without waiting."""
        return self._connection.take()

    async def read(self) -> bytes:
        """The next bytes as they came, b"" at the end. Raises Refusal when the answer is cut short."""
        return await self._watched(self._connection.read(self.model.idle_seconds))

    async def _watched(self, work: Awaitable[T]) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await work
        except TimedOut:
            raise refusals.upstream_timeout(self.model.id) from None
        except UpstreamError as error:
            self._balance.failed(self._route.placement_id)
            log.warning("answer cut short", model=self.model.id, node=self._route.node_id, reason=str(error))
            raise refusals.upstream_failed(self.model.id) from None
        finally:
            self._call.waited_seconds += loop.time() - began

    async def stream(self, sink: Callable[[bytes], bool]) -> None:
        """Give each piece to `sink` as it comes, until the end or until it gives False. Raises Refusal like `read`."""
        await self._watched(self._connection.stream(sink, self.model.idle_seconds))

    def close(self) -> None:
        """End the exchange: the connection goes back when the answer is whole, else it is closed at once."""
        if self._closed:
            return
        self._closed = True
        self._balance.leave(self._route.placement_id)
        self._pool.release(self._connection)


class Exchanges:
    """Opens exchanges with engines, through the pools, by the present table."""

    def __init__(self, tables: Tables, pools: Pools, figures: Figures) -> None:
        self._tables = tables
        self._pools = pools
        self._figures = figures
        self.balance = Balance(clock.monotonic)

    @property
    def flight(self) -> Mapping[str, int]:
        """Exchanges under way by placement."""
        return self.balance.flight

    async def open(self, call: Call, model: Model) -> Answer:
        """Send `call` to a replica of `model` and wait for the answer's head. Raises Refusal."""
        call.model_id = model.id
        tried: set[str] = set()
        refusal: refusals.Refusal | None = None
        while True:
            table = self._tables.table
            model = table.models.get(call.name, model)
            routes = core.usable(table, model, tried)
            if not routes:
                if refusal is None and await self._waited(call, model, table):
                    continue
                raise refusal or core.why_none(table, model)
            route = self.balance.pick(routes, call.familiar)
            try:
                return await self._send(call, model, route, table)
            except _NotTaken as error:
                if call.more is not None and call.begun:
                    raise error.refusal from None
                refusal = error.refusal
                tried.add(route.placement_id)
                self._figures.retries[route.node_id] += 1

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
        balance, placement = self.balance, route.placement_id
        balance.enter(placement)
        connection: Connection | None = None
        try:
            connection = await self._ask(pool, call, model, route)
            if _ANSWER not in connection.headers:
                raise await self._refused(connection, model, route)
        except (_NotTaken, UpstreamError) as error:
            balance.failed(placement)
            balance.leave(placement)
            raise self._meaning(error, call, model, route) from None
        except BaseException:
            balance.leave(placement)
            if connection is not None:
                connection.abort()
            raise
        balance.succeeded(placement)
        return Answer(connection.status, connection.headers, model, call, route, connection, pool, balance)

    def _meaning(self, error: Exception, call: Call, model: Model, route: Route) -> Exception:
        """What a failure means: another replica may be asked, or the client is told."""
        self._figures.node_failures[route.node_id] += 1
        if isinstance(error, _NotTaken):
            return error
        log.warning("no answer", node=route.node_id, model=model.id, reason=str(error))
        if isinstance(error, ConnectFailed):
            return _NotTaken(refusals.node_offline(model.id, route.node_id))
        if isinstance(error, TimedOut):
            return refusals.upstream_timeout(model.id)
        failed = refusals.upstream_failed(model.id)
        # Not one byte of an answer came: to ask again costs work, but no client sees two answers.
        again = isinstance(error, Broken) and error.untouched and call.more is None
        return _NotTaken(failed) if again else failed

    async def _ask(self, pool: NodePool, call: Call, model: Model, route: Route) -> Connection:
        loop = asyncio.get_running_loop()
        head = _head(pool.peer.server_name, call, route)
        connection = pool.take_idle()
        reused = connection is not None
        while True:
            began = loop.time()
            try:
                if connection is None:
                    connection = await pool.connect()
                await _transmit(connection, head, call)
                await connection.head(model.first_byte_seconds)
                return connection
            except Broken as error:
                # A kept connection that the agent closed meanwhile: the request never got there.
                stale = reused and error.untouched and loop.time() - began <= STALE_WITHIN_SECONDS
                if not stale or call.more is not None:
                    raise
                self._figures.retries[route.node_id] += 1
                connection, reused = None, False
            except BaseException:
                if connection is not None:
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
        if said.code is AgentCode.ENGINE_UNREACHABLE:
            return _NotTaken(refusals.upstream_failed(model.id))
        return refusals.upstream_failed(model.id)


async def _transmit(connection: Connection, head: bytes, call: Call) -> None:
    if call.more is None:
        connection.begin(head, call.body)
        return
    call.begun = True  # what is read of the client now cannot be read again
    connection.begin(head, call.body, more=True, chunked=call.length is None)
    while data := await call.more():
        if not await connection.send(data):
            return  # the engine has answered already: it wants no more
    connection.end()


def _head(host: str, call: Call, route: Route) -> bytes:
    engine_path = core.ENGINE_PATHS.get(call.path, call.path)
    if call.more is None:
        framing = f"Content-Length: {len(call.body)}"
    elif call.length is not None:
        framing = f"Content-Length: {call.length}"
    else:
        framing = "Transfer-Encoding: chunked"
    lines = [
        f"POST {API_PREFIX}/instances/{route.placement_id}/relay{engine_path} HTTP/1.1\r\nHost: {host}\r\n{framing}\r\n"
        f"{MODEL_HEADER}: {route.model_id}\r\n{GENERATION_HEADER}: {route.generation}\r\nX-Request-Id: ".encode(),
        call.request_id,
        b"\r\n",
    ]
    for name, value in call.headers:
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
