"""The one websocket of a page: passes on invalidations to viewers."""

import asyncio
import json
from importlib import import_module
from typing import Any

from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from mirbad.kernel.roles import VIEWER, has_role
from mirbad.live.invalidations import GROUP

COALESCE_SECONDS = 0.2
UNAUTHORIZED = 4401


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Sends ``{"topic", "id"}`` for each invalidation. Close code 4401: not signed in, or no longer.

    Invalidations that arrive close together are sent once, and the session is read again before each send, so a person
    whose rights ended receives nothing more.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: dict[tuple[str, str], None] = {}
        self._flusher: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Refuse strangers before the socket opens."""
        if not await self._may_look():
            # Accepted first: a close code reaches the browser only over an open socket.
            await self.accept()
            await self.close(UNAUTHORIZED)
            return
        await self.channel_layer.group_add(GROUP, self.channel_name)
        await self.accept()

    async def disconnect(self, code: int) -> None:
        """Leave the group; the layer may be gone already."""
        if self._flusher is not None:
            self._flusher.cancel()
        await self.channel_layer.group_discard(GROUP, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Ignore messages from pages, except a ping, whose response shows that the connection works."""
        if text_data == "ping":
            await self.send(text_data="pong")

    async def invalidations(self, event: dict[str, Any]) -> None:
        """Handle one message of the group."""
        for topic, subject in event["changed"]:
            self._waiting[str(topic), str(subject)] = None
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        await asyncio.sleep(COALESCE_SECONDS)
        if not await self._may_look():
            await self.close(UNAUTHORIZED)
            return
        waiting, self._waiting = list(self._waiting), {}
        for topic, subject in waiting:
            await self.send(text_data=json.dumps({"topic": topic, "id": subject}))

    async def _may_look(self) -> bool:
        if "session" not in self.scope:
            return False
        # The scope's own session was read when the socket opened; a log-out since then is only in the database.
        store = import_module(settings.SESSION_ENGINE).SessionStore
        user = await get_user({"session": store(self.scope["session"].session_key)})
        return bool(await database_sync_to_async(has_role)(user, VIEWER))
