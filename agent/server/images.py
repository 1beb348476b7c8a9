"""Routes of container images. Bodies: docs/agent-api.md."""

from http import HTTPStatus

from aiohttp import web

from agent.deliveries.pulls import Pulls
from agent.operations import Answer
from agent.server.body import parse_message
from agent.server.guard import Handler, Mutation, mutating
from agent.wire.images import PullRequest

PULLS: web.AppKey[Pulls] = web.AppKey("pulls", Pulls)


async def get_images(request: web.Request) -> web.StreamResponse:
    """What the node's Docker Engine has, and the pulls."""
    return web.json_response((await request.app[PULLS].listed()).to_wire())


async def get_pull(request: web.Request) -> web.StreamResponse:
    """One pull as it is now."""
    return web.json_response(request.app[PULLS].view(request.match_info["pull_id"]).to_wire())


@mutating
async def put_pull(request: web.Request, mutation: Mutation) -> Answer:
    """Bring an image; the answer does not wait for it."""
    wanted = parse_message(PullRequest, mutation.body)
    view = request.app[PULLS].begin(request.match_info["pull_id"], wanted)
    return Answer(HTTPStatus.ACCEPTED, view.to_wire())


@mutating
async def post_cancel(request: web.Request, mutation: Mutation) -> Answer:
    """End a pull."""
    return Answer(HTTPStatus.ACCEPTED, request.app[PULLS].cancel(request.match_info["pull_id"]).to_wire())


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/images", get_images),
    ("PUT", "/images/pull/{pull_id}", put_pull),
    ("GET", "/images/pull/{pull_id}", get_pull),
    ("POST", "/images/pull/{pull_id}/cancel", post_cancel),
)
