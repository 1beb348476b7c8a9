"""An agent that answers as it is told to, over real TLS; imported where it is wanted."""

import asyncio

from aiohttp import web

from agent.wire.errors import AgentCode, AgentErrorBody
from agent.wire.fence import Claim, FenceView
from nodes.link import client
from tests.nodes.parts import (
    Machine,
)
from tests.nodes.test_reachability import caps, info, status
from tests.waiting import pause_async

CLAIM_PATH = "/agent/v1/fence"


class AnsweringAgent:
    """Answers as told; by default as a healthy agent of protocol 1."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.info = info(machine)
        self.answers = {
            ("GET", "/agent/v1/info"): lambda request: self.info,
            ("GET", "/agent/v1/status"): lambda request: status(seq=3),
            ("GET", "/agent/v1/capabilities"): lambda request: caps(),
            ("PUT", CLAIM_PATH): lambda request: FenceView(held=Claim(epoch=1, instance_id="0123456789")),
        }

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        made = self.answers[request.method, request.path](request)
        if asyncio.iscoroutine(made):
            made = await made
        if isinstance(made, web.StreamResponse):
            return made
        return web.json_response(made.to_wire())

    def refuse(self, method: str, path: str, code: AgentCode, http_status: int = 409, **fields: object):
        body = AgentErrorBody(code=code, detail=f"said {code.value}", fields=fields).to_wire()
        self.answers[method, f"/agent/v1/{path}"] = lambda request: web.json_response(body, status=http_status)


async def hang_up():
    """Close this loop's connections, and give a TLS line that was left in its middle the time to end."""
    await client.close()
    await pause_async(0.05)
