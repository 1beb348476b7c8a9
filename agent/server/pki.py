"""Routes of ``/agent/v1/pki``: a new key in two phases, and the node's trust."""

import asyncio
from http import HTTPStatus

from aiohttp import web

from agent.errors import AgentError
from agent.operations import RecordedResponse
from agent.server.body import parse_message
from agent.server.guard import Mutation, mutating
from agent.server.keys import ROTATION
from agent.wire.errors import AgentCode
from agent.wire.pki import CertificateUpdate, CsrRequest, RotationAbort, TrustUpdate


async def get_pki(request: web.Request) -> web.StreamResponse:
    """Return key, certificate and trust of the running agent."""
    return web.json_response(request.app[ROTATION].view().to_wire())


@mutating
async def post_csr(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Create the key of a rotation, and return its signing request."""
    message = parse_message(CsrRequest, mutation.body)
    return RecordedResponse(HTTPStatus.OK, (await request.app[ROTATION].csr(message.rotation_id)).to_wire())


@mutating
async def put_certificate(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Stage the certificate of that key and show it to new connections; the first request over one activates it."""
    message = parse_message(CertificateUpdate, mutation.body)
    return RecordedResponse(
        HTTPStatus.OK, (await request.app[ROTATION].take_certificate(message, _caller(request))).to_wire()
    )


@mutating
async def delete_next(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Delete the staged key and certificate. Without one there is nothing to do."""
    message = parse_message(RotationAbort, mutation.body)
    return RecordedResponse(HTTPStatus.OK, (await request.app[ROTATION].abort(message.rotation_id)).to_wire())


@mutating
async def put_trust(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Trust these CAs and these keys of the master, and no others."""
    message = parse_message(TrustUpdate, mutation.body)
    return RecordedResponse(HTTPStatus.OK, (await request.app[ROTATION].trust(message, _caller(request))).to_wire())


def _caller(request: web.Request) -> asyncio.BaseTransport:
    if request.transport is None:
        raise AgentError(AgentCode.INVALID_REQUEST, "The caller has disconnected.")
    return request.transport
