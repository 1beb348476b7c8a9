"""The loader of the routing table: reads the database in a thread of its own and swaps the table by reference."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol

import structlog
from django.db import connections, transaction
from django.db.models import F, OuterRef, Subquery
from django.db.models.fields.json import KT

from mirbad.kernel import clock
from models_app import routing, usage, windows
from models_app.fit import serve_plan
from models_app.gateway import errors
from models_app.gateway.table import KeyEntry, ModelEntry, NodeState, RouteEntry, RouteState, RoutingTable
from models_app.models import ApiKey, ModelDefinition, ModelSource, Placement
from models_app.models.definition import ON_FAILURE
from models_app.states import FAILED, READY, RUNNING, STARTING, STOPPED, UNKNOWN
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
_STARTING_STATES = frozenset({STARTING, STOPPED, UNKNOWN})
_WORST_FIRST = (RouteState.STOPPED, RouteState.DOWN, RouteState.RESTARTING, RouteState.STARTING, RouteState.READY)
_LONGEST_RETRY_SECONDS = 600
_MOST_DIGITS = 10


def build() -> RoutingTable:
    """Read the whole table, in a number of queries that does not grow with the rows."""
    if windows.is_recovering():
        return RoutingTable(version=routing.version(), closed=errors.restoring())
    version = routing.version()  # read first: a write during the queries below is then noticed at the next poll
    open_windows = OpenWindows(clock.now())
    routes, placed = _routes()
    models: dict[str, ModelEntry] = {}
    for definition in ModelDefinition.objects.only(*_MODEL_COLUMNS).annotate(repository=Subquery(_REPOSITORY)):
        usable = open_windows.apply(definition, routes.get(definition.id, []))
        model = _model(definition, tuple(usable))
        models.update(dict.fromkeys(model.names, model))
    nodes = dict(Node.objects.filter(lifecycle=APPROVED).values_list("id", "reachability"))
    return RoutingTable(
        version=version,
        keys=_keys(),
        models=models,
        nodes={node_id: _NODE_STATES.get(state, NodeState.OFFLINE) for node_id, state in nodes.items()},
        endpoints={node_id: end for node_id, end in transport.endpoints().items() if node_id in nodes},
        placed=placed,
        closed=open_windows.closed,
        paused=open_windows.models,
    )


class OpenWindows:
    """The open maintenance windows: the error for every request, or errors by model id and routes left out."""

    def __init__(self, now: datetime) -> None:
        self.closed: errors.GatewayError | None = None
        self.models: dict[str, errors.GatewayError] = {}
        self._nodes: dict[str, errors.GatewayError] = {}
        self._tested: dict[str, errors.GatewayError] = {}
        for window in windows.open_windows():
            error = errors.maintenance(windows.words(window, now), windows.retry_seconds(window, now))
            if not window.node_id_text:
                self.closed = self.closed or error
            else:
                self._nodes[window.node_id_text] = error
                self._tested[window.model_id_text] = error

    def apply(self, model: ModelDefinition, routes: list[RouteEntry]) -> list[RouteEntry]:
        """Return the routes of `model` that stay in use. If none does, `models` gets its error."""
        if model.id in self._tested:
            self.models[model.id] = self._tested[model.id]
            return routes
        if model.keep_serving or not self._nodes:
            return routes
        usable = [route for route in routes if route.node_id not in self._nodes]
        if routes and not usable:
            self.models[model.id] = self._nodes[routes[0].node_id]
            return routes
        return usable


class GatewayDatabase:
    """The source of the table and the sink of usage in production: this master's database. All methods block."""

    def read(self, known: int | None) -> RoutingTable | None:
        """Return the table, or None if its version is still `known`."""
        return None if known is not None and routing.version() == known else build()

    def write(self, used: set[int], sums: Mapping[usage.Place, usage.Sums]) -> None:
        """Record that the keys `used` were used now, and add `sums` to the stored ones."""
        with transaction.atomic():
            usage.add(sums)
            if used:
                usage.used(used)

    def close(self) -> None:
        """Close the connections of this thread."""
        connections.close_all()


def _keys() -> dict[str, KeyEntry]:
    found: dict[str, KeyEntry] = {}
    for row in ApiKey.objects.filter(revoked_at=None):
        key = KeyEntry(
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


_MODEL_COLUMNS = (
    "id",
    "served_names",
    "created_at",
    "keep_serving",
    "first_byte_timeout_seconds",
    "idle_timeout_seconds",
    "wait_when_starting_seconds",
    "runtime",
    "args",
    "context_length",
)


_REPOSITORY = (
    ModelSource.objects.filter(model=OuterRef("pk"))
    .exclude(repository="")
    .order_by("position")
    .values("repository")[:1]
)


def _context(definition: ModelDefinition, routes: tuple[RouteEntry, ...]) -> int | None:
    """Return the context of a request, as ready engines report it, else as the definition says it."""
    reported = [route.context_length for route in routes if route.state is RouteState.READY]
    known = [tokens for tokens in reported if tokens is not None]
    if known and len(known) == len(reported):
        return min(known)
    return _defined_context(definition.runtime, tuple(definition.args), definition.context_length)


@lru_cache(maxsize=1024)
def _defined_context(runtime: str, args: tuple[str, ...], context_length: int | None) -> int | None:
    return serve_plan(runtime, args, context_length=context_length).context_each


def _model(definition: ModelDefinition, routes: tuple[RouteEntry, ...]) -> ModelEntry:
    owner, slash, _ = (getattr(definition, "repository", None) or "").partition("/")
    return ModelEntry(
        id=definition.id,
        names=definition.names,
        created=int(definition.created_at.timestamp()),
        first_byte_seconds=definition.first_byte_timeout_seconds,
        idle_seconds=definition.idle_timeout_seconds,
        wait_seconds=definition.wait_when_starting_seconds,
        routes=routes,
        context_length=_context(definition, routes),
        owner=owner if slash else "",
    )


def _routes() -> tuple[dict[str, list[RouteEntry]], frozenset[tuple[str, str]]]:
    """Return the routes by model id, one per routed replica to its shard 0, and where models are placed. One query."""
    found: dict[str, list[RouteEntry]] = {}
    replicas: dict[Any, list[Placement]] = {}
    placed: set[tuple[str, str]] = set()
    rows = Placement.objects.order_by("created_at", "id").only(*_ROUTE_COLUMNS)
    for placement in rows.annotate(
        policy=F("model__restart_policy"),
        launched_at=KT("observed_view__startedAt"),
        context=KT("observed_view__contextLength"),
    ):
        placed.add((placement.model_id, placement.node_id_text))
        if placement.routed:
            replicas.setdefault(placement.replica, []).append(placement)
    for shards in replicas.values():
        head = next((placement for placement in shards if placement.shard == 0), None)
        if head is not None:
            found.setdefault(head.model_id, []).append(_route(head, _state(head, shards)))
    return found, frozenset(placed)


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
    "routed",
    "restart_at",
    "start_seconds",
)


def _state(head: Placement, shards: Sequence[Placement]) -> RouteState:
    """Return the state of a replica. It is down if a shard is missing: the others may report ready, and hang."""
    if len(shards) != head.shards:
        return RouteState.DOWN
    return min((_state_of(placement) for placement in shards), key=_WORST_FIRST.index)


def _state_of(placement: Placement) -> RouteState:
    if placement.desired == RUNNING:
        if placement.observed == READY:
            return RouteState.READY
        if placement.observed in _STARTING_STATES:
            return RouteState.STARTING
        if placement.observed == FAILED and getattr(placement, "policy", "") == ON_FAILURE:
            return RouteState.RESTARTING
        return RouteState.DOWN
    return RouteState.STOPPED if placement.desired == STOPPED else RouteState.DOWN


def _retry_seconds(placement: Placement, state: RouteState) -> int | None:
    """Return when the placement may be ready, by the measured time of its last start; None when that is unknown."""
    now, takes = clock.now(), placement.start_seconds
    if state is RouteState.RESTARTING:
        begins = max(now, placement.restart_at or now)
        return _whole((begins - now).total_seconds() + (takes or errors.STARTING_RETRY_SECONDS))
    if state is RouteState.STARTING and takes is not None:
        began = _time(getattr(placement, "launched_at", None))
        lasted = (now - began).total_seconds() if began is not None and placement.observed == STARTING else 0.0
        # One that takes longer than the last time may be ready at any moment.
        return _whole(takes - max(0.0, lasted)) if lasted < takes else errors.STARTING_RETRY_SECONDS
    return None


def _time(text: str | None) -> datetime | None:
    """Return a time that a node reported, None for one that cannot be read."""
    try:
        found = datetime.fromisoformat(str(text or ""))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _whole(seconds: float) -> int:
    return min(max(1, math.ceil(seconds)), _LONGEST_RETRY_SECONDS)


def _route(placement: Placement, state: RouteState) -> RouteEntry:
    # The agent compares with the running generation; a later change of GPUs counts up and takes effect at a restart.
    running = placement.observed_generation
    generation = placement.generation if running is None else running
    retry = _retry_seconds(placement, state)
    reported = str(getattr(placement, "context", ""))
    context = int(reported) if reported.isdecimal() and len(reported) <= _MOST_DIGITS else None
    return RouteEntry(str(placement.id), placement.model_id, placement.node_id_text, generation, state, retry, context)


class TableSource(Protocol):
    """The source of the table; `GatewayDatabase` in production."""

    def read(self, known: int | None) -> RoutingTable | None:
        """Return the table, or None if its version is still `known`."""

    def close(self) -> None:
        """Release the resources of the calling thread."""


class TableLoader:
    """The loop that polls the version every `POLL_SECONDS`, and rebuilds the table if it changed or is too old.

    While the database cannot be read, the last table stays in use and running models keep serving.
    """

    def __init__(self, on_change: Callable[[RoutingTable], None], source: TableSource) -> None:
        self._on_change = on_change
        self._source = source
        self._table = RoutingTable()
        self._built_at = 0.0
        self._failing = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="routing")
        self._task: asyncio.Task[None] | None = None
        self._swapped: asyncio.Event = asyncio.Event()
        self._wake: asyncio.Event = asyncio.Event()

    @property
    def table(self) -> RoutingTable:
        """Return the current table; its version is -1 until the first one has been read."""
        return self._table

    async def changed(self) -> None:
        """Wait for the next table."""
        await self._swapped.wait()

    def poll_now(self) -> None:
        """Poll the version now."""
        self._wake.set()

    def rebuild_now(self) -> None:
        """Rebuild the table now, whatever its version: it contradicts a node."""
        self._built_at = 0.0
        self._wake.set()

    async def start(self) -> None:
        """Read the first table (or log the error), then poll in the background."""
        await self.step()
        self._task = asyncio.create_task(self._run(), name="routing table")

    async def stop(self) -> None:
        """Stop polling and release the database connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._source.close)
        self._thread.shutdown(wait=False)

    async def step(self) -> bool:
        """Poll once. Return whether a new table was swapped in."""
        loop = asyncio.get_running_loop()
        try:
            table = await loop.run_in_executor(self._thread, self._work)
        except Exception:
            if not self._failing:
                log.exception("the routing table cannot be read; the last one stays in use")
            self._failing = True
            return False
        if self._failing:
            log.info("the routing table can be read again")
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
                await asyncio.sleep(POLL_SECONDS / 10)  # a node that refuses every request must not make this loop spin
            except TimeoutError:
                pass
            await self.step()

    def _work(self) -> RoutingTable | None:
        try:
            fresh = clock.monotonic() - self._built_at < REBUILD_SECONDS
            return self._source.read(self._table.version if fresh else None)
        except BaseException:
            self._source.close()  # never reuse a broken database connection
            raise
