"""The gateway of one process: what its requests share, and its door beside Django, an ASGI app."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from agent.wire.http1.work import Works
from mirbad.kernel import clock
from models_app.gateway.access import AccessLog
from models_app.gateway.client import Asgi, Client, Receive, Scope, Send
from models_app.gateway.exchange import Exchanges
from models_app.gateway.limits import Limiter
from models_app.gateway.loader import Database, Loader, Source
from models_app.gateway.metrics import FIGURES, Figures
from models_app.gateway.notice import Notices
from models_app.gateway.pool import Pools
from models_app.gateway.recorder import Recorder, Sink
from models_app.gateway.table import Table
from models_app.gateway.visit import Visit

__all__ = ["Gateway", "Options", "Receive", "Scope", "Send"]

_ENDING_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """What an operator may set of the gateway."""

    max_body_bytes: int
    max_in_flight: int
    sticky: Literal["none", "session", "prefix"] = "none"


class Gateway:
    """The gateway of one process: start it in the event loop that serves, then it is an ASGI app for ``/v1``."""

    def __init__(
        self,
        options: Options,
        *,
        figures: Figures = FIGURES,
        source: Source | None = None,
        sink: Sink | None = None,
        access: AccessLog | None = None,
    ) -> None:
        self.options = options
        self.figures = figures
        database = Database()
        self.pools = Pools()
        self.loader = Loader(self._follow, source or database)
        self.notices = Notices(self.loader.nudge) if source is None else None
        self.recorder = Recorder(sink or database, access)
        self.exchanges = Exchanges(self.loader, self.pools, figures)
        self.limiter = Limiter()
        self.in_flight = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.now: Callable[[], float] = clock.monotonic
        self.visits = Works()

    async def start(self) -> None:
        """Read the routing table and begin to warm connections."""
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        await self.loader.start()
        await self.recorder.start()
        if self.notices is not None:
            self.notices.start()

    async def stop(self) -> None:
        """End what is still open with an error that its client can read, then close all connections."""
        # The server has cancelled what is still at work just now; it writes its last words.
        await self.visits.all_over(_ENDING_SECONDS)
        self.visits.cancel()
        if self.notices is not None:
            await self.notices.stop()
        await self.loader.stop()
        await self.recorder.stop()
        self.pools.close()
        self.loop = None

    def _follow(self, table: Table) -> None:
        self.pools.sync(table)
        self.exchanges.balance.keep_only(
            frozenset(route.placement_id for model in table.models.values() for route in model.routes)
        )
        self.figures.follow(table, self.pools.counts(), self.exchanges.balance)

    def serve(self, client: Client, path: str) -> Coroutine[Any, Any, None]:
        """Answer one request, whatever happens."""
        return Visit(self, client, path).run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI, for scopes of type http."""
        client = Asgi(scope, receive, send)
        await client.carry(self.serve(client, client.path))
