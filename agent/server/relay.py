"""Passes model traffic to an engine's loopback port, byte by byte, and tells the engine when the client left."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from agent.errors import AgentError
from agent.running import EngineTarget
from agent.server.keys import INSTANCES
from agent.wire.base import ANSWER_HEADER, GENERATION_HEADER, MODEL_HEADER
from agent.wire.errors import AgentCode

CONNECT_SECONDS = 5.0
LOOK_SECONDS = 0.25
_PATHS = ("v1/",)
_ALSO = frozenset({"health", "metrics", "tokenize", "detokenize", "rerank", "score"})
_TO_ENGINE = frozenset(
    {"accept", "anthropic-beta", "anthropic-version", "content-length", "content-type", "openai-beta", "x-request-id"}
)
_TO_MASTER = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-length",
        "content-type",
        "openai-processing-ms",
        "openai-version",
        "retry-after",
    }
)


class Departures:
    """Looks a few times a second whether the master's side of any relayed request is gone.

    aiohttp tells a handler of a lost connection only when it next writes; an engine must not work on for nobody.
    """

    def __init__(self) -> None:
        self._watched: dict[object, tuple[web.Request, Callable[[], object]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def watch(self, request: web.Request, on_gone: Callable[[], object]) -> Iterator[None]:
        """Call `on_gone` once when the peer of `request` leaves before the block ends."""
        mark = object()  # a request is a mapping, and mappings have no hash
        self._watched[mark] = (request, on_gone)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        try:
            yield
        finally:
            self._watched.pop(mark, None)

    def _look(self) -> None:
        for mark, (request, on_gone) in list(self._watched.items()):
            if request.transport is None or request.transport.is_closing():
                del self._watched[mark]
                on_gone()
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look) if self._watched else None

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()


class Engines:
    """What relayed requests share: the client towards the engines and the watch over the master's connections."""

    def __init__(self) -> None:
        self.departures = Departures()
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15),
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT_SECONDS, sock_read=None),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def close(self) -> None:
        """Close the connections to the engines."""
        self.departures.close()
        await self.session.close()


ENGINES: web.AppKey[Engines] = web.AppKey("engines", Engines)


async def engines(app: web.Application) -> AsyncIterator[None]:
    """For ``app.cleanup_ctx``: what `relay` needs, for as long as the application serves."""
    app[ENGINES] = Engines()
    yield
    await app[ENGINES].close()


async def relay(request: web.Request) -> web.StreamResponse:
    """ANY ``/agent/v1/instances/{instance_id}/relay/{path}``. Raises AgentError; the engine's own errors pass through.

    Not fenced: the headers name model and generation, and 409 generation_mismatch answers when they are others.
    """
    path = _path(request)
    instances = request.app[INSTANCES]
    instance_id = request.match_info["instance_id"]
    view = instances.view(instance_id)
    if (view.model_id, str(view.generation)) != (
        request.headers.get(MODEL_HEADER),
        request.headers.get(GENERATION_HEADER),
    ):
        raise AgentError(
            AgentCode.GENERATION_MISMATCH,
            f"This instance is {view.model_id} at generation {view.generation}, not what the request names.",
            {"modelId": view.model_id, "generation": view.generation},
        )
    target = instances.target(instance_id)
    engines = request.app[ENGINES]
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a handler runs in a task")
    with engines.departures.watch(request, task.cancel):
        return await _exchange(request, engines.session, target, path)


def _path(request: web.Request) -> str:
    path = request.match_info["path"]
    parts = path.split("/")
    if not (path.startswith(_PATHS) or path in _ALSO) or "" in parts or ".." in parts or "." in parts:
        raise AgentError(AgentCode.NOT_FOUND, "The relay serves paths under v1/ of the engine, and its health.")
    if request.method not in ("POST", "GET"):
        raise AgentError(AgentCode.INVALID_REQUEST, "The relay passes GET and POST on.")
    return path


async def _exchange(
    request: web.Request, session: aiohttp.ClientSession, target: EngineTarget, path: str
) -> web.StreamResponse:
    headers = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() in _TO_ENGINE)
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    url = URL.build(scheme="http", host=target.host, port=target.port, path=f"/{path}")
    body = request.content.iter_any() if request.body_exists else None
    try:
        answer = await session.request(request.method, url, headers=headers, data=body, allow_redirects=False)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise AgentError(
            AgentCode.ENGINE_UNREACHABLE, f"The engine does not answer: {str(error) or type(error).__name__}"
        ) from error
    async with answer:  # closes the connection unless the answer was read to its end
        return await _pass_back(request, answer)


async def _pass_back(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status)
    for name, value in answer.headers.items():
        if name.lower() in _TO_MASTER:
            response.headers.add(name, value)
    response.headers[ANSWER_HEADER] = "engine"
    if "Content-Length" not in response.headers and answer.status not in (204, 304):
        response.enable_chunked_encoding()
    try:
        await response.prepare(request)
        async for data in answer.content.iter_any():
            await response.write(data)
        await response.write_eof()
    except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, ConnectionError):
        # Either side is gone. Without the end of the body the master sees that bytes are missing.
        if request.transport is not None:
            request.transport.abort()
    return response
