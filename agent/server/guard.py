"""What stands before every handler: the peer's key, approval, the fence, the journal; and errors as bodies."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from aiohttp import web
from pydantic import ValidationError

from agent.errors import AgentError
from agent.operations import Answer, Call, body_digest
from agent.server.body import parse_object, read_bytes
from agent.server.keys import DOOR, FENCE, JOURNAL, ROTATION
from agent.wire.base import API_PREFIX, EPOCH_HEADER, INSTANCE_HEADER, OPERATION_HEADER
from agent.wire.errors import AgentCode
from agent.wire.fence import Claim

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN_BEFORE_APPROVAL = frozenset({("GET", f"{API_PREFIX}/info"), ("PUT", f"{API_PREFIX}/fence")})
"""What a node that no master has claimed answers: who it is, and the first claim."""

_fenced: WeakSet[Handler] = WeakSet()


@dataclass(frozen=True)
class Mutation:
    """What a mutating handler is given beside its request."""

    operation_id: str
    claim: Claim
    body: dict[str, Any]


def is_fenced(handler: object) -> bool:
    """Whether `handler` was made by `mutating`."""
    return handler in _fenced


def mutating(effect: Callable[[web.Request, Mutation], Awaitable[Answer]]) -> Handler:
    """A handler that runs `effect` once per operation id, under an admitted claim, with its answer on disk."""

    async def handler(request: web.Request) -> web.StreamResponse:
        claim = read_claim(request)
        data = await read_bytes(request)
        body = parse_object(data) if data else {}
        route = f"{request.method} {request.path.removeprefix(API_PREFIX)}"
        call = Call(request.headers.get(OPERATION_HEADER, ""), route, body_digest(body))
        mutation = Mutation(call.operation_id, claim, body)
        async with request.app[FENCE].admitted(claim):
            answer = await request.app[JOURNAL].run(call, lambda: effect(request, mutation))
        return web.json_response(answer.body, status=answer.status)

    handler.__name__ = effect.__name__
    handler.__doc__ = effect.__doc__
    _fenced.add(handler)
    return handler


def read_claim(request: web.Request) -> Claim:
    """The claim in the headers. AgentError INVALID_REQUEST when there is none."""
    try:
        return Claim.model_validate(
            {"epoch": request.headers[EPOCH_HEADER], "instanceId": request.headers[INSTANCE_HEADER]}
        )
    except (KeyError, ValidationError):
        raise AgentError(
            AgentCode.INVALID_REQUEST,
            f"a call that changes something carries {EPOCH_HEADER}, {INSTANCE_HEADER} and {OPERATION_HEADER}",
        ) from None


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The outermost step of every request."""
    try:
        if not request.app[DOOR].admits(request):
            return _closing(AgentError(AgentCode.NOT_APPROVED, "this connection's key is not the master's any more"))
        if request.app[FENCE].held is None and (request.method, request.path) not in OPEN_BEFORE_APPROVAL:
            raise AgentError(AgentCode.NOT_APPROVED, "no master has claimed this node yet; approve it first")
        await request.app[ROTATION].note(request)
        return await handler(request)
    except AgentError as error:
        if _is_answered(request):
            raise
        return _closing(error) if error.code is AgentCode.PAYLOAD_TOO_LARGE else refusal(error)
    except web.HTTPException as error:
        return _translated(error)
    except ConnectionError:
        raise  # the peer left: nobody to tell
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        if _is_answered(request):
            raise
        return refusal(AgentError(AgentCode.INTERNAL, "the agent failed on this call; its log has the reason"))


def refusal(error: AgentError, status: int | None = None) -> web.Response:
    """The answer that carries `error`."""
    return web.json_response(error.to_refusal().to_wire(), status=status or error.http_status)


def _is_answered(request: web.Request) -> bool:
    return request.writer.output_size > 0


def _closing(error: AgentError) -> web.Response:
    response = refusal(error)
    response.force_close()
    return response


def _translated(error: web.HTTPException) -> web.Response:
    code = AgentCode.NOT_FOUND if error.status == web.HTTPNotFound.status_code else AgentCode.INVALID_REQUEST
    detail = "this agent has no such route" if code is AgentCode.NOT_FOUND else (error.reason or "")
    response = refusal(AgentError(code, detail), status=error.status)
    if allow := error.headers.get("Allow"):
        response.headers["Allow"] = allow
    return response
