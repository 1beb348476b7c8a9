"""Calls to agents. Network work is kept apart from the database work before and after it.

Every mutating call carries the master's claim and an operation id; an agent that refuses the claim is left alone.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from email.utils import format_datetime
from functools import partial
from typing import NoReturn, TypeVar

import aiohttp
import structlog
from pydantic import ValidationError

from agent.wire.base import API_PREFIX, EPOCH_HEADER, INSTANCE_HEADER, OPERATION_HEADER, WireModel
from agent.wire.errors import AgentCode, AgentErrorBody
from agent.wire.fence import Claim, FenceView, MalformedClaim
from agent.wire.status import Event
from mirbad.kernel import clock
from mirbad.kernel.errors import Conflict
from nodes import fencing, reachability
from nodes.errors import (
    AgentRefused,
    MasterFenced,
    NodeIncompatible,
    NodeOffline,
    NodePendingTakeover,
)
from nodes.link import pools, streams
from nodes.link.failures import offline
from nodes.link.transport import Endpoint, endpoint, endpoint_despite_expiry
from nodes.pki.tls import TlsIdentity

log = structlog.get_logger(__name__)

T = TypeVar("T", bound=WireModel)
R = TypeVar("R")

ANSWER_LIMIT = 32 * 1024 * 1024
LINE_LIMIT = 4 * 1024 * 1024
"""Longest line of an event stream. A status of a hundred engines with their last lines is far below it."""
EVENT_SILENCE_SECONDS = 10.0
_NUL = rb"\u0000"
_WRITTEN_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_CLAIM_CODES = frozenset({AgentCode.STALE_MASTER, AgentCode.COMPETING_MASTER})


@dataclass(frozen=True, slots=True)
class _AgentCall:
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
class _AgentResponse:
    """A response as it arrived."""

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

    Never call it inside a transaction: it waits for a machine. Raises NodeOffline (timed out, or no connection
    with the expected key), NodeIncompatible (an answer that is not of this protocol), NodePendingTakeover (the agent
    obeys another claim; when a second node does, this master is fenced), AgentRefused, MasterFenced, NodeRevoked,
    NotFound, Conflict.
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
    """Do `call` for a caller in an event loop; connections belong to that loop.

    `dialled` is an endpoint of the node that was read just now; without it, the endpoint is read again.
    """
    prepared = await in_thread(lambda: _prepare(node_id, method, path, body, operation_id, timeout_seconds, dialled))
    received = await _send(prepared)
    return await in_thread(lambda: _conclude(prepared, received, answer))


async def acall_once(
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
    """Do `acall` over a connection of its own, closed after the call, so that the handshake is observed, too.

    With `identity` the master presents that certificate instead of the one in use; with `at_any_time` a node whose
    certificate has expired is accepted (`transport.endpoint_despite_expiry`). Raises NodeTurnedAway when the node
    closes the connection, as it does on a certificate that it does not accept; and the errors of `call`.
    """
    dial = endpoint_despite_expiry if at_any_time else partial(endpoint, identity=identity)
    prepared = await in_thread(
        lambda: _prepare(node_id, method, path, body, operation_id, timeout_seconds, dial(node_id))
    )
    received = await _send(replace(prepared, alone=True))
    return await in_thread(lambda: _conclude(prepared, received, answer))


async def events(node_id: str, after: int) -> AsyncIterator[Event]:
    """Yield the node's events after sequence number `after`, until the connection breaks.

    Raises NodeOffline when it breaks, or after 10 seconds without any message (even a ping), NodeRevoked or Conflict
    when the node was revoked or got another key or address meanwhile, NodeIncompatible, AgentRefused.
    """
    target = await in_thread(lambda: endpoint(node_id))
    try:
        session = await pools.of_running_loop().session(target)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=pools.CONNECT_SECONDS, sock_read=EVENT_SILENCE_SECONDS)
        async with session.get(
            _url(target, "events"),
            params={"after": str(after)},
            headers=_dated(),
            server_hostname=target.server_name,
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                received = _AgentResponse(response.status, await _read_limited(response))
                await in_thread(lambda: _refuse(target, received))
            try:
                with streams.of_running_loop().hold(target, lambda: _hang_up(response)):
                    async for line in _lines(response):
                        yield _parse(target, line, Event)
            finally:
                _hang_up(response)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        await in_thread(lambda: _require_same(target))
        raise offline(target, error) from error
    await in_thread(lambda: _require_same(target))
    raise NodeOffline(f"Node {node_id} closed the event stream.")


async def close(node_id: str | None = None) -> None:
    """Close this loop's connections to a node (streams too); without `node_id`, to all nodes, and those to the
    database.
    """
    await pools.of_running_loop().close(node_id)
    if node_id is None:
        await asyncio.to_thread(pools.database_threads().release)


async def in_thread(work: Callable[[], R]) -> R:
    """Run database work beside the event loop."""
    return await pools.database_threads().run(work)


async def in_writer(work: Callable[[], R]) -> R:
    """Run database writes beside the event loop, in one transaction with other waiting writes.

    Its writes are undone when it raises.
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
) -> _AgentCall:
    target = dialled or endpoint(node_id)
    headers = _dated()
    claim = None
    if method not in _SAFE_METHODS:
        if operation_id is None:
            raise ValueError(f"{method} {path} changes the node and needs an operation id")
        claim = fencing.claim()
        headers |= {
            EPOCH_HEADER: str(claim.epoch),
            INSTANCE_HEADER: claim.instance_id,
            OPERATION_HEADER: operation_id,
        }
    raw = None
    if body is not None:
        raw = body.model_dump_json(by_alias=True).encode()
        headers["Content-Type"] = "application/json"
    return _AgentCall(target, method, path, headers, raw, timeout_seconds, claim)


def _dated() -> dict[str, str]:
    """Return the header by which the agent compares its clock."""
    return {"Date": format_datetime(clock.now(), usegmt=True)}


async def _send(prepared: _AgentCall) -> _AgentResponse:
    target = prepared.endpoint
    try:
        if not prepared.alone:
            return await _exchange(await pools.of_running_loop().session(target), prepared)
        async with pools.single_use_session(target) as session:
            return await _exchange(session, prepared)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise offline(target, error) from error


async def _exchange(session: aiohttp.ClientSession, prepared: _AgentCall) -> _AgentResponse:
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
        return _AgentResponse(response.status, await _read_limited(response))


def _conclude(prepared: _AgentCall, received: _AgentResponse, answer: type[T]) -> T:
    target = prepared.endpoint
    _require_standing(prepared)
    if not 200 <= received.status < 300:
        _refuse(target, received, prepared.claim)
    return _parse(target, received.body, answer)


def _require_standing(prepared: _AgentCall) -> None:
    """Drop a response, or a refusal, to a call made under a former claim: it does not concern the present one."""
    if prepared.claim is not None and not fencing.is_current(prepared.claim):
        raise MasterFenced(fencing.fenced_reason() or "The master's claim changed during the call to the node.")


def _refuse(target: Endpoint, received: _AgentResponse, claim: Claim | None = None) -> None:
    """Raise the error for a refusal; a refused `claim` is recorded first."""
    try:
        refusal = AgentErrorBody.model_validate_json(received.body)
    except ValidationError:
        text = f"Node {target.node_id} answered {received.status} with an error outside its protocol."
        raise AgentRefused(AgentCode.INTERNAL.value, received.status, text) from None
    if claim is not None and refusal.code in _CLAIM_CODES:
        _refuse_claim(target.node_id, refusal, claim)
    raise AgentRefused(refusal.code.value, received.status, refusal.detail, refusal.fields)


def _refuse_claim(node_id: str, refusal: AgentErrorBody, claim: Claim) -> NoReturn:
    if reason := reachability.refused_claim(node_id, claim, _held(refusal)):
        raise NodeIncompatible(f"Node {node_id}: {reason}", fields={"agentCode": refusal.code.value})
    text = f"Node {node_id} obeys another master ({refusal.code.value}). {reachability.REFUSED_REMEDY}"
    raise NodePendingTakeover(text, fields={"agentCode": refusal.code.value})


def _held(refusal: AgentErrorBody) -> Claim | MalformedClaim | None:
    """Return the claim that the node obeys, as its refusal states it; None when it states none."""
    try:
        return FenceView.model_validate({"held": refusal.fields.get("held")}).held
    except ValidationError:
        return MalformedClaim(epoch=refusal.fields.get("held"))


def _parse(target: Endpoint, body: bytes, kind: type[T]) -> T:
    if _NUL in body:
        # An engine may print NUL; no database stores it in text.
        body = _WRITTEN_NUL.sub(rb"\1\\ufffd", body)
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        where = ", ".join(
            ".".join(map(str, item["loc"])) for item in error.errors(include_input=False, include_context=False)[:5]
        )
        log.error("a node's response cannot be parsed", node=target.node_id, kind=kind.__name__, where=where)
        raise NodeIncompatible(
            f"Node {target.node_id} sent a response that is not a {kind.__name__}. Upgrade its agent."
        ) from None


def _require_same(target: Endpoint) -> None:
    if endpoint(target.node_id) != target:
        raise Conflict(f"Node {target.node_id} has another key or address since the connection was opened.")


def _url(target: Endpoint, path: str) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"https://{host}:{target.port}{API_PREFIX}/{path}"


async def _read_limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_LIMIT:
            raise aiohttp.ClientPayloadError("the response exceeds the size limit")
    return bytes(body)


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """Close a stream at once: its node may be revoked, and nobody waits for a clean shutdown of a broken connection."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the lines of a stream. Raises ClientPayloadError for a line that is too long, or does not end in time."""
    loop = asyncio.get_running_loop()
    began, size, parts = loop.time(), 0, list[bytes]()
    async for chunk in response.content.iter_any():
        first, *rest = chunk.split(b"\n")
        parts.append(first)
        size += len(first)
        if rest:
            # Joined at its end only: joining at every chunk would cost the square of the length.
            for line in (b"".join(parts), *rest[:-1]):
                if line.strip():
                    yield line
            began, size, parts = loop.time(), len(rest[-1]), [rest[-1]]
        if size > LINE_LIMIT or (size and loop.time() - began > EVENT_SILENCE_SECONDS):
            raise aiohttp.ClientPayloadError("a line of the event stream is too long, or does not end")
