"""Calls to agents. What the network does is kept apart from what the database is told before and after.

Every mutating call carries the master's claim and an operation id; an agent that refuses the claim fences the master.
"""

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import aiohttp
import structlog
from pydantic import ValidationError

from agent.wire.base import API_PREFIX, EPOCH_HEADER, INSTANCE_HEADER, OPERATION_HEADER, WireModel
from agent.wire.errors import AgentCode, Refusal
from agent.wire.fence import Claim
from agent.wire.status import Event
from mirbad.kernel.errors import Conflict
from nodes import fencing, reachability
from nodes.errors import (
    AgentRefused,
    MasterFenced,
    NodeIncompatible,
    NodeOffline,
    NodePendingTakeover,
    NodeTurnedAway,
)
from nodes.link import pools, streams
from nodes.link.transport import Endpoint, endpoint, endpoint_at_any_time
from nodes.pki.tls import TlsIdentity

log = structlog.get_logger(__name__)

T = TypeVar("T", bound=WireModel)
R = TypeVar("R")

ANSWER_LIMIT = 32 * 1024 * 1024
EVENT_SILENCE_SECONDS = 10.0
_NUL = rb"\u0000"
_WRITTEN_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_CLAIM_CODES = frozenset({AgentCode.STALE_MASTER, AgentCode.COMPETING_MASTER})


@dataclass(frozen=True, slots=True)
class _Call:
    """One call, ready for the network."""

    endpoint: Endpoint
    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None
    timeout_seconds: float
    claim: Claim | None
    alone: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came back."""

    status: int
    body: bytes


def call(
    node_id: str,
    method: str,
    path: str,
    body: WireModel | None = None,
    *,
    answer: type[T],
    operation_id: str | None = None,
    timeout_seconds: float = 10.0,
) -> T:
    """Call an agent and wait. `path` is below ``/agent/v1``, without a leading slash (``instances/x/stop``).

    Never call it inside a transaction: it waits for a machine. Raises NodeOffline (no answer in time, or no connection
    with the expected key), NodeIncompatible (an answer that is not of this protocol), NodePendingTakeover (the agent
    obeys another claim; this master is then fenced), AgentRefused, MasterFenced, NodeRevoked, NotFound, Conflict.
    """
    prepared = _prepare(node_id, method, path, body, operation_id, timeout_seconds)
    return _conclude(prepared, pools.loop_thread().run(_send(prepared)), answer)


async def acall(
    node_id: str,
    method: str,
    path: str,
    body: WireModel | None = None,
    *,
    answer: type[T],
    operation_id: str | None = None,
    timeout_seconds: float = 10.0,
    dialled: Endpoint | None = None,
) -> T:
    """`call` for a caller in an event loop; connections belong to that loop.

    `dialled` is an endpoint of the node that was read just now; without it, it is read again.
    """
    prepared = await in_thread(lambda: _prepare(node_id, method, path, body, operation_id, timeout_seconds, dialled))
    received = await _send(prepared)
    return await in_thread(lambda: _conclude(prepared, received, answer))


async def acall_alone(
    node_id: str,
    method: str,
    path: str,
    body: WireModel | None = None,
    *,
    answer: type[T],
    operation_id: str | None = None,
    identity: TlsIdentity | None = None,
    at_any_time: bool = False,
    timeout_seconds: float = 10.0,
) -> T:
    """`acall` over a connection of its own, made for this call and closed after it: the handshake is seen, too.

    With `identity` the master shows that certificate instead of the one in use; with `at_any_time` a node is let in
    whose certificate has expired (`transport.endpoint_at_any_time`). Raises NodeTurnedAway when the node
    hung up, as it does on a certificate that it does not accept; and what `call` raises.
    """
    dial = endpoint_at_any_time if at_any_time else partial(endpoint, identity=identity)
    prepared = await in_thread(
        lambda: _prepare(node_id, method, path, body, operation_id, timeout_seconds, dial(node_id))
    )
    received = await _send(replace(prepared, alone=True))
    return await in_thread(lambda: _conclude(prepared, received, answer))


async def events(node_id: str, after: int) -> AsyncIterator[Event]:
    """The node's events after sequence number `after`, as they come, until the line breaks.

    Raises NodeOffline when it does or when nothing (not even a ping) came for 10 seconds, NodeRevoked or Conflict when
    the node was revoked or got another key or address meanwhile, NodeIncompatible, AgentRefused.
    """
    target = await in_thread(lambda: endpoint(node_id))
    try:
        session = await pools.of_running_loop().session(target)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=pools.CONNECT_SECONDS, sock_read=EVENT_SILENCE_SECONDS)
        async with session.get(
            _url(target, "events"),
            params={"after": str(after)},
            server_hostname=target.server_name,
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                received = _Answer(response.status, await _read_limited(response))
                await in_thread(lambda: _refuse(target, received))
            try:
                with streams.of_running_loop().hold(target, lambda: _hang_up(response)):
                    async for line in _lines(response):
                        yield _parse(target, line, Event)
            finally:
                _hang_up(response)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        await in_thread(lambda: _require_same(target))
        raise _offline(target, error) from error
    await in_thread(lambda: _require_same(target))
    raise NodeOffline(f"Node {node_id} ended the event stream.")


async def close(node_id: str | None = None) -> None:
    """Close this loop's connections to a node (streams too); without one, to all nodes, and those to the database."""
    await pools.of_running_loop().close(node_id)
    if node_id is None:
        await asyncio.to_thread(pools.database_threads().release)


async def in_thread(work: Callable[[], R]) -> R:
    """Run database work beside the event loop."""
    return await pools.database_threads().run(work)


async def in_writer(work: Callable[[], R]) -> R:
    """Run work that writes beside the event loop, in one transaction with what else waits to be written.

    What it wrote is undone when it raises.
    """
    return await pools.writer().run(work)


def _prepare(
    node_id: str,
    method: str,
    path: str,
    body: WireModel | None,
    operation_id: str | None,
    timeout_seconds: float,
    dialled: Endpoint | None = None,
) -> _Call:
    target = dialled or endpoint(node_id)
    headers: dict[str, str] = {}
    claim = None
    if method not in _SAFE_METHODS:
        if operation_id is None:
            raise ValueError(f"{method} {path} changes the node and needs an operation id")
        claim = fencing.claim()
        headers = {
            EPOCH_HEADER: str(claim.epoch),
            INSTANCE_HEADER: claim.instance_id,
            OPERATION_HEADER: operation_id,
        }
    raw = None
    if body is not None:
        raw = body.model_dump_json(by_alias=True).encode()
        headers["Content-Type"] = "application/json"
    return _Call(target, method, path, headers, raw, timeout_seconds, claim)


async def _send(prepared: _Call) -> _Answer:
    target = prepared.endpoint
    try:
        if not prepared.alone:
            return await _exchange(await pools.of_running_loop().session(target), prepared)
        async with pools.lone_session(target) as session:
            return await _exchange(session, prepared)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _offline(target, error) from error


async def _exchange(session: aiohttp.ClientSession, prepared: _Call) -> _Answer:
    target = prepared.endpoint
    async with session.request(
        prepared.method,
        _url(target, prepared.path),
        data=prepared.body,
        headers=prepared.headers,
        server_hostname=target.server_name,
        timeout=aiohttp.ClientTimeout(total=prepared.timeout_seconds, sock_connect=pools.CONNECT_SECONDS),
        allow_redirects=False,
    ) as response:
        return _Answer(response.status, await _read_limited(response))


def _conclude(prepared: _Call, received: _Answer, answer: type[T]) -> T:
    target = prepared.endpoint
    _require_standing(prepared)
    if not 200 <= received.status < 300:
        _refuse(target, received, prepared.claim)
    return _parse(target, received.body, answer)


def _require_standing(prepared: _Call) -> None:
    """An answer to a call made under a former claim is dropped, a refusal too: it says nothing of the present one."""
    if prepared.claim is not None and not fencing.stands(prepared.claim):
        raise MasterFenced(fencing.fenced_reason() or "The master's claim changed while the node was called.")


def _refuse(target: Endpoint, received: _Answer, claim: Claim | None = None) -> None:
    """Raise what the refusal means; a refused `claim` fences the master first."""
    try:
        refusal = Refusal.model_validate_json(received.body)
    except ValidationError:
        text = f"Node {target.node_id} answered {received.status} with something that is not a refusal of its protocol."
        raise AgentRefused(AgentCode.INTERNAL.value, received.status, text) from None
    if claim is not None and refusal.code in _CLAIM_CODES:
        reason = f"Node {target.node_id} obeys another master ({refusal.code.value})."
        reachability.refused_claim(target.node_id, refusal.detail, claim, _held(refusal))
        fencing.fence(f"{reason} A takeover is needed; stop the other master first.", refused=claim)
        raise NodePendingTakeover(reason, fields={"agentCode": refusal.code.value})
    raise AgentRefused(refusal.code.value, received.status, refusal.detail, refusal.fields)


def _held(refusal: Refusal) -> Claim | None:
    """The claim that the node obeys, as its refusal says; None when it does not say it."""
    try:
        return Claim.model_validate(refusal.fields.get("held"))
    except ValidationError:
        return None


def _parse(target: Endpoint, body: bytes, kind: type[T]) -> T:
    if _NUL in body:
        # An engine may print it; no database keeps it in a text.
        body = _WRITTEN_NUL.sub(rb"\1\\ufffd", body)
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        where = ", ".join(
            ".".join(map(str, item["loc"])) for item in error.errors(include_input=False, include_context=False)[:5]
        )
        log.error("a node's answer cannot be read", node=target.node_id, kind=kind.__name__, where=where)
        raise NodeIncompatible(
            f"Node {target.node_id} answered with something that is not a {kind.__name__}. Upgrade its agent."
        ) from None


def _require_same(target: Endpoint) -> None:
    if endpoint(target.node_id) != target:
        raise Conflict(f"Node {target.node_id} has another key or address since the connection was made.")


def _offline(target: Endpoint, error: BaseException) -> NodeOffline:
    cause = _cause(error)
    hung_up = isinstance(cause, aiohttp.ServerDisconnectedError | ConnectionResetError | BrokenPipeError) or (
        isinstance(cause, ssl.SSLError) and "ALERT" in (getattr(cause, "reason", None) or "")
    )
    kind = NodeTurnedAway if hung_up else NodeOffline
    return kind(f"Node {target.node_id} cannot be reached at {target.host} port {target.port}: {_why(error)}.")


def _cause(error: BaseException) -> Any:
    return getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error


def _why(error: BaseException) -> str:
    """The cause of a failed connection in words."""
    inner = _cause(error)
    if isinstance(inner, ssl.SSLError):
        text = inner.verify_message if isinstance(inner, ssl.SSLCertVerificationError) else str(inner.args[-1])
        return f"no trusted connection ({text})"
    if isinstance(inner, TimeoutError):
        return "no answer in time"
    if isinstance(inner, aiohttp.ServerDisconnectedError | ConnectionResetError | BrokenPipeError):
        return "the agent closed the connection (it may not know this master's key)"
    if isinstance(inner, OSError) and inner.errno:
        return os.strerror(inner.errno)
    return str(inner) or type(inner).__name__


def _url(target: Endpoint, path: str) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"https://{host}:{target.port}{API_PREFIX}/{path}"


async def _read_limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_LIMIT:
            raise aiohttp.ClientPayloadError("the answer is larger than any answer may be")
    return bytes(body)


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """End a stream at once: its node may be revoked, and nobody waits for the good-bye of a broken line."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for chunk in response.content.iter_any():
        rest += chunk
        if len(rest) > ANSWER_LIMIT:
            raise aiohttp.ClientPayloadError("a line of the event stream is larger than any may be")
        *lines, last = bytes(rest).split(b"\n") if b"\n" in chunk else (bytes(rest),)
        rest = bytearray(last)
        for line in lines:
            if line.strip():
                yield line
