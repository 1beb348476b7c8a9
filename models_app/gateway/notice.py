"""Hears of changes over the broker, so that the routing table is looked at at once and not at the next poll.

A notice may be lost, and without a broker there are none: the poll alone keeps the promise of two seconds.
"""

import asyncio
from collections.abc import Callable

import structlog
from channels.layers import get_channel_layer
from django.conf import settings

from mirbad.live.hints import GROUP

log = structlog.get_logger(__name__)

TOPICS = frozenset({"keys", "models", "nodes"})
JOIN_AGAIN_SECONDS = 3600.0
_PAUSE_SECONDS = 5.0


class Notices:
    """Calls `nudge` for each hint that may concern the table, from `start` to `stop`."""

    def __init__(self, nudge: Callable[[], None]) -> None:
        self._nudge = nudge
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen, when there is a broker."""
        if settings.REDIS_URL:
            self._task = asyncio.create_task(self._run(), name="routing notices")

    async def stop(self) -> None:
        """Listen no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        broken = False
        while True:
            try:
                await self._listen()
                broken = False
            except Exception:  # the loop's edge: the broker may be away, and the table is polled
                if not broken:
                    log.exception("no notices of changes; the routing table is polled meanwhile")
                broken = True
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _listen(self) -> None:
        """Hear notices until it is time to join again: a member of a group is forgotten after a day."""
        layer = get_channel_layer()
        channel = await layer.new_channel()
        await layer.group_add(GROUP, channel)
        try:
            async with asyncio.timeout(JOIN_AGAIN_SECONDS):
                while True:
                    message = await layer.receive(channel)
                    if message.get("topic") in TOPICS:
                        self._nudge()
        except TimeoutError:
            return
        finally:
            await layer.group_discard(GROUP, channel)
