"""The routes of ``/agent/v1/pki``: a new key in two phases, and what the agent trusts."""

import asyncio
from http import HTTPStatus

from aiohttp import web

from agent.errors import AgentError
from agent.operations import Answer
from agent.server.body import parse_message
from agent.server.guard import Mutation, mutating
from agent.server.keys import ROTATION
from agent.wire.errors import AgentCode
from agent.wire.pki import AbortOrder, CertificateOrder, CsrOrder, TrustOrder


async def get_pki(request: web.Request) -> web.StreamResponse:
    """Key, certificate and trust of the running agent."""
    return web.json_response(request.app[ROTATION].view().to_wire())


@mutating
async def post_csr(request: web.Request, mutation: Mutation) -> Answer:
    """Make the key of a rotation, and ask for its certificate."""
    order = parse_message(CsrOrder, mutation.body)
    return Answer(HTTPStatus.OK, (await request.app[ROTATION].csr(order.rotation_id)).to_wire())


@mutating
async def put_certificate(request: web.Request, mutation: Mutation) -> Answer:
    """Keep the certificate of that key and show it to new connections; the first request over one puts it into use."""
    order = parse_message(CertificateOrder, mutation.body)
    return Answer(HTTPStatus.OK, (await request.app[ROTATION].take_certificate(order, _caller(request))).to_wire())


@mutating
async def delete_next(request: web.Request, mutation: Mutation) -> Answer:
    """Forget key and certificate that wait. Nothing waiting is done already."""
    order = parse_message(AbortOrder, mutation.body)
    return Answer(HTTPStatus.OK, (await request.app[ROTATION].abort(order.rotation_id)).to_wire())


@mutating
async def put_trust(request: web.Request, mutation: Mutation) -> Answer:
    """Trust these CAs and these master's keys, and no others."""
    order = parse_message(TrustOrder, mutation.body)
    return Answer(HTTPStatus.OK, (await request.app[ROTATION].trust(order, _caller(request))).to_wire())


def _caller(request: web.Request) -> asyncio.BaseTransport:
    if request.transport is None:
        raise AgentError(AgentCode.INVALID_REQUEST, "the caller has left")
    return request.transport
