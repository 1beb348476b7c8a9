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
from models_app.gateway import core, refusals
from models_app.gateway.client import Client

_PREFIX = b"/v1/"
_MOST = (b"POST /v1/", b"GET /v1/")
_LONGEST_METHOD = 8


def is_v1(first: bytes) -> bool | None:
    """Of the first bytes of a request: whether it is for `/v1`; None while they are too few to tell."""
    if first.startswith(_MOST):
        return True
    space = first.find(b" ", 0, _LONGEST_METHOD)
    if space < 0:
        return None if len(first) < _LONGEST_METHOD else False
    target = first[space + 1 : space + 1 + len(_PREFIX)]
    if target == _PREFIX:
        return True
    return None if len(target) < len(_PREFIX) and _PREFIX.startswith(target) else False


class Front:
    """The factory of connections for one server; `serve` answers one request of `/v1`."""

    def __init__(self, serve: Callable[[Client, str], Coroutine[Any, Any, None]]) -> None:
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
                works=server_state.tasks,
                fixed=_Fixed(server_state).lines,
            )

        def other() -> asyncio.Protocol:
            return HttpToolsProtocol(config=config, server_state=server_state, app_state=app_state, _loop=loop)

        return ServerConnection(loop, service, is_v1, other)

    def _serve(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        target = exchange.target
        return self._answer(exchange, _PATHS.get(target) or _path(target))


_PATHS = {path.encode(): path for path in core.JSON_PATHS | core.FORM_PATHS}


def _path(target: bytes) -> str:
    path = target.partition(b"?")[0].decode("latin-1")
    return unquote(path) if "%" in path else path


class _Fixed:
    """The headers of every answer, rendered anew when uvicorn makes new ones: each second, for the date."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._headers: list[Header] | None = None
        self._lines = b""

    def lines(self) -> bytes:
        """The lines."""
        headers = self._state.default_headers
        if headers is not self._headers:
            self._headers, self._lines = headers, core.lines(headers)
        return self._lines


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
