"""The ASGI application of the web process: `/v1` to the gateway, websockets to Channels, all else to Django."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mirbad.settings")

from django.core.asgi import get_asgi_application

_django = get_asgi_application()

# After Django is set up: these import models.
from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402

from mirbad.api.bodylimit import BodyLimit  # noqa: E402
from mirbad.kernel import logs  # noqa: E402
from mirbad.routing import websocket_urlpatterns  # noqa: E402
from mirbad.tasking import heartbeat  # noqa: E402
from models_app.gateway import inside  # noqa: E402
from models_app.gateway.door import Gateway, Receive, Scope, Send  # noqa: E402


class Application:
    """One process of the web: the router, and the life of what it carries."""

    def __init__(self) -> None:
        self._gateway: Gateway = inside.make()
        self._django = BodyLimit(_django)
        self._websockets = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))
        self._heartbeat: heartbeat.Heartbeat | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._gateway.start()
                self._heartbeat = heartbeat.start("web")
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self._heartbeat is not None:
                    self._heartbeat.stop()
                await self._gateway.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


logs.configure("web")
application = Application()
