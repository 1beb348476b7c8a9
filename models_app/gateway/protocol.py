"""A protocol for uvicorn that serves `/v1` itself and leaves every other request to uvicorn's own protocol.

The default; chosen by ``--http models_app.gateway.protocol:connection``. Imports nothing of Django before its setup.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.server import ServerState

from agent.common.http1.request import Header, ServerRequest
from agent.common.http1.server import ServerConnection, Service
from agent.common.http1.sockets import SocketLimit
from mirbad.web.connection import PageConnection, process_sockets
from mirbad.web.refusals import Refusals
from models_app.gateway import core, refusals
from models_app.gateway.downstream import Downstream

_PREFIX = b"/v1/"
_USUAL_STARTS = (b"POST /v1/", b"GET /v1/")
_LONGEST_METHOD = 8


def is_v1(first: bytes) -> bool | None:
    """Return whether a request that starts with `first` is for `/v1`, None while more bytes are needed."""
    if first.startswith(_USUAL_STARTS):
        return True
    space = first.find(b" ", 0, _LONGEST_METHOD)
    if space < 0:
        return None if len(first) < _LONGEST_METHOD else False
    target = first[space + 1 : space + 1 + len(_PREFIX)]
    if target == _PREFIX:
        return True
    return None if len(target) < len(_PREFIX) and _PREFIX.startswith(target) else False


class V1ProtocolFactory:
    """The factory of connections of one server; `serve` serves one request of `/v1`, `sockets` limits connections."""

    def __init__(
        self, serve: Callable[[Downstream, str], Coroutine[Any, Any, None]], sockets: SocketLimit | None = None
    ) -> None:
        self._serve_v1 = serve
        self._sockets = sockets
        self._refusals = Refusals(refusals.response)
        self._service: Service | None = None

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        """Return a new connection, as uvicorn expects it."""
        loop = _loop or asyncio.get_running_loop()
        service = self._service
        if service is None:
            service = self._service = Service(
                self._serve,
                keep_alive_seconds=config.timeout_keep_alive,
                refusal=self._refusal,
                connections=server_state.connections,
                tasks=server_state.tasks,
                fixed=_DefaultHeaders(server_state).lines,
                half_closed=True,
                sockets=self._sockets,
                overflow=self._refusals.overflow,
            )

        def other() -> asyncio.Protocol:
            return PageConnection(
                config=config,
                server_state=server_state,
                app_state=app_state,
                _loop=loop,
                sockets=self._sockets,
                refusals=self._refusals,
            )

        return ServerConnection(loop, service, is_v1, other)

    def _serve(self, request: ServerRequest) -> Coroutine[Any, Any, None]:
        target = request.target
        return self._serve_v1(request, _PATHS.get(target) or _path(target))

    def _refusal(self, target: bytes, status: int, words: str) -> bytes:
        code = "request_timeout" if status == 408 else "bad_request"
        return self._refusals.response(target, status, code, words)


_PATHS = {path.encode(): path for path in core.JSON_PATHS | core.FORM_PATHS}


def _path(target: bytes) -> str:
    path = target.partition(b"?")[0].decode("latin-1")
    return unquote(path) if "%" in path else path


class _DefaultHeaders:
    """The headers of every response, rendered again when uvicorn changes them: each second, for the date."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._headers: list[Header] | None = None
        self._lines = b""

    def lines(self) -> bytes:
        """Return the headers as lines."""
        headers = self._state.default_headers
        if headers is not self._headers:
            self._headers, self._lines = headers, core.header_lines(headers)
        return self._lines


_factory: V1ProtocolFactory | None = None


def connection(**parts: Any) -> asyncio.Protocol:
    """Return a new connection to the gateway of this process."""
    global _factory  # noqa: PLW0603  one gateway per process
    if _factory is None:
        from models_app.gateway import internal

        _factory = V1ProtocolFactory(internal.process_gateway().serve, process_sockets())
    return _factory(**parts)


_page_refusals = Refusals(refusals.response)


def page_connection(**parts: Any) -> asyncio.Protocol:
    """Return a new connection to uvicorn's own server, which serves `/v1` as an ASGI application."""
    return PageConnection(**parts, sockets=process_sockets(), refusals=_page_refusals)
