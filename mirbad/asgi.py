"""The ASGI application of the web process: `/v1` to the gateway, websockets to Channels, all else to Django."""

import asyncio
import gc
import os
from typing import TYPE_CHECKING

from django.core.asgi import get_asgi_application

from mirbad.kernel import files, logs
from mirbad.tasking import heartbeat

if TYPE_CHECKING:
    from models_app.gateway.door import Receive, Scope, Send


class Application:
    """One process of the web: the router, and the life of what it carries."""

    def __init__(self) -> None:
        django = get_asgi_application()
        # Behind that line Django is set up: these import models.
        from channels.auth import AuthMiddlewareStack
        from channels.routing import URLRouter
        from channels.security.websocket import AllowedHostsOriginValidator

        from mirbad.api.bodylimit import BodyLimit
        from mirbad.routing import websocket_urlpatterns
        from models_app.gateway import inside

        self._django = BodyLimit(django)
        self._gateway = inside.make()
        self._websockets = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))
        self._heartbeat: heartbeat.Heartbeat | None = None

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """ASGI: http, websocket and lifespan."""
        kind = scope["type"]
        if kind == "http":
            path: str = scope["path"]
            if path.startswith("/v1/") or path == "/v1":
                await self._gateway(scope, receive, send)
            else:
                await self._django(scope, receive, send)
        elif kind == "websocket":
            await self._websockets(scope, receive, send)
        elif kind == "lifespan":
            await self._live(receive, send)
        else:
            raise ValueError(f"no answer to an ASGI scope of type {kind}")

    async def _live(self, receive: "Receive", send: "Send") -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._gateway.start()
                self._heartbeat = heartbeat.start("web")
                # What stands now stands to the end. To look through it for cycles, as every full collection would,
                # takes longer than most answers do, and every stream waits for that.
                gc.collect()
                gc.freeze()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self._heartbeat is not None:
                    await asyncio.to_thread(self._heartbeat.stop)
                await self._gateway.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mirbad.settings")
logs.configure("web")
files.allow_many()
application = Application()
