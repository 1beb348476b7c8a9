"""Passes model traffic to an engine's loopback port, byte by byte, and tells the engine when the client left.

It shares port and handshake with the agent's other routes, but not their server: every token of every stream passes
here, so it speaks HTTP/1.1 by `agent.wire.http1` on both sides, and hands connections that ask for anything else over.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import unquote

from agent.errors import AgentError
from agent.running import EngineTarget
from agent.wire.base import ANSWER_HEADER, API_PREFIX, GENERATION_HEADER, MODEL_HEADER
from agent.wire.errors import AgentCode
from agent.wire.http1.client import STALE_WITHIN_SECONDS, Broken, Connection, UpstreamError
from agent.wire.http1.exchange import Exchange, Header, Left
from agent.wire.http1.server import ServerConnection, Service
from agent.wire.http1.work import Works, as_task, current

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 4.0
"""Below what engines' servers keep an idle connection for (5 s with uvicorn), so that it is this side that lets go."""
MAX_IDLE = 64
SILENCE_SECONDS = 24 * 3600.0
"""The master knows each model's limits and leaves when one is over; this only ends what nobody waits for."""
_PREFIX = f"{API_PREFIX}/instances/".encode()
_METHODS = (b"POST ", b"GET ", b"PUT ", b"DELETE ", b"PATCH ", b"HEAD ", b"OPTIONS ")
_LONGEST_ID = 200
_PATHS = ("v1/",)
_ALSO = frozenset({"health", "metrics", "tokenize", "detokenize", "rerank", "score"})
_TO_ENGINE = frozenset(
    {
        b"accept",
        b"anthropic-beta",
        b"anthropic-version",
        b"content-type",
        b"openai-beta",
        b"traceparent",
        b"tracestate",
        b"x-request-id",
    }
)
_TO_MASTER = frozenset(
    {
        b"cache-control",
        b"content-disposition",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"openai-processing-ms",
        b"openai-version",
        b"retry-after",
    }
)
_MODEL = MODEL_HEADER.lower().encode()
_GENERATION = GENERATION_HEADER.lower().encode()
_ANSWER: Header = (ANSWER_HEADER.lower().encode(), b"engine")


class Instances(Protocol):
    """What the relay asks of the engines of this node."""

    def view(self, instance_id: str) -> Any:
        """The instance, with `model_id` and `generation`. Raises AgentError."""

    def target(self, instance_id: str) -> EngineTarget:
        """Where its engine listens. Raises AgentError."""


def is_relayed(first: bytes) -> bool | None:
    """Of the first bytes of a request: whether it is for the relay; None while they are too few to tell."""
    for method in _METHODS:
        if first.startswith(method):
            target = first[len(method) :]
            if not target.startswith(_PREFIX):
                return None if _PREFIX.startswith(target) else False
            rest, space, _ = target[len(_PREFIX) :].partition(b" ")
            _, slash, action = rest.partition(b"/")
            if action.startswith(b"relay/"):
                return True
            undecided = not space and len(rest) < _LONGEST_ID and (not slash or b"relay/".startswith(action))
            return None if undecided else False
        if method.startswith(first):
            return None
    return False


class Engines:
    """Connections to the engines on this machine, kept for a few seconds between requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._idle: dict[tuple[str, int], list[Connection]] = {}

    def take(self, target: EngineTarget) -> Connection | None:
        """The freshest idle connection to the engine, None when there is none."""
        idle = self._idle.get((target.host, target.port), [])
        now = self._loop.time()
        while idle:
            connection = idle.pop()
            if connection.alive and now - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.abort()
        return None

    async def connect(self, target: EngineTarget) -> Connection:
        """A new connection. Raises OSError or TimeoutError."""
        return await as_task(self._connect(target))

    async def _connect(self, target: EngineTarget) -> Connection:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, connection = await self._loop.create_connection(lambda: Connection(self._loop), target.host, target.port)
        return connection

    def release(self, target: EngineTarget, connection: Connection) -> None:
        """Keep a connection whose exchange is over, or close it."""
        idle = self._idle.setdefault((target.host, target.port), [])
        if not connection.reusable or len(idle) >= MAX_IDLE:
            connection.abort()
            return
        connection.rest()
        idle.append(connection)
        if len(idle) == 1:
            self._loop.call_later(IDLE_SECONDS, self._tend, (target.host, target.port))

    def close(self) -> None:
        """Close what is idle."""
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()

    def _tend(self, place: tuple[str, int]) -> None:
        now = self._loop.time()
        kept = []
        for connection in self._idle.get(place, ()):
            if connection.alive and now - connection.idle_since < IDLE_SECONDS:
                kept.append(connection)
            else:
                connection.abort()
        if kept:
            self._idle[place] = kept
            self._loop.call_later(IDLE_SECONDS, self._tend, place)
        else:
            self._idle.pop(place, None)


class Relay:
    """Serves what is for engines on the agent's port; `protocol` is the factory for ``create_server``.

    `flight` counts the requests at work by instance, from their head to the end of the answer.
    """

    def __init__(
        self,
        instances: Instances,
        admits: Callable[[asyncio.Transport], AgentError | None],
        others: Callable[[], asyncio.Protocol],
        *,
        keep_alive_seconds: float,
        flight: Counter[str] | None = None,
    ) -> None:
        self.flight: Counter[str] = Counter() if flight is None else flight
        self._instances = instances
        self._admits = admits
        self._others = others
        self._loop = asyncio.get_running_loop()
        self.engines = Engines(self._loop)
        self._works = Works()
        self.service = Service(self._serve, keep_alive_seconds=keep_alive_seconds, refusal=_not_http, works=self._works)

    def protocol(self) -> asyncio.Protocol:
        """A connection, not yet known whose it is."""
        return ServerConnection(self._loop, self.service, is_relayed, self._others)

    async def drain(self, limit_seconds: float) -> None:
        """Take no more requests, finish those at work within the limit, then cut the rest."""
        for connection in list(self.service.own):
            connection.shutdown()
        await self._works.all_over(limit_seconds)
        self.cut()
        self.engines.close()

    def cut(self) -> None:
        """Close every connection of the relay at once."""
        for connection in list(self.service.own):
            connection.transport.abort()

    async def _serve(self, exchange: Exchange) -> None:
        try:
            await self._relay(exchange)
        except AgentError as error:
            _answer(exchange, error)
        except (Left, asyncio.CancelledError):
            exchange.cut()
        except Exception:  # the task's edge
            log.exception("a relayed request failed")
            _answer(exchange, AgentError(AgentCode.INTERNAL, "the agent failed on this call; its log has the reason"))

    async def _relay(self, exchange: Exchange) -> None:
        refusal = self._admits(exchange.transport)
        if refusal is not None:
            raise refusal
        if exchange.method not in ("POST", "GET"):
            raise AgentError(AgentCode.INVALID_REQUEST, "The relay passes GET and POST on.")
        instance_id, path = _place(exchange.target)
        self.flight[instance_id] += 1
        try:
            await self._relay_to(instance_id, path, exchange)
        finally:
            self.flight[instance_id] -= 1
            if not self.flight[instance_id]:
                del self.flight[instance_id]

    async def _relay_to(self, instance_id: str, path: str, exchange: Exchange) -> None:
        view = self._instances.view(instance_id)
        headers = dict(exchange.headers)
        if headers.get(_MODEL) != view.model_id.encode() or headers.get(_GENERATION) != b"%d" % view.generation:
            raise AgentError(
                AgentCode.GENERATION_MISMATCH,
                f"This instance is {view.model_id} at generation {view.generation}, not what the request names.",
                {"modelId": view.model_id, "generation": view.generation},
            )
        target = self._instances.target(instance_id)
        connection = await self._ask(exchange, target, path)
        try:
            await _pass_back(exchange, connection)
        finally:
            exchange.watch(None)
            self.engines.release(target, connection)

    async def _ask(self, exchange: Exchange, target: EngineTarget, path: str) -> Connection:
        head, chunked = _head(exchange, target, path)
        connection = self.engines.take(target)
        # When the master is gone, the engine must not work on for nobody.
        exchange.watch(current().cancel)
        try:
            while True:
                reused = connection is not None
                if connection is None:
                    connection = await self.engines.connect(target)
                first = exchange.take()
                began = self._loop.time()
                try:
                    connection.begin(head, first, more=not exchange.whole, chunked=chunked)
                    sent_all = exchange.whole
                    if not sent_all:
                        await _send_rest(exchange, connection)
                    elif chunked:
                        connection.end()
                    await connection.head(SILENCE_SECONDS)
                    return connection
                except Broken as error:
                    # A kept connection that the engine closed meanwhile: the request never got there.
                    fresh = self._loop.time() - began < STALE_WITHIN_SECONDS
                    if not (reused and error.untouched and sent_all and fresh):
                        raise
                    exchange.feed(first) if first else None
                    connection = None
        except (OSError, TimeoutError, UpstreamError) as error:
            if connection is not None:
                connection.abort()
            raise AgentError(
                AgentCode.ENGINE_UNREACHABLE, f"The engine does not answer: {str(error) or type(error).__name__}"
            ) from error
        except BaseException:
            if connection is not None:
                connection.abort()
            raise


async def _send_rest(exchange: Exchange, connection: Connection) -> None:
    while data := await exchange.read():
        if not await connection.send(data):
            return  # the engine has answered already: it wants no more
    connection.end()


async def _pass_back(exchange: Exchange, connection: Connection) -> None:
    headers = [header for header in connection.headers if header[0] in _TO_MASTER]
    headers.append(_ANSWER)
    exchange.start(connection.status, headers)
    try:
        while True:
            data = connection.take()
            if connection.done:  # what was taken is the last: its end goes out with it
                exchange.finish(data)
                return
            exchange.write_now(data)
            exchange.flush()
            await exchange.ready()
            await connection.stream(exchange.write_now, SILENCE_SECONDS)
            await exchange.ready()
    except UpstreamError:
        # Without the end of the body the master sees that bytes are missing.
        exchange.cut()


@lru_cache(maxsize=512)
def _place(target: bytes) -> tuple[str, str]:
    """The instance's id and the engine's path, from the request's target. Raises AgentError."""
    instance_id, _, rest = target.partition(b"?")[0][len(_PREFIX) :].decode("latin-1").partition("/")
    path = rest.removeprefix("relay/")
    plain = unquote(path) if "%" in path else path
    parts = plain.split("/")
    if not (plain.startswith(_PATHS) or plain in _ALSO) or "" in parts or ".." in parts or "." in parts:
        raise AgentError(AgentCode.NOT_FOUND, "The relay serves paths under v1/ of the engine, and its health.")
    return unquote(instance_id), path


def _head(exchange: Exchange, target: EngineTarget, path: str) -> tuple[bytes, bool]:
    """The head of the request to the engine, and whether its body goes in chunks."""
    lines = [_start(exchange.method, path, target.host, target.port, target.api_key)]
    length: bytes | None = None
    for name, value in exchange.headers:
        if name in _TO_ENGINE:
            lines += (name, b": ", value, b"\r\n")
        elif name == b"content-length":
            length = value
    chunked = exchange.has_body and length is None
    if chunked:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    elif length is not None:
        lines += (b"Content-Length: ", length, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines), chunked


@lru_cache(maxsize=128)
def _start(method: str, path: str, host: str, port: int, api_key: str | None) -> bytes:
    key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
    return f"{method} /{path} HTTP/1.1\r\nHost: {host}:{port}\r\n{key}".encode("latin-1")


def _answer(exchange: Exchange, error: AgentError) -> None:
    body = json.dumps(error.to_refusal().to_wire()).encode()
    head = [(b"content-type", b"application/json; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    exchange.start(error.http_status, head, close=not exchange.whole or error.code is AgentCode.NOT_APPROVED)
    exchange.finish(body)


def _not_http(words: str) -> tuple[list[Header], bytes]:
    error = AgentError(AgentCode.INVALID_REQUEST, words)
    return [(b"content-type", b"application/json")], json.dumps(error.to_refusal().to_wire()).encode()
