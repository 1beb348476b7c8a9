"""The control routes, one function each. Routes and bodies: docs/agent-api.md."""

import asyncio
import re
from http import HTTPStatus

from aiohttp import web

from agent.errors import AgentError
from agent.operations import RecordedResponse
from agent.running.kept_logs import EARLIER_RUNS
from agent.server.body import parse_message
from agent.server.downloads import CHANGED
from agent.server.guard import Mutation, mutating
from agent.server.keys import EVENTS, FENCE, INSTANCES, JOURNAL, OPEN_REQUESTS, REPORTER, ROTATION, TLS
from agent.wire.base import WireModel
from agent.wire.errors import AgentCode
from agent.wire.fence import Claim, FenceView
from agent.wire.instances import InstanceForgotten, LaunchSpec, StopRequest

PING_SECONDS = 2.0
LINE_SECONDS = 20.0
"""Limit of one write to a subscriber; after it the stream ends."""

MAX_TAIL = 5000
_DEFAULT_TAIL = 200
_INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def _json(message: WireModel, status: int = HTTPStatus.OK) -> web.Response:
    return web.json_response(message.to_wire(), status=status)


def instance_id_of(request: web.Request) -> str:
    """Return the instance id in the path. Raises AgentError INVALID_REQUEST for an impossible one."""
    text = request.match_info["instance_id"]
    if not _INSTANCE_ID.fullmatch(text):
        raise AgentError(AgentCode.INVALID_REQUEST, "An instance id has 1-128 characters of A-Z a-z 0-9 . _ -")
    return text


def _whole_number(request: web.Request, name: str, default: int | None, maximum: int) -> int | None:
    text = request.query.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) or int(text) > maximum:
        raise AgentError(AgentCode.INVALID_REQUEST, f"{name} must be a whole number from 0 to {maximum}.")
    return int(text)


async def get_info(request: web.Request) -> web.StreamResponse:
    """Return the identity of this node."""
    info = request.app[REPORTER].info(request.app[TLS].identity)
    return _json(info.model_copy(update={"next_spki_sha256": request.app[ROTATION].next_spki}))


async def get_capabilities(request: web.Request) -> web.StreamResponse:
    """Return the capabilities of this machine."""
    return _json(await request.app[REPORTER].capabilities())


async def get_status(request: web.Request) -> web.StreamResponse:
    """Return the changing state of this machine, at one moment."""
    return _json(await request.app[EVENTS].refresh())


async def get_events(request: web.Request) -> web.StreamResponse:
    """Stream changes, one JSON object per line, starting with a whole status."""
    _whole_number(request, "after", None, 2**63 - 1)
    broadcaster = request.app[EVENTS]
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
    response.enable_chunked_encoding()
    subscriber = broadcaster.listen()
    try:
        await response.prepare(request)
        while not subscriber.closed:
            if subscriber.stale:
                await broadcaster.refresh()
            woken = await subscriber.wait(PING_SECONDS)
            events = subscriber.take() if woken else [broadcaster.ping()]
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
        broadcaster.leave(subscriber)
    return response


async def get_operation(request: web.Request) -> web.StreamResponse:
    """Return the result of an operation."""
    return _json(await request.app[JOURNAL].view(request.match_info["operation_id"]))


async def get_instance(request: web.Request) -> web.StreamResponse:
    """Return the observed state of one engine, with its count of open requests."""
    instance_id = instance_id_of(request)
    view = request.app[INSTANCES].view(instance_id)
    return _json(view.model_copy(update={"open_requests": request.app[OPEN_REQUESTS][instance_id]}))


async def get_log(request: web.Request) -> web.StreamResponse:
    """Return lines of an engine's log, of the present run or an earlier one."""
    tail = _whole_number(request, "tail", _DEFAULT_TAIL, MAX_TAIL)
    after = _whole_number(request, "after", None, 2**63 - 1)
    run = _whole_number(request, "run", 0, EARLIER_RUNS)
    return _json(await request.app[INSTANCES].log(instance_id_of(request), tail or 0, after, run or 0))


@mutating
async def put_fence(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Claim this node. The claim in the headers is already admitted; the body repeats it."""
    if parse_message(Claim, mutation.body) != mutation.claim:
        raise AgentError(AgentCode.INVALID_REQUEST, "The claims in body and headers differ.")
    return RecordedResponse(HTTPStatus.OK, FenceView(held=request.app[FENCE].held).to_wire())


@mutating
async def put_instance(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Start an engine; the response does not wait for it."""
    spec = parse_message(LaunchSpec, mutation.body)
    try:
        view = await request.app[INSTANCES].launch(instance_id_of(request), mutation.operation_id, spec)
    except AgentError as error:
        if error.code is AgentCode.MODELS_ROOT_CHANGED:
            # The next status says so, and the master waits instead of trying again.
            request.app[CHANGED]()
        raise
    return RecordedResponse(HTTPStatus.ACCEPTED, view.to_wire())


@mutating
async def post_stop(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Stop an engine; the response does not wait for it."""
    stop = parse_message(StopRequest, mutation.body)
    view = await request.app[INSTANCES].stop(instance_id_of(request), stop.grace_seconds)
    return RecordedResponse(HTTPStatus.ACCEPTED, view.to_wire())


@mutating
async def delete_instance(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Delete the record of a final instance. An unknown one counts as deleted."""
    instance_id = instance_id_of(request)
    try:
        await request.app[INSTANCES].forget(instance_id)
    except AgentError as error:
        if error.code is not AgentCode.NOT_FOUND:
            raise
    return RecordedResponse(HTTPStatus.OK, InstanceForgotten(instance_id=instance_id).to_wire())
