"""The route by which the master says that the node is drained."""

import asyncio
from http import HTTPStatus

from aiohttp import web

from agent.operations import RecordedResponse
from agent.server.body import parse_message
from agent.server.guard import Handler, Mutation, mutating_anew
from agent.server.keys import INSTANCES
from agent.wire.drain import DrainState


@mutating_anew
async def put_drain(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Note whether the node is drained; the next status lets go of its GPUs, or reads them again."""
    state = parse_message(DrainState, mutation.body)
    drain = request.app[INSTANCES].drain
    await asyncio.to_thread(lambda: drain.note(draining=state.draining))
    return RecordedResponse(HTTPStatus.OK, state.to_wire())


ROUTES: tuple[tuple[str, str, Handler], ...] = (("PUT", "/drain", put_drain),)
