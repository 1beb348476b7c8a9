"""Invalidations from the broker, so that the routing table is checked at once instead of at the next poll.

An invalidation may be lost, and without a broker there are none: the poll alone guarantees two seconds.
"""

import asyncio
from collections.abc import Callable

import structlog
from channels.layers import get_channel_layer
from django.conf import settings

from mirbad.live.invalidations import GROUP, topics_in

log = structlog.get_logger(__name__)

TOPICS = frozenset({"keys", "models", "nodes"})
REJOIN_SECONDS = 3600.0
_RETRY_SECONDS = 5.0


class InvalidationListener:
    """A listener that calls `poll_now` for each invalidation that may concern the table."""

    def __init__(self, poll_now: Callable[[], None]) -> None:
        self._poll_now = poll_now
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen if a broker is configured."""
        if settings.REDIS_URL:
            self._task = asyncio.create_task(self._run(), name="routing invalidations")

    async def stop(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        broken = False
        while True:
            try:
                await self._listen()
                broken = False
            except Exception:  # edge of the loop: the broker may be down, and the table is polled anyway
                if not broken:
                    log.exception("no invalidations from the broker; the routing table is polled instead")
                broken = True
                await asyncio.sleep(_RETRY_SECONDS)

    async def _listen(self) -> None:
        """Listen for `REJOIN_SECONDS`, then return to join again: Channels drops a group member after a day."""
        layer = get_channel_layer()
        channel = await layer.new_channel()
        await layer.group_add(GROUP, channel)
        try:
            async with asyncio.timeout(REJOIN_SECONDS):
                while True:
                    message = await layer.receive(channel)
                    if topics_in(message) & TOPICS:
                        self._poll_now()
        except TimeoutError:
            return
        finally:
            await layer.group_discard(GROUP, channel)
