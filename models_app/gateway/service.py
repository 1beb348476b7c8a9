"""The gateway of one process: the objects that all its requests share, and its ASGI application."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from agent.common.http1.inline_task import InlineTasks
from mirbad.kernel import clock
from models_app.gateway.access import AccessLog
from models_app.gateway.arrival import BodyArrival, BodyPace, BodyReader
from models_app.gateway.downstream import AsgiDownstream, Downstream, Receive, Scope, Send
from models_app.gateway.invalidation import InvalidationListener
from models_app.gateway.limits import BodyBudget, KeyLimiter, RequestPlaces
from models_app.gateway.loader import GatewayDatabase, TableLoader, TableSource
from models_app.gateway.metrics import METRICS, GatewayMetrics
from models_app.gateway.pool import UpstreamPools
from models_app.gateway.recorder import UsageRecorder, UsageSink
from models_app.gateway.request import GatewayRequest
from models_app.gateway.table import RoutingTable
from models_app.gateway.upstream import Upstream

__all__ = ["Gateway", "GatewayOptions", "Receive", "Scope", "Send"]

_STOP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The settings of the gateway. `max_buffered_bytes` None: four bodies of the largest size."""

    max_body_bytes: int
    max_in_flight: int
    sticky: Literal["none", "session", "prefix"] = "none"
    max_buffered_bytes: int | None = None
    origins: frozenset[str] = frozenset()
    pace: BodyPace = field(default_factory=BodyPace)

    def budget(self) -> BodyBudget:
        """Return the budget of bytes: a key may use half of it, and one body of the largest size always fits."""
        largest = self.max_body_bytes
        total = max(largest, 4 * largest if self.max_buffered_bytes is None else self.max_buffered_bytes)
        return BodyBudget(total, max(largest, total // 2))


class Gateway:
    """The gateway of one process. Start it in the event loop that serves; then it is an ASGI app for ``/v1``."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        metrics: GatewayMetrics = METRICS,
        source: TableSource | None = None,
        sink: UsageSink | None = None,
        access: AccessLog | None = None,
    ) -> None:
        self.options = options
        self.metrics = metrics
        database = GatewayDatabase()
        self.pools = UpstreamPools()
        self.loader = TableLoader(self._follow, source or database)
        self.invalidations = InvalidationListener(self.loader.poll_now) if source is None else None
        self.recorder = UsageRecorder(sink or database, access)
        self.upstream = Upstream(self.loader, self.pools, metrics)
        self.limiter = KeyLimiter()
        self.places = RequestPlaces(options.max_in_flight)
        self.budget = options.budget()
        self.bodies = BodyReader()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.now: Callable[[], float] = clock.monotonic
        self.requests = InlineTasks()

    async def start(self) -> None:
        """Read the routing table and begin to open warm connections."""
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        await self.loader.start()
        await self.recorder.start()
        if self.invalidations is not None:
            self.invalidations.start()

    async def stop(self) -> None:
        """End open requests with an error that their clients can read, then close all connections."""
        # The server has just cancelled the open requests; they are sending their errors.
        await self.requests.all_over(_STOP_SECONDS)
        self.requests.cancel()
        if self.invalidations is not None:
            await self.invalidations.stop()
        await self.loader.stop()
        await self.recorder.stop()
        self.pools.close()
        self.loop = None

    def _follow(self, table: RoutingTable) -> None:
        self.pools.sync(table)
        self.upstream.balancer.keep_only(
            frozenset(route.placement_id for model in table.models.values() for route in model.routes)
        )
        self.metrics.follow(table, self.pools.counts(), self.upstream.balancer)

    def arrival(self, downstream: Downstream, key_id: int) -> BodyArrival:
        """Return the arrival of a request's body, which counts towards this process's limits."""
        options = self.options
        return BodyArrival(
            downstream, options.pace, self.budget, self.now, key_id=key_id, limit_bytes=options.max_body_bytes
        )

    def serve(self, downstream: Downstream, path: str) -> Coroutine[Any, Any, None]:
        """Serve one request, whatever happens."""
        return GatewayRequest(self, downstream, path).run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope of type http."""
        downstream = AsgiDownstream(scope, receive, send)
        await downstream.run(self.serve(downstream, downstream.path))
