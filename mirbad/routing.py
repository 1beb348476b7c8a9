"""The websocket routes and their origin check. `mirbad.asgi` adds the session; the consumer checks the role."""

from typing import Any

import structlog
from channels.security.websocket import WebsocketDenier
from django.urls import path, re_path

from mirbad.api import origins
from mirbad.live.consumers import LiveConsumer

log = structlog.get_logger(__name__)

_MOST_REPORTED = 100
_NOT_FOUND = b"There is no websocket at this address.\n"
_RECOVERING = b"The master is in recovery mode.\n"


async def _no_socket(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Refuse an address without a websocket: with 404 where the server can, else with its 403."""
    await receive()
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 4404})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(_NOT_FOUND)).encode())]
    await send({"type": "websocket.http.response.start", "status": 404, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": _NOT_FOUND})


async def no_socket_in_recovery(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Refuse a websocket while the master is in recovery mode: nothing changes that a page could show."""
    await receive()
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1013})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(_RECOVERING)).encode())]
    await send({"type": "websocket.http.response.start", "status": 503, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": _RECOVERING})


_anywhere: Any = _no_socket  # Channels routes to ASGI applications, which the types of Django's routes do not know
websocket_urlpatterns = [path("live", LiveConsumer.as_asgi()), re_path(r"(?s)^.*$", _anywhere)]


class OriginGuard:
    """An ASGI application around `app` that refuses websockets of other origins with 403."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._reported: set[str] = set()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass on a websocket of this master's own pages."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        origin, host = origins.parse(headers.get(b"origin", "")), headers.get(b"host", "")
        if origins.may_open(origin, host):
            await self._app(scope, receive, send)
            return
        self._report(origin, origins.parse(f"{scope.get('scheme', 'ws').replace('ws', 'http')}://{host}"))
        await WebsocketDenier()(scope, receive, send)

    def _report(self, origin: origins.Origin | None, arrived: origins.Origin | None) -> None:
        """Log a proxy that changes the address, once: pages try again every few seconds."""
        sentence = origins.proxy_fault(origin, arrived)
        if sentence and sentence not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(sentence)
            log.warning("a page cannot open its websocket", why=sentence)
