"""Checks before every handler: the peer's key, approval, the fence, the journal. Errors become response bodies."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from aiohttp import web
from pydantic import ValidationError

from agent.errors import AgentError
from agent.operations import JournaledCall, RecordedResponse, body_digest
from agent.server.body import parse_object, read_bytes
from agent.server.keys import FENCE, JOURNAL, ROTATION, TLS
from agent.wire.base import API_PREFIX, EPOCH_HEADER, INSTANCE_HEADER, OPERATION_HEADER
from agent.wire.errors import AgentCode
from agent.wire.fence import MAX_EPOCH, Claim

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN_BEFORE_APPROVAL = frozenset({("GET", f"{API_PREFIX}/info"), ("PUT", f"{API_PREFIX}/fence")})
"""Routes of a node that no master has claimed yet: its identity, and the first claim."""

_fenced: WeakSet[Handler] = WeakSet()


@dataclass(frozen=True)
class Mutation:
    """Arguments of a mutating handler, in addition to its request."""

    operation_id: str
    claim: Claim
    body: dict[str, Any]


MutatingEffect = Callable[[web.Request, Mutation], Awaitable[RecordedResponse]]


def is_fenced(handler: object) -> bool:
    """Return whether `handler` was made by `mutating`."""
    return handler in _fenced


def mutating(effect: MutatingEffect) -> Handler:
    """Return a handler that runs `effect` once per operation id, under an admitted claim, with its response on disk."""
    return _fenced_handler(effect, journaled=True)


def mutating_anew(effect: MutatingEffect) -> Handler:
    """Return a handler as `mutating` does, for an effect that is the same however often it runs: no journal entry."""
    return _fenced_handler(effect, journaled=False)


def _fenced_handler(effect: MutatingEffect, *, journaled: bool) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        claim = read_claim(request)
        data = await read_bytes(request)
        body = parse_object(data) if data else {}
        route = f"{request.method} {request.path.removeprefix(API_PREFIX)}"
        call = JournaledCall(request.headers.get(OPERATION_HEADER, ""), route, body_digest(body))
        mutation = Mutation(call.operation_id, claim, body)
        async with request.app[FENCE].admitted(claim):
            if journaled:
                answer = await request.app[JOURNAL].run(call, lambda: effect(request, mutation))
            else:
                answer = await effect(request, mutation)
        return web.json_response(answer.body, status=answer.status)

    handler.__name__ = effect.__name__
    handler.__doc__ = effect.__doc__
    _fenced.add(handler)
    return handler


def read_claim(request: web.Request) -> Claim:
    """Return the claim in the headers. Raises AgentError INVALID_REQUEST without one."""
    try:
        return Claim.model_validate(
            {"epoch": request.headers[EPOCH_HEADER], "instanceId": request.headers[INSTANCE_HEADER]}
        )
    except (KeyError, ValidationError):
        raise AgentError(
            AgentCode.INVALID_REQUEST,
            f"A request that changes something needs {EPOCH_HEADER} (1 to {MAX_EPOCH}), {INSTANCE_HEADER} and "
            f"{OPERATION_HEADER}.",
        ) from None


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Run the outermost checks of every request."""
    try:
        if not request.app[TLS].admits(request):
            return _closing(AgentError(AgentCode.NOT_APPROVED, "This connection's key is no longer the master's."))
        if request.app[FENCE].held is None and (request.method, request.path) not in OPEN_BEFORE_APPROVAL:
            raise AgentError(AgentCode.NOT_APPROVED, "No master has claimed this node yet. Approve it first.")
        request.app[TLS].clocks.note_date(request.headers.get("Date"))
        await request.app[ROTATION].note(request)
        return await handler(request)
    except AgentError as error:
        if _is_answered(request):
            raise
        return _closing(error) if error.code is AgentCode.PAYLOAD_TOO_LARGE else refusal(error)
    except web.HTTPException as error:
        return _translated(error)
    except ConnectionError:
        raise  # the peer has disconnected: no response is possible
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        if _is_answered(request):
            raise
        return refusal(AgentError(AgentCode.INTERNAL, "The agent failed on this request. See the agent's log."))


def refusal(error: AgentError, status: int | None = None) -> web.Response:
    """Return the response that carries `error`."""
    return web.json_response(error.to_body().to_wire(), status=status or error.http_status)


def _is_answered(request: web.Request) -> bool:
    return request.writer.output_size > 0


def _closing(error: AgentError) -> web.Response:
    response = refusal(error)
    response.force_close()
    return response


def _translated(error: web.HTTPException) -> web.Response:
    code = AgentCode.NOT_FOUND if error.status == web.HTTPNotFound.status_code else AgentCode.INVALID_REQUEST
    detail = "Route not found." if code is AgentCode.NOT_FOUND else (error.reason or "")
    response = refusal(AgentError(code, detail), status=error.status)
    if allow := error.headers.get("Allow"):
        response.headers["Allow"] = allow
    return response
