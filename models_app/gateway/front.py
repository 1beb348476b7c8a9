"""The fast door: a protocol for uvicorn that serves `/v1` itself and hands every other request on to uvicorn's own.

It is chosen by ``--http models_app.gateway.front:connection``. Nothing of Django is imported before it is set up.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from agent.wire.http1.exchange import Exchange, Header
from agent.wire.http1.server import ServerConnection, Service
from models_app.gateway import refusals
from models_app.gateway.client import Client, Direct

_PREFIX = b"/v1/"
_LONGEST_METHOD = 8


def is_v1(first: bytes) -> bool | None:
    """Of the first bytes of a request: whether it is for `/v1`; None while they are too few to tell."""
    space = first.find(b" ", 0, _LONGEST_METHOD)
    if space < 0:
        return None if len(first) < _LONGEST_METHOD else False
    target = first[space + 1 : space + 1 + len(_PREFIX)]
    if target == _PREFIX:
        return True
    return None if len(target) < len(_PREFIX) and _PREFIX.startswith(target) else False


class Front:
    """The factory of connections for one server; `serve` answers one request of `/v1`."""

    def __init__(self, serve: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        self._answer = serve
        self._service: Service | None = None

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        """A connection, as uvicorn asks for it."""
        loop = _loop or asyncio.get_running_loop()
        service = self._service
        if service is None:
            service = self._service = Service(
                self._serve,
                keep_alive_seconds=config.timeout_keep_alive,
                refusal=_bad_request,
                connections=server_state.connections,
                tasks=server_state.tasks,
                fixed=lambda: b"".join(b"%b: %b\r\n" % header for header in server_state.default_headers),
            )

        def other() -> asyncio.Protocol:
            return HttpToolsProtocol(config=config, server_state=server_state, app_state=app_state, _loop=loop)

        return ServerConnection(loop, service, is_v1, other)

    def _serve(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        target = exchange.target.partition(b"?")[0].decode("latin-1")
        return self._answer(Direct(exchange, unquote(target) if "%" in target else target))


def _bad_request(words: str) -> tuple[list[Header], bytes]:
    refusal = refusals.bad_request(words)
    return refusal.headers(), json.dumps(refusal.payload()).encode()


_front: Front | None = None


def connection(**parts: Any) -> asyncio.Protocol:
    """A connection to the gateway of this process."""
    global _front  # noqa: PLW0603  one gateway a process
    if _front is None:
        from models_app.gateway import inside

        _front = Front(inside.make().serve)
    return _front(**parts)
