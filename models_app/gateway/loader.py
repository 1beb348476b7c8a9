"""Keeps the routing table fresh: asks the database in a thread of its own, swaps the result in by reference."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

import structlog
from django.db import connections, transaction

from mirbad.kernel import clock
from models_app import routing, usage, windows
from models_app.gateway import refusals
from models_app.gateway.table import Key, Model, NodeState, Route, RouteState, Table
from models_app.models import ApiKey, ModelDefinition, Placement
from models_app.states import READY, RUNNING, STARTING, STOPPED, UNKNOWN
from nodes.link import transport
from nodes.models import Node
from nodes.states import APPROVED, FENCED, INCOMPATIBLE, ONLINE

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.5
REBUILD_SECONDS = 1.5

_NODE_STATES = {
    ONLINE: NodeState.SERVING,
    INCOMPATIBLE: NodeState.INCOMPATIBLE,
    FENCED: NodeState.PENDING_TAKEOVER,
}
_COMING = frozenset({STARTING, STOPPED, UNKNOWN})


def build() -> Table:
    """Read the whole table, in a number of queries that does not grow with the rows."""
    if windows.is_recovering():
        return Table(version=routing.version(), closed=refusals.restoring())
    version = routing.version()  # first: a write between this and the last query is seen at the next look
    pause = Pause(clock.now())
    routes = _routes()
    models: dict[str, Model] = {}
    for definition in ModelDefinition.objects.only(
        "id",
        "served_names",
        "created_at",
        "keep_serving",
        "first_byte_timeout_seconds",
        "idle_timeout_seconds",
        "wait_when_starting_seconds",
    ):
        left = pause.apply(definition, routes.get(definition.id, []))
        model = _model(definition, tuple(left))
        models.update(dict.fromkeys(model.names, model))
    nodes = dict(Node.objects.filter(lifecycle=APPROVED).values_list("id", "reachability"))
    return Table(
        version=version,
        keys=_keys(),
        models=models,
        nodes={node_id: _NODE_STATES.get(seen, NodeState.OFFLINE) for node_id, seen in nodes.items()},
        endpoints={node_id: end for node_id, end in transport.endpoints().items() if node_id in nodes},
        closed=pause.closed,
        paused=pause.models,
    )


class Pause:
    """What open windows keep from being used, as they are now."""

    def __init__(self, now: datetime) -> None:
        self.closed: refusals.Refusal | None = None
        self.models: dict[str, refusals.Refusal] = {}
        self._nodes: dict[str, refusals.Refusal] = {}
        self._tested: dict[str, refusals.Refusal] = {}
        for window in windows.open_windows():
            refusal = refusals.maintenance(windows.words(window, now), windows.retry_seconds(window, now))
            if not window.node_id_text:
                self.closed = self.closed or refusal
            else:
                self._nodes[window.node_id_text] = refusal
                self._tested[window.model_id_text] = refusal

    def apply(self, model: ModelDefinition, routes: list[Route]) -> list[Route]:
        """The routes of `model` that stay in use; `models` names it when none does."""
        if model.id in self._tested:
            self.models[model.id] = self._tested[model.id]
            return routes
        if model.keep_serving or not self._nodes:
            return routes
        left = [route for route in routes if route.node_id not in self._nodes]
        if routes and not left:
            self.models[model.id] = self._nodes[routes[0].node_id]
            return routes
        return left


class Database:
    """The source of the table and the sink of sums in production: the rows of this master. All methods block."""

    def read(self, known: int | None) -> Table | None:
        """The table, or None when its version is still the `known` one."""
        return None if known is not None and routing.version() == known else build()

    def write(self, used: set[int], sums: Mapping[usage.Place, usage.Sums]) -> None:
        """Note which keys were used, and add the sums."""
        with transaction.atomic():
            usage.add(sums)
            if used:
                usage.used(used)

    def close(self) -> None:
        """Give back this thread's connection."""
        connections.close_all()


def _keys() -> dict[str, Key]:
    found: dict[str, Key] = {}
    for row in ApiKey.objects.filter(revoked_at=None):
        key = Key(
            row.pk,
            row.name,
            frozenset(row.allowed_models) if row.allowed_models else None,
            row.expires_at,
            row.requests_per_minute,
            row.tokens_per_minute,
            row.max_parallel,
        )
        found[row.digest] = key
        if row.previous_digest and row.previous_until is not None:
            ends = (end for end in (row.expires_at, row.previous_until) if end is not None)
            found[row.previous_digest] = replace(key, expires_at=min(ends))
    return found


def _model(definition: ModelDefinition, routes: tuple[Route, ...]) -> Model:
    return Model(
        id=definition.id,
        names=definition.names,
        created=int(definition.created_at.timestamp()),
        first_byte_seconds=definition.first_byte_timeout_seconds,
        idle_seconds=definition.idle_timeout_seconds,
        wait_seconds=definition.wait_when_starting_seconds,
        routes=routes,
    )


def _routes() -> dict[str, list[Route]]:
    """The routes by model: one for each routed replica, to its shard 0. One query."""
    found: dict[str, list[Route]] = {}
    replicas: dict[Any, list[Placement]] = {}
    for placement in Placement.objects.filter(routed=True).order_by("created_at", "id").only(*_ROUTE_COLUMNS):
        replicas.setdefault(placement.replica, []).append(placement)
    for shards in replicas.values():
        head = next((placement for placement in shards if placement.shard == 0), None)
        if head is not None:
            found.setdefault(head.model_id, []).append(_route(head, _state(head, shards)))
    return found


_ROUTE_COLUMNS = (
    "id",
    "model_id",
    "node_id_text",
    "generation",
    "observed_generation",
    "desired",
    "observed",
    "replica",
    "shard",
    "shards",
)


def _state(head: Placement, shards: Sequence[Placement]) -> RouteState:
    """A replica that lacks a shard is down: what is left of it may well say that it is ready, and hangs."""
    each = [_state_of(placement) for placement in shards]
    if len(shards) != head.shards or RouteState.DOWN in each:
        return RouteState.DOWN
    return RouteState.COMING if RouteState.COMING in each else RouteState.READY


def _state_of(placement: Placement) -> RouteState:
    if placement.desired == RUNNING:
        if placement.observed == READY:
            return RouteState.READY
        if placement.observed in _COMING:
            return RouteState.COMING
    return RouteState.DOWN


def _route(placement: Placement, state: RouteState) -> Route:
    # The agent compares with what runs; other GPUs chosen meanwhile count the placement up and wait for a restart.
    running = placement.observed_generation
    generation = placement.generation if running is None else running
    return Route(str(placement.id), placement.model_id, placement.node_id_text, generation, state)


class Source(Protocol):
    """Where the table comes from; `Database` in production."""

    def read(self, known: int | None) -> Table | None:
        """The table, or None when its version is still the `known` one."""

    def close(self) -> None:
        """Give back what the calling thread holds."""


class Loader:
    """Polls the version every `POLL_SECONDS`, rebuilds when it moved and every `REBUILD_SECONDS`.

    While the database cannot be read the last table stays in use: what runs goes on being served.
    """

    def __init__(self, on_change: Callable[[Table], None], source: Source) -> None:
        self._on_change = on_change
        self._source = source
        self._table = Table()
        self._built_at = 0.0
        self._failing = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="routing")
        self._task: asyncio.Task[None] | None = None
        self._swapped: asyncio.Event = asyncio.Event()
        self._wake: asyncio.Event = asyncio.Event()

    @property
    def table(self) -> Table:
        """The present table; version -1 before the first could be read."""
        return self._table

    async def changed(self) -> None:
        """Wait for the next table."""
        await self._swapped.wait()

    def nudge(self) -> None:
        """Look now whether the version moved."""
        self._wake.set()

    def hurry(self) -> None:
        """Read the table again now: what it says does not agree with what a node says."""
        self._built_at = 0.0
        self._wake.set()

    async def start(self) -> None:
        """Read the first table (or log why not), then go on in the background."""
        await self.step()
        self._task = asyncio.create_task(self._run(), name="routing table")

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._source.close)
        self._thread.shutdown(wait=False)

    async def step(self) -> bool:
        """One look at the database; whether a new table was swapped in."""
        loop = asyncio.get_running_loop()
        try:
            table = await loop.run_in_executor(self._thread, self._work)
        except Exception:
            if not self._failing:
                log.exception("the routing table cannot be read; the last one stays in use")
            self._failing = True
            return False
        if self._failing:
            log.info("the routing table is read again")
            self._failing = False
        if table is None:
            return False
        self._built_at = clock.monotonic()
        self._table = table
        self._swapped.set()
        self._swapped = asyncio.Event()
        self._on_change(table)
        return True

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(POLL_SECONDS / 10)  # a node that refuses all must not make this loop hot
            except TimeoutError:
                pass
            await self.step()

    def _work(self) -> Table | None:
        try:
            fresh = clock.monotonic() - self._built_at < REBUILD_SECONDS
            return self._source.read(self._table.version if fresh else None)
        except BaseException:
            self._source.close()  # a connection that broke is not used again
            raise
