"""One request to one engine: choice of the replica, waiting for it, the connection, and what may be tried again."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
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
from agent.wire.http1.work import as_task
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
_FRESH_SECONDS = 1.0
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

    `headers` are the lines of those that go on. `more` gives what of the body follows `body`, b"" at its end; the whole
    has `length` bytes, None when that is not known. `familiar` is what stickiness goes by.
    """

    path: str
    name: str
    body: bytes
    headers: bytes
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

    def __init__(self, refusal: refusals.Refusal, *, stale: bool = False) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal
        self.stale = stale
        """Whether the node disagrees with the table: a newer one may name another place."""


class Answer:
    """An engine's answer: `status`, `headers`, then `read` until b"". `close` is due in every case, once or more."""

    __slots__ = ("_balance", "_call", "_closed", "_connection", "_pool", "_route", "headers", "model", "status")

    def __init__(
        self, connection: Connection, model: Model, call: Call, route: Route, pool: NodePool, balance: Balance
    ) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self.model = model
        self._call = call
        self._route = route
        self._connection = connection
        self._pool = pool
        self._balance = balance
        self._closed = False

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
        self._heads: dict[tuple[str, str], bytes] = {}
        self._heads_of: Table | None = None
        self.balance = Balance(clock.monotonic)

    @property
    def flight(self) -> Mapping[str, int]:
        """Exchanges under way by placement."""
        return self.balance.flight

    async def open(self, call: Call, model: Model) -> Answer:
        """Send `call` to a replica of `model` and wait for the answer's head. Raises Refusal."""
        call.model_id = model.id
        tried: set[str] | None = None
        refusal: refusals.Refusal | None = None
        stale: Table | None = None
        while True:
            table = self._tables.table
            model = table.models.get(call.name, model)
            routes = core.usable(table, model, tried or ())
            if not routes:
                if refusal is None and model.wait_seconds and await as_task(self._waited(call, model, table)):
                    continue
                if stale is table and await as_task(self._fresher(call, table)):
                    continue
                raise refusal or core.why_none(table, model)
            route = self.balance.pick(routes, call.familiar)
            try:
                return await self._send(call, model, route, table)
            except _NotTaken as error:
                if call.more is not None and call.begun:
                    raise error.refusal from None
                refusal = error.refusal
                stale = table if error.stale else None
                tried = {*(tried or ()), route.placement_id}
                self._figures.retries[route.node_id] += 1

    async def _fresher(self, call: Call, table: Table) -> bool:
        """Wait a moment for the successor of `table`, which `hurry` has asked for; whether it came."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(_FRESH_SECONDS):
                while self._tables.table is table:
                    await self._tables.changed()
        except TimeoutError:
            return False
        finally:
            call.waited_seconds += loop.time() - began
        return True

    async def _waited(self, call: Call, model: Model, table: Table) -> bool:
        """Wait until `model` is no longer on its way, as long as it allows. Whether to look again."""
        if not core.is_coming(table, model):
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
            connection = await self._ask(pool, call, model, route, self._start_of_head(table, route, call.path))
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
        return Answer(connection, model, call, route, pool, balance)

    def _start_of_head(self, table: Table, route: Route, path: str) -> bytes:
        """What the heads of all requests to a route have in common, up to the value of the request's id."""
        if table is not self._heads_of:
            self._heads_of, self._heads = table, {}
        found = self._heads.get((route.placement_id, path))
        if found is None:
            host = table.endpoints[route.node_id].server_name
            engine_path = core.ENGINE_PATHS.get(path, path)
            found = self._heads[route.placement_id, path] = (
                f"POST {API_PREFIX}/instances/{route.placement_id}/relay{engine_path} HTTP/1.1\r\nHost: {host}\r\n"
                f"{MODEL_HEADER}: {route.model_id}\r\n{GENERATION_HEADER}: {route.generation}\r\nX-Request-Id: "
            ).encode()
        return found

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

    async def _ask(self, pool: NodePool, call: Call, model: Model, route: Route, start: bytes) -> Connection:
        now = pool.loop.time
        head = b"".join((start, call.request_id, _framing(call), call.headers, b"\r\n"))
        connection = pool.take_idle()
        kept, again = connection is not None, False
        while True:
            began = now()
            try:
                if connection is None:
                    connection = await pool.obtain()
                    kept = connection.served > 0
                if call.more is None:
                    connection.begin(head, call.body)
                else:
                    await _transmit(connection, head, call, call.more)
                await connection.head(model.first_byte_seconds)
                return connection
            except Broken as error:
                # A kept connection that the agent closed meanwhile: the request never got there.
                stale = kept and not again and error.untouched and now() - began <= STALE_WITHIN_SECONDS
                if not stale or call.more is not None:
                    raise
                self._figures.retries[route.node_id] += 1
                connection, again = None, True
            except BaseException:
                if connection is not None:
                    connection.abort()
                raise
            finally:
                call.waited_seconds += now() - began

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
            return _NotTaken(refusals.model_not_ready(model.id), stale=True)
        if said.code is AgentCode.NOT_APPROVED:
            return _NotTaken(refusals.node_pending_takeover(model.id, route.node_id))
        if said.code is AgentCode.ENGINE_UNREACHABLE:
            return _NotTaken(refusals.upstream_failed(model.id))
        return refusals.upstream_failed(model.id)


async def _transmit(connection: Connection, head: bytes, call: Call, more: Callable[[], Awaitable[bytes]]) -> None:
    call.begun = True  # what is read of the client now cannot be read again
    connection.begin(head, call.body, more=True, chunked=call.length is None)
    while data := await more():
        if not await connection.send(data):
            return  # the engine has answered already: it wants no more
    connection.end()


def _framing(call: Call) -> bytes:
    if call.more is None:
        return b"\r\nContent-Length: %d\r\n" % len(call.body)
    if call.length is not None:
        return b"\r\nContent-Length: %d\r\n" % call.length
    return b"\r\nTransfer-Encoding: chunked\r\n"
