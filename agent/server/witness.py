"""Routes of the witness of the master's audit log."""

from http import HTTPStatus

from aiohttp import web

from agent.operations import RecordedResponse
from agent.server.body import parse_message
from agent.server.guard import Handler, Mutation, mutating_anew
from agent.server.keys import WITNESS
from agent.wire.witness import BreakRequest, WitnessRequest


async def get_witness(request: web.Request) -> web.StreamResponse:
    """Return the head that this node saw last."""
    return web.json_response((await request.app[WITNESS].view()).to_wire())


@mutating_anew
async def put_witness(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Sign a head that continues the last one."""
    view = await request.app[WITNESS].witness(parse_message(WitnessRequest, mutation.body))
    return RecordedResponse(HTTPStatus.OK, view.to_wire())


@mutating_anew
async def put_break(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Hold a head that an owner decided for, in place of the last one."""
    view = await request.app[WITNESS].accept(parse_message(BreakRequest, mutation.body))
    return RecordedResponse(HTTPStatus.OK, view.to_wire())


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/witness", get_witness),
    ("PUT", "/witness", put_witness),
    ("PUT", "/witness/break", put_break),
)
