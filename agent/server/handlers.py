"""The control routes, one function each. Routes and bodies: docs/agent-api.md."""

import asyncio
import re
from http import HTTPStatus

from aiohttp import web

from agent.errors import AgentError
from agent.operations import Answer
from agent.server.body import parse_message
from agent.server.guard import Mutation, mutating
from agent.server.keys import DOOR, FENCE, HUB, INSTANCES, JOURNAL, OPEN_REQUESTS, REPORTER, ROTATION
from agent.wire.base import WireModel
from agent.wire.errors import AgentCode
from agent.wire.fence import Claim, FenceView
from agent.wire.instances import Forgotten, LaunchSpec, StopRequest

PING_SECONDS = 2.0
LINE_SECONDS = 20.0
"""How long one write to a listener may take before its stream is ended."""

MAX_TAIL = 5000
_DEFAULT_TAIL = 200
_INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def _json(message: WireModel, status: int = HTTPStatus.OK) -> web.Response:
    return web.json_response(message.to_wire(), status=status)


def instance_id_of(request: web.Request) -> str:
    """The instance id in the path. AgentError INVALID_REQUEST when it cannot be one."""
    text = request.match_info["instance_id"]
    if not _INSTANCE_ID.fullmatch(text):
        raise AgentError(AgentCode.INVALID_REQUEST, "an instance id is 1-128 of A-Z a-z 0-9 . _ -")
    return text


def _whole_number(request: web.Request, name: str, default: int | None, maximum: int) -> int | None:
    text = request.query.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) or int(text) > maximum:
        raise AgentError(AgentCode.INVALID_REQUEST, f"{name} must be a whole number from 0 to {maximum}")
    return int(text)


async def get_info(request: web.Request) -> web.StreamResponse:
    """Who this is."""
    info = request.app[REPORTER].info(request.app[DOOR].identity)
    return _json(info.model_copy(update={"next_spki_sha256": request.app[ROTATION].next_spki}))


async def get_capabilities(request: web.Request) -> web.StreamResponse:
    """What this machine can do."""
    return _json(await request.app[REPORTER].capabilities())


async def get_status(request: web.Request) -> web.StreamResponse:
    """Everything that changes, at one moment."""
    return _json(await request.app[HUB].refresh())


async def get_events(request: web.Request) -> web.StreamResponse:
    """Changes as they come, one JSON object a line, a whole status first."""
    _whole_number(request, "after", None, 2**63 - 1)
    hub = request.app[HUB]
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
    response.enable_chunked_encoding()
    listener = hub.listen()
    try:
        await response.prepare(request)
        while not listener.closed:
            if listener.stale:
                await hub.refresh()
            woken = await listener.wait(PING_SECONDS)
            events = listener.take() if woken else [hub.ping()]
            lines = b"".join(event.model_dump_json(by_alias=True).encode() + b"\n" for event in events)
            if lines:
                async with asyncio.timeout(LINE_SECONDS):
                    await response.write(lines)
        async with asyncio.timeout(LINE_SECONDS):
            await response.write_eof()
    except (ConnectionError, TimeoutError):
        if request.transport is not None:
            request.transport.abort()
    finally:
        hub.leave(listener)
    return response


async def get_operation(request: web.Request) -> web.StreamResponse:
    """What an operation led to."""
    return _json(request.app[JOURNAL].view(request.match_info["operation_id"]))


async def get_instance(request: web.Request) -> web.StreamResponse:
    """One engine as it is seen now, with how many requests it answers."""
    instance_id = instance_id_of(request)
    view = request.app[INSTANCES].view(instance_id)
    return _json(view.model_copy(update={"open_requests": request.app[OPEN_REQUESTS][instance_id]}))


async def get_log(request: web.Request) -> web.StreamResponse:
    """Lines that an engine wrote."""
    tail = _whole_number(request, "tail", _DEFAULT_TAIL, MAX_TAIL)
    after = _whole_number(request, "after", None, 2**63 - 1)
    return _json(await request.app[INSTANCES].log(instance_id_of(request), tail or 0, after))


@mutating
async def put_fence(request: web.Request, mutation: Mutation) -> Answer:
    """Claim this node. The claim of the headers has been admitted; the body repeats it."""
    if parse_message(Claim, mutation.body) != mutation.claim:
        raise AgentError(AgentCode.INVALID_REQUEST, "the claim in the body is not the one in the headers")
    return Answer(HTTPStatus.OK, FenceView(held=request.app[FENCE].held).to_wire())


@mutating
async def put_instance(request: web.Request, mutation: Mutation) -> Answer:
    """Start an engine; the answer does not wait for it."""
    spec = parse_message(LaunchSpec, mutation.body)
    view = await request.app[INSTANCES].launch(instance_id_of(request), mutation.operation_id, spec)
    return Answer(HTTPStatus.ACCEPTED, view.to_wire())


@mutating
async def post_stop(request: web.Request, mutation: Mutation) -> Answer:
    """Stop an engine; the answer does not wait for it."""
    wish = parse_message(StopRequest, mutation.body)
    view = await request.app[INSTANCES].stop(instance_id_of(request), wish.grace_seconds)
    return Answer(HTTPStatus.ACCEPTED, view.to_wire())


@mutating
async def delete_instance(request: web.Request, mutation: Mutation) -> Answer:
    """Forget a final instance. One that is not known is forgotten already."""
    instance_id = instance_id_of(request)
    try:
        await request.app[INSTANCES].forget(instance_id)
    except AgentError as error:
        if error.code is not AgentCode.NOT_FOUND:
            raise
    return Answer(HTTPStatus.OK, Forgotten(instance_id=instance_id).to_wire())
