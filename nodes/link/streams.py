"""The open event streams of an event loop; streams end whose node has another endpoint by now.

One query serves all of them, so that it costs the same for one node and for a thousand.
"""

import asyncio
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from django.db import DatabaseError

from mirbad.kernel.errors import MirbadError
from nodes.link import pools
from nodes.link.transport import Endpoint, outdated

log = structlog.get_logger(__name__)

CHECK_SECONDS = 0.7


class Streams:
    """The streams of one event loop. `hold` one while it is read; it ends within a second of a revoke."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Endpoint, Callable[[], None]]] = {}
        self._look: asyncio.Task[None] | None = None
        self._count = 0

    @contextmanager
    def hold(self, endpoint: Endpoint, hang_up: Callable[[], None]) -> Iterator[None]:
        """Register a stream from `endpoint` until the block ends; `hang_up` breaks it."""
        self._count += 1
        key = self._count
        self._open[key] = (endpoint, hang_up)
        if self._look is None or self._look.done():
            self._look = asyncio.get_running_loop().create_task(self._keep_looking(), name="node streams")
        try:
            yield
        finally:
            del self._open[key]
            if not self._open and self._look is not None:
                self._look.cancel()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.look()
            except (DatabaseError, MirbadError) as error:
                log.warning("the endpoints of open streams could not be checked", why=str(error))

    async def look(self) -> int:
        """End the streams whose nodes have another endpoint now; return how many."""
        held = list(self._open.values())
        gone = set(map(id, await pools.database_threads().run(lambda: outdated([endpoint for endpoint, _ in held]))))
        ended = [hang_up for endpoint, hang_up in held if id(endpoint) in gone]
        for hang_up in ended:
            hang_up()
        return len(ended)


_streams: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Streams]" = weakref.WeakKeyDictionary()


def of_running_loop() -> Streams:
    """Return the streams of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _streams.get(loop)
    if found is None:
        found = _streams[loop] = Streams()
    return found
