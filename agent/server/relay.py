"""Relay of model traffic to an engine's loopback port, byte by byte; the engine notices when the client disconnects.

The relay shares port and handshake with the agent's other routes, but not their server: every token of every stream
passes here, so it speaks HTTP/1.1 by `agent.common.http1` on both sides, and hands over connections for other routes.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import unquote

from agent.common.headers import RELAYED_REQUEST_HEADERS, RESPONSE_HEADERS
from agent.common.http1.client import ClientConnection, UpstreamError
from agent.common.http1.idle import IdleConnections
from agent.common.http1.inline_task import InlineTasks, as_task, current
from agent.common.http1.request import ClientLeft, Header, ServerRequest, whole_response
from agent.common.http1.server import ServerConnection, Service
from agent.errors import AgentError
from agent.running import EngineTarget
from agent.running.requests import EngineRequests
from agent.wire.base import ANSWER_HEADER, API_PREFIX, GENERATION_HEADER, KEY_HEADER, MODEL_HEADER
from agent.wire.errors import AgentCode
from agent.wire.instances import BrokenRequest

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 4.0
"""Below the keep-alive time of engines' servers (5 s with uvicorn), so that this side closes first."""
MAX_IDLE = 64
SILENCE_SECONDS = 24 * 3600.0
"""The master knows each model's limits and disconnects at them; this limit only ends abandoned requests."""
_PREFIX = f"{API_PREFIX}/instances/".encode()
_METHODS = (b"POST ", b"GET ", b"PUT ", b"DELETE ", b"PATCH ", b"HEAD ", b"OPTIONS ")
_LONGEST_ID = 200
_PATHS = ("v1/",)
_ALSO = frozenset({"health", "metrics", "tokenize", "detokenize", "rerank", "score"})
_MODEL = MODEL_HEADER.lower().encode()
_GENERATION = GENERATION_HEADER.lower().encode()
_KEY = KEY_HEADER.lower().encode()
_KEY_DIGITS = 19
_REQUEST_ID = b"x-request-id"
_ANSWER: Header = (ANSWER_HEADER.lower().encode(), b"engine")


class _BrokenOff(Exception):
    """The engine received a request and closed the connection before its response ended.

    `refusal` is the agent's response to the master, None after the start of the engine's.
    """

    def __init__(self, refusal: AgentError | None = None) -> None:
        super().__init__("the engine broke off a request")
        self.refusal = refusal


class RelayTargets(Protocol):
    """The part of this node's engines that the relay needs."""

    def view(self, instance_id: str) -> Any:
        """Return the instance, with `model_id` and `generation`. Raises AgentError."""

    def target(self, instance_id: str) -> EngineTarget:
        """Return the address of its engine. Raises AgentError."""


def is_relayed(first: bytes) -> bool | None:
    """Return whether a request with these first bytes is for the relay; None while they are too few to decide."""
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


class EnginePool:
    """Connections to the engines on this machine, kept for a few seconds between requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._idle: dict[tuple[str, int], IdleConnections] = {}

    def take(self, target: EngineTarget) -> ClientConnection | None:
        """Return the freshest idle connection to the engine, None without one."""
        idle = self._idle.get((target.host, target.port))
        return None if idle is None else idle.take(self._loop.time())

    async def connect(self, target: EngineTarget) -> ClientConnection:
        """Return a new connection. Raises OSError or TimeoutError."""
        return await as_task(self._connect(target))

    async def _connect(self, target: EngineTarget) -> ClientConnection:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, connection = await self._loop.create_connection(
                lambda: ClientConnection(self._loop), target.host, target.port
            )
        return connection

    def release(self, target: EngineTarget, connection: ClientConnection) -> None:
        """Keep a connection whose response has ended, or close it.

        The next request on one that the engine is about to close would be lost, and nobody could tell whether the
        engine had received it.
        """
        if target.closes_after_stream and connection.is_chunked:
            connection.abort()
            return
        address = (target.host, target.port)
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle[address] = IdleConnections(idle_seconds=IDLE_SECONDS, capacity=MAX_IDLE)
        if not idle.accepts(connection):
            connection.abort()
            return
        connection.rest()
        idle.add(connection)
        if len(idle) == 1:
            self._loop.call_later(IDLE_SECONDS, self._close_expired, address)

    def close(self) -> None:
        """Close all idle connections."""
        for idle in self._idle.values():
            idle.close()
        self._idle.clear()

    def _close_expired(self, address: tuple[str, int]) -> None:
        idle = self._idle.get(address)
        if idle is None:
            return
        idle.close_expired(self._loop.time())
        if idle:
            self._loop.call_later(IDLE_SECONDS, self._close_expired, address)
        else:
            del self._idle[address]


class Relay:
    """Serves engine routes on the agent's port; `protocol` is the factory for ``create_server``.

    `flight` counts the requests in progress by instance, from their head to the end of the response.
    """

    def __init__(
        self,
        instances: RelayTargets,
        admits: Callable[[asyncio.Transport], AgentError | None],
        others: Callable[[], asyncio.Protocol],
        *,
        keep_alive_seconds: float,
        flight: Counter[str] | None = None,
        requests: EngineRequests | None = None,
    ) -> None:
        self.flight: Counter[str] = Counter() if flight is None else flight
        self._requests = EngineRequests() if requests is None else requests
        self._instances = instances
        self._admits = admits
        self._others = others
        self._loop = asyncio.get_running_loop()
        self.engines = EnginePool(self._loop)
        self._tasks = InlineTasks()
        self.service = Service(self._serve, keep_alive_seconds=keep_alive_seconds, refusal=_not_http, tasks=self._tasks)

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection, whose routes are not known yet."""
        return ServerConnection(self._loop, self.service, is_relayed, self._others)

    async def drain(self, limit_seconds: float) -> None:
        """Accept no more requests, finish those in progress within the limit, then cut the rest."""
        for connection in list(self.service.own):
            connection.shutdown()
        await self._tasks.all_over(limit_seconds)
        self.cut()
        self.engines.close()

    def cut(self) -> None:
        """Close every connection of the relay at once."""
        for connection in list(self.service.own):
            connection.transport.abort()

    async def _serve(self, request: ServerRequest) -> None:
        try:
            await self._relay(request)
        except AgentError as error:
            _respond(request, error)
        except (ClientLeft, asyncio.CancelledError):
            request.cut()
        except Exception:  # the task's edge
            log.exception("a relayed request failed")
            _respond(request, AgentError(AgentCode.INTERNAL, "The agent failed on this request. See the agent's log."))

    async def _relay(self, request: ServerRequest) -> None:
        refusal = self._admits(request.transport)
        if refusal is not None:
            raise refusal
        if request.method not in ("POST", "GET"):
            raise AgentError(AgentCode.INVALID_REQUEST, "The relay accepts GET and POST only.")
        instance_id, path = _parse_target(request.target)
        self.flight[instance_id] += 1
        try:
            await self._relay_to(instance_id, path, request)
        finally:
            self.flight[instance_id] -= 1
            if not self.flight[instance_id]:
                del self.flight[instance_id]

    async def _relay_to(self, instance_id: str, path: str, request: ServerRequest) -> None:
        view = self._instances.view(instance_id)
        headers = dict(request.headers)
        if headers.get(_MODEL) != view.model_id.encode() or headers.get(_GENERATION) != b"%d" % view.generation:
            raise AgentError(
                AgentCode.GENERATION_MISMATCH,
                f"This instance is {view.model_id} at generation {view.generation}. The request names another.",
                {"modelId": view.model_id, "generation": view.generation},
            )
        target = self._instances.target(instance_id)
        mark = _mark(headers)
        self._requests.begin(instance_id, mark)
        try:
            connection = await self._send_upstream(request, target, path)
            try:
                await _relay_response(request, connection)
            finally:
                request.watch(None)
                self.engines.release(target, connection)
        except _BrokenOff as error:
            self._requests.broke(instance_id, mark)
            if error.refusal is not None:
                raise error.refusal from error
            # Without the end of the body the master notices that bytes are missing.
            request.cut()
        finally:
            self._requests.end(instance_id, mark)

    async def _send_upstream(self, request: ServerRequest, target: EngineTarget, path: str) -> ClientConnection:
        head, chunked = _head(request, target, path)
        connection = self.engines.take(target)
        # When the master has disconnected, the engine must not continue.
        request.watch(current().cancel)
        sent = False
        try:
            if connection is None:
                connection = await self.engines.connect(target)
            # Sent once: the engine may have received it whatever happens next, and a request that ends an engine must
            # not end its next process. `take` has left out connections that the engine had closed.
            sent = True
            connection.begin(head, request.take(), more=not request.whole, chunked=chunked)
            if not request.whole:
                await _send_rest(request, connection)
            elif chunked:
                connection.end()
            await connection.head(SILENCE_SECONDS)
        except (OSError, TimeoutError, UpstreamError) as error:
            if connection is not None:
                connection.abort()
            refusal = AgentError(
                AgentCode.ENGINE_UNREACHABLE,
                f"The engine does not respond: {str(error) or type(error).__name__}",
                {"sent": sent},
            )
            raise (_BrokenOff(refusal) if sent else refusal) from error
        except BaseException:
            if connection is not None:
                connection.abort()
            raise
        return connection


async def _send_rest(request: ServerRequest, connection: ClientConnection) -> None:
    while data := await request.read():
        if not await connection.send(data):
            return  # the engine has responded already and reads no more
    connection.end()


async def _relay_response(request: ServerRequest, connection: ClientConnection) -> None:
    headers = [header for header in connection.headers if header[0] in RESPONSE_HEADERS]
    headers.append(_ANSWER)
    request.start(connection.status, headers)
    try:
        while True:
            data = connection.take()
            if connection.done:  # the taken bytes are the last: send the end with them
                request.finish(data)
                return
            request.write_now(data)
            request.flush()
            await request.ready()
            await connection.stream(request.write_now, SILENCE_SECONDS)
            await request.ready()
    except UpstreamError as error:
        raise _BrokenOff from error


def _mark(headers: dict[bytes, bytes]) -> BrokenRequest:
    """Return the request's id and its API key's, as the master sent them."""
    key = headers.get(_KEY, b"")
    return BrokenRequest(
        request_id=headers.get(_REQUEST_ID, b"")[:128].decode("ascii", "replace"),
        key_id=int(key) if key.isdigit() and len(key) < _KEY_DIGITS else None,
    )


@lru_cache(maxsize=512)
def _parse_target(target: bytes) -> tuple[str, str]:
    """Return the instance's id and the engine's path from the request's target. Raises AgentError."""
    instance_id, _, rest = target.partition(b"?")[0][len(_PREFIX) :].decode("latin-1").partition("/")
    path = rest.removeprefix("relay/")
    plain = unquote(path) if "%" in path else path
    parts = plain.split("/")
    if not (plain.startswith(_PATHS) or plain in _ALSO) or "" in parts or ".." in parts or "." in parts:
        raise AgentError(AgentCode.NOT_FOUND, "The relay serves the engine's paths below v1/ and its health path only.")
    return unquote(instance_id), path


def _head(request: ServerRequest, target: EngineTarget, path: str) -> tuple[bytes, bool]:
    """Return the head of the request to the engine, and whether its body is chunked."""
    lines = [_start(request.method, path, target.host, target.port, target.api_key)]
    length: bytes | None = None
    for name, value in request.headers:
        if name in RELAYED_REQUEST_HEADERS:
            lines += (name, b": ", value, b"\r\n")
        elif name == b"content-length":
            length = value
    chunked = request.has_body and length is None
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


def _respond(request: ServerRequest, error: AgentError) -> None:
    body = json.dumps(error.to_body().to_wire()).encode()
    head = [(b"content-type", b"application/json; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    request.start(error.http_status, head, close=not request.whole or error.code is AgentCode.NOT_APPROVED)
    request.finish(body)


def _not_http(target: bytes, status: int, detail: str) -> bytes:
    error = AgentError(AgentCode.INVALID_REQUEST, detail)
    body = json.dumps(error.to_body().to_wire()).encode()
    return whole_response(status, [(b"content-type", b"application/json")], body)
