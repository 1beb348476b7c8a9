"""Machines with an agent in this process, without a socket; and the lies that a node can tell in its place.

An agent is its state folder and the real routes, guard, fence and journal over it; ``kill -9`` is to forget everything
but the folder.
"""

import asyncio
import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpVersion11, RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from agent.fence import Fence
from agent.identity import Identity
from agent.operations import OperationJournal
from agent.server import app as agent_app
from agent.server.clocks import Clocks
from agent.server.guard import guard
from agent.server.keys import EVENTS, FENCE, INSTANCES, JOURNAL, REPORTER, ROTATION, TLS, WITNESS
from agent.server.status import Probes, Reporter
from agent.wire.base import API_PREFIX
from agent.wire.fence import Claim
from agent.wire.status import HostStatus, NodeStatus
from agent.witness import Witness
from mirbad.kernel import clock
from nodes.link import client
from tests.agent.core import fleet as agent_fleet
from tests.agent.core.conftest import capabilities
from tests.standins.engines import RememberedEngines


@dataclass(frozen=True)
class Lie:
    """An answer that a node gives in place of its agent.

    `held` stands in its reports and refusals, as JSON. `refuses`: it admits no call; `nods`: it says yes to a claim and
    takes it not.
    """

    held: Any
    refuses: str = ""
    nods: bool = False


@cache
def _identity() -> Identity:
    return agent_fleet.Fleet().identity()


class _Terminator:
    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.clocks = Clocks()

    def admits(self, _: web.Request) -> bool:
        return True


class _Protocol:
    transport = None
    ssl_context = None
    peername = None
    sockname = None


def _no_task() -> Any:
    return asyncio.current_task()


class _Rotation:
    next_spki = ""

    async def note(self, _: web.Request) -> None:
        pass


class _Sequence:
    boot_id = "boot"
    capabilities_seq = 0

    def note(self, _: Any) -> None:
        pass


class _Broadcaster:
    """Whole statuses on request; nobody listens here."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine
        self._seq = 0

    async def refresh(self) -> NodeStatus:
        self._seq += 1
        return NodeStatus(
            boot_id=f"boot-{self._machine.boots}",
            seq=self._seq,
            capabilities_seq=0,
            time=clock.now().isoformat(),
            held_claim=self._machine.fence.held,
            host=HostStatus(),
            gpus=(),
            instances=(),
        )


class Machine:
    """One agent."""

    def __init__(self, folder: Path, node_id: str, uid: str) -> None:
        self.node_id, self.uid, self.folder, self.boots = node_id, uid, folder, 0
        self.lie: Lie | None = None
        folder.mkdir()
        # Engines live on when their agent dies.
        self.engines = RememberedEngines(lambda _: None)
        self.boot()

    def boot(self) -> None:
        """Begin anew from what is on disk."""
        self.boots += 1
        self.fence = Fence(self.folder, self.uid)
        journal = OperationJournal(self.folder)
        journal.open()
        engines = self.engines
        app = web.Application(middlewares=[guard])
        identity = dataclasses.replace(_identity(), node_id=self.node_id, node_uid=self.uid)

        async def say(value: Any) -> Any:
            return value

        probes = Probes(lambda: say(HostStatus()), lambda: say(()), lambda: say(capabilities()))
        app[TLS] = _Terminator(identity)  # type: ignore[misc]
        app[FENCE], app[JOURNAL], app[INSTANCES], app[EVENTS] = self.fence, journal, engines, _Broadcaster(self)  # type: ignore[misc]
        reporter = Reporter(probes, engines, self.fence, _Sequence())  # type: ignore[arg-type]
        reporter._machine_id_hash = hashlib.sha256(self.uid.encode()).hexdigest()
        app[REPORTER] = reporter
        app[ROTATION] = _Rotation()  # type: ignore[misc]
        app[WITNESS] = Witness(self.folder, self.node_id, self.uid)
        for method, path, handler in agent_app.ROUTES:
            app.router.add_route(method, f"{API_PREFIX}{path}", handler)
        app.freeze()
        self.app = app

    @property
    def held(self) -> Claim | None:
        """The claim on disk, whatever the agent remembers."""
        return Fence(self.folder, self.uid).held

    async def answer(self, call: Any) -> tuple[Any, bool]:
        """Return the node's answer to a prepared call, and whether its agent itself gave it."""
        lie = self.lie
        if lie is None:
            return await self._answer(call), True
        if call.method in ("GET", "HEAD"):
            told = await self._answer(call)
            body = json.loads(told.body)
            if "heldClaim" in body:
                body["heldClaim"] = lie.held
            return client._AgentResponse(told.status, json.dumps(body).encode()), False
        if lie.refuses:
            body = {"code": lie.refuses, "detail": "No.", "fields": {"held": lie.held}}
            return client._AgentResponse(409, json.dumps(body).encode()), False
        if lie.nods and call.path == "fence":
            return client._AgentResponse(200, json.dumps({"held": lie.held}).encode()), False
        return await self._answer(call), True

    async def _answer(self, call: Any) -> Any:
        payload = StreamReader(BaseProtocol(asyncio.get_running_loop()), 2**16)
        payload.feed_data(call.body or b"")
        payload.feed_eof()
        headers = CIMultiDict(call.headers)
        raw = tuple((name.encode(), text.encode()) for name, text in headers.items())
        url = URL(f"http://agent{API_PREFIX}/{call.path}")
        message = RawRequestMessage(
            call.method, url.raw_path, HttpVersion11, CIMultiDictProxy(headers), raw,
            should_close=False, compression=None, upgrade=False, chunked=False, url=url,
        )  # fmt: skip
        # What the guard reads to see whether an answer has begun.
        writer = SimpleNamespace(output_size=0)
        request = web.Request(
            message, payload, _Protocol(), writer, _no_task(), asyncio.get_running_loop(), client_max_size=2**20
        )  # type: ignore[arg-type]
        response = await self.app._handle(request)
        return client._AgentResponse(response.status, bytes(response.body or b""))
