"""Routes of container images. Bodies: docs/agent-api.md."""

from http import HTTPStatus

from aiohttp import web

from agent.deliveries.pulls import ImagePulls
from agent.operations import RecordedResponse
from agent.server.body import parse_message
from agent.server.guard import Handler, Mutation, mutating
from agent.wire.images import PullRequest

PULLS: web.AppKey[ImagePulls] = web.AppKey("pulls", ImagePulls)


async def get_images(request: web.Request) -> web.StreamResponse:
    """Return the images of the node's Docker Engine, and the pulls."""
    return web.json_response((await request.app[PULLS].listed()).to_wire())


async def get_pull(request: web.Request) -> web.StreamResponse:
    """Return the current state of one pull."""
    return web.json_response(request.app[PULLS].view(request.match_info["pull_id"]).to_wire())


@mutating
async def put_pull(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Pull an image; the response does not wait for it."""
    pull = parse_message(PullRequest, mutation.body)
    view = request.app[PULLS].begin(request.match_info["pull_id"], pull)
    return RecordedResponse(HTTPStatus.ACCEPTED, view.to_wire())


@mutating
async def post_cancel(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Cancel a pull."""
    return RecordedResponse(HTTPStatus.ACCEPTED, request.app[PULLS].cancel(request.match_info["pull_id"]).to_wire())


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/images", get_images),
    ("PUT", "/images/pull/{pull_id}", put_pull),
    ("GET", "/images/pull/{pull_id}", get_pull),
    ("POST", "/images/pull/{pull_id}/cancel", post_cancel),
)
