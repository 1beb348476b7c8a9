"""The ASGI application of the web process: `/v1` to the gateway, websockets to Channels, the rest to Django."""

import asyncio
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

import structlog
from django.core.asgi import get_asgi_application

from mirbad.bundles import SENT_HOST
from mirbad.kernel import files, logs, recovery_mode
from mirbad.kernel.conf import settings
from mirbad.tasking import heartbeat
from models_app.gateway import core

if TYPE_CHECKING:
    from models_app.gateway.errors import GatewayError
    from models_app.gateway.service import Receive, Scope, Send

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 0.5
SWITCH_SECONDS = 0.0005
"""The time for which a thread keeps Python's lock while the event loop waits for it, several times a response."""

_FOR_MACHINES = frozenset({"/healthz", "/readyz", "/metrics", "/agent/bundles"})
"""Paths for machines, which reach the master by other names than people do; nothing there depends on the name."""


def _is_for_machines(path: str) -> bool:
    return path in _FOR_MACHINES or path.startswith("/agent/bundles/")


def _of_any_host(scope: "Scope", path: str) -> "Scope":
    sent = b"".join(value for name, value in scope["headers"] if name == b"host").decode("latin-1")
    headers = [header for header in scope["headers"] if header[0] != b"host"]
    return {**scope, "path": path, "headers": [*headers, (b"host", b"localhost")], SENT_HOST: sent}


def _load_pages() -> None:
    from django.urls import get_resolver

    get_resolver().reverse_dict  # noqa: B018  read for its effect: modules of all views are imported


async def _refuse(send: "Send", error: "GatewayError", path: str) -> None:
    body = error.body(path)
    headers = [*error.headers(), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _end_with_recovery() -> None:
    """Settle an installation that was interrupted, and end this process once the recovery mode is over."""
    from channels.db import database_sync_to_async
    from django.db import DatabaseError

    from jobs.backup import installation

    try:
        await database_sync_to_async(installation.settle)()
    except (DatabaseError, OSError):  # the next start tries again; the page shows the same trouble
        log.exception("an interrupted installation cannot be settled now")
    while recovery_mode.is_on(settings()):  # noqa: ASYNC110  files signal nothing
        await asyncio.sleep(_LOOK_SECONDS)
    log.warning("the recovery mode is over; this process ends and is started again")
    os.kill(os.getpid(), signal.SIGTERM)


class Application:
    """The application of one web process: routes scopes, and starts and stops the gateway."""

    def __init__(self) -> None:
        django = get_asgi_application()
        # Imported here because they import models, which need the setup of Django above.
        from channels.auth import AuthMiddlewareStack
        from channels.routing import URLRouter

        from mirbad import health
        from mirbad.accounts.door import LoginDoor
        from mirbad.accounts.upload_door import UploadDoor
        from mirbad.routing import OriginGuard, no_socket_in_recovery, websocket_urlpatterns
        from models_app.gateway import internal

        self._django = LoginDoor(UploadDoor(django))
        self._alive = health.alive
        self._gateway = internal.process_gateway()
        self._recovering = recovery_mode.is_on(settings())
        sockets = no_socket_in_recovery if self._recovering else AuthMiddlewareStack(URLRouter(websocket_urlpatterns))
        self._websockets = OriginGuard(sockets)
        self._heartbeat: heartbeat.Heartbeat | None = None
        self._end_of_recovery: asyncio.Task[None] | None = None

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one ASGI scope: http, websocket or lifespan."""
        kind = scope["type"]
        if kind == "http":
            path: str = core.plain_path(scope["path"])
            if core.is_v1(path):
                await self._gateway(scope, receive, send)
            elif path == "/healthz" and scope["method"] in ("GET", "HEAD"):
                await self._alive(send)
            elif _is_for_machines(path):
                await self._django(_of_any_host(scope, path), receive, send)
            elif (error := core.elsewhere(scope["method"], path, scope["headers"])) is not None:
                await _refuse(send, error, path)
            else:
                await self._django(scope, receive, send)
        elif kind == "websocket":
            await self._websockets(scope, receive, send)
        elif kind == "lifespan":
            await self._run_lifespan(receive, send)
        else:
            raise ValueError(f"unknown ASGI scope type {kind}")

    async def _run_lifespan(self, receive: "Receive", send: "Send") -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._gateway.start()
                if self._recovering:
                    self._end_of_recovery = asyncio.create_task(_end_with_recovery(), name="end of the recovery mode")
                else:
                    self._heartbeat = heartbeat.start("web")
                # All objects that exist now live until the end, those of all pages too. A full collection would scan
                # them for cycles, which takes longer than most responses and stalls every stream.
                await asyncio.to_thread(_load_pages)
                gc.collect()
                gc.freeze()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self._heartbeat is not None:
                    await asyncio.to_thread(self._heartbeat.stop)
                await self._gateway.stop()
                if self._recovering and not recovery_mode.is_on(settings()):
                    # Responses are sent by now. Whoever supervises this process starts it again, as a usual master.
                    os._exit(recovery_mode.START_AGAIN)
                await send({"type": "lifespan.shutdown.complete"})
                return


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mirbad.settings")
logs.configure("web")
files.allow_many()
sys.setswitchinterval(SWITCH_SECONDS)
application = Application()
