"""Several masters and several agents in one process, without a socket: the real code of both, played step by step.

A master is its rows (identity, nodes, operations); whoever acts has their rows in the database. So a backup is a copy
of rows, and restoring one is loading it. An agent is its state folder and the real routes, guard, fence and journal
over it; ``kill -9`` is to forget everything but the folder.
"""

import asyncio
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpVersion11, RawRequestMessage
from django.db import connections
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from agent.fence import Fence
from agent.identity import Identity
from agent.operations import Journal
from agent.server import app as agent_app
from agent.server.guard import guard
from agent.server.keys import DOOR, FENCE, HUB, INSTANCES, JOURNAL, REPORTER, ROTATION
from agent.server.status import Probes, Reporter
from agent.wire.base import API_PREFIX, EPOCH_HEADER, INSTANCE_HEADER
from agent.wire.fence import Claim
from agent.wire.status import HostStatus, NodeStatus
from jobs import worker
from jobs.models import Operation, OperationEvent
from mirbad.kernel import clock
from nodes import fencing, reachability
from nodes.errors import NodeOffline
from nodes.link import client, health, pools
from nodes.link.transport import Endpoint
from nodes.models import MasterIdentity, Node
from tests.agent.core import fleet as agent_fleet
from tests.agent.core.conftest import capabilities
from tests.agent.core.engines import RememberedEngines

TABLES = (MasterIdentity, Node, Operation, OperationEvent)
NODES = ("a", "b", "c")

Rows = dict[type, list[dict[str, Any]]]


@dataclass(frozen=True)
class Effect:
    """A call that an agent admitted, as someone beside the two would note it."""

    node_id: str
    master: str
    claim: Claim
    path: str


class Violation(AssertionError):
    """Something happened that fencing must prevent."""


@cache
def _identity() -> Identity:
    return agent_fleet.Fleet().identity()


class _Door:
    def __init__(self, identity: Identity) -> None:
        self.identity = identity

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


class _Hub:
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
        folder.mkdir()
        # Engines live on when their agent dies.
        self.engines = RememberedEngines(lambda _: None)
        self.boot()

    def boot(self) -> None:
        """Begin anew from what is on disk."""
        self.boots += 1
        self.fence = Fence(self.folder, self.uid)
        journal = Journal(self.folder)
        journal.open()
        engines = self.engines
        app = web.Application(middlewares=[guard])
        identity = dataclasses.replace(_identity(), node_id=self.node_id, node_uid=self.uid)

        async def say(value: Any) -> Any:
            return value

        probes = Probes(lambda: say(HostStatus()), lambda: say(()), lambda: say(capabilities()))
        app[DOOR] = _Door(identity)  # type: ignore[misc]
        app[FENCE], app[JOURNAL], app[INSTANCES], app[HUB] = self.fence, journal, engines, _Hub(self)  # type: ignore[misc]
        app[REPORTER] = Reporter(probes, engines, self.fence, _Sequence())  # type: ignore[arg-type]
        app[ROTATION] = _Rotation()  # type: ignore[misc]
        for method, path, handler in agent_app.ROUTES:
            app.router.add_route(method, f"{API_PREFIX}{path}", handler)
        app.freeze()
        self.app = app

    @property
    def held(self) -> Claim | None:
        """What is on disk, whatever the agent remembers."""
        return Fence(self.folder, self.uid).held

    async def answer(self, call: Any) -> Any:
        """What the agent answers to a prepared call."""
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
        return client._Answer(response.status, bytes(response.body or b""))


@dataclass
class Master:
    """A master that is not acting now: its rows, where it is installed, and which nodes it cannot reach."""

    name: str
    place: str
    rows: Rows
    offset: timedelta
    cut: set[str] = field(default_factory=set)


class Bench:
    """The whole. Made inside `playing`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self.loop = loop
        self.machines = {
            node_id: Machine(folder / node_id, node_id, f"00000000-0000-4000-8000-00000000000{number}")
            for number, node_id in enumerate(NODES)
        }
        self.masters: dict[str, Master] = {}
        self.acting: str | None = None
        self.effects: list[Effect] = []
        self.sent_fenced = 0
        self.now = datetime.fromisoformat("2030-01-01T00:00:00+00:00")

    # -- masters -------------------------------------------------------------------------------------------------------

    def first(self) -> str:
        """A master with every node approved, that commanded none so far."""
        self._clear()
        place = "place-0"
        with mock.patch.object(fencing, "installation", return_value=place):
            MasterIdentity.objects.create(
                instance_id=fencing.new_instance_id(),
                bound_to=place,
                client_key_sealed=b"",
                enroll_key_sealed=b"",
            )
        for machine in self.machines.values():
            Node.objects.create(id=machine.node_id, uid=machine.uid, address="192.0.2.1", lifecycle="approved")
        self.masters["m0"] = Master("m0", place, {}, timedelta(0))
        self.acting = "m0"
        return "m0"

    def act(self, name: str) -> None:
        """From here on `name` acts: its rows are the database."""
        self.now += timedelta(seconds=30)
        if self.acting == name:
            return
        if self.acting is not None:
            self.masters[self.acting].rows = self.dump()
        self.load(self.masters[name].rows)
        self.acting = name

    def dump(self) -> Rows:
        """The rows of who acts."""
        return {table: list(table.objects.order_by("pk").values()) for table in TABLES}

    def load(self, rows: Rows) -> None:
        """Put `rows` in the place of what is there."""
        self._clear()
        for table in TABLES:
            table.objects.bulk_create([table(**values) for values in deepcopy(rows[table])])

    def restore(self, rows: Rows, *, over: str | None = None) -> str:
        """A master from a backup: beside the living ones, or in the place of `over`, which is gone then."""
        self.act(self.acting or "m0")
        number = len(self.masters)
        name = over or f"m{number}"
        if over is not None:
            self.masters[over].rows = rows
            if self.acting == over:
                self.acting = None
                self._clear()
        else:
            # Clocks that differ by hours, and a machine of its own.
            offset = timedelta(minutes=(-540, 420, -75)[number % 3])
            self.masters[name] = Master(name, f"place-{number}", rows, offset)
        if self.acting is not None:
            self.masters[self.acting].rows = self.dump()
        self.load(rows)
        self.acting = name
        with mock.patch.object(fencing, "installation", return_value=self.masters[name].place):
            fencing.bind_instance()
        return name

    def here(self) -> Master:
        """Who acts."""
        assert self.acting is not None
        return self.masters[self.acting]

    def step(self, operation_id: str) -> None:
        """One step of an operation, if it is due."""
        self.now += timedelta(seconds=30)
        worker.run_step(operation_id)

    # -- between masters and agents ------------------------------------------------------------------------------------

    def endpoint(self, node_id: str) -> Endpoint:
        """How the acting master dials a node."""
        return Endpoint(node_id, "192.0.2.1", 9443, node_id, None)  # type: ignore[arg-type]

    async def send(self, prepared: Any) -> Any:
        """The network: what is cut gives no answer."""
        node_id = prepared.endpoint.node_id
        if node_id in self.here().cut:
            raise NodeOffline(f"Node {node_id} cannot be reached.")
        if prepared.claim is not None and fencing.is_fenced():
            raise Violation(f"{self.acting} is fenced and sent {prepared.method} {prepared.path} to {node_id}")
        return await self.deliver(prepared, self.here().name)

    async def deliver(self, prepared: Any, master: str) -> Any:
        """Hand a call to its agent and note what the agent admitted."""
        received = await self.machines[prepared.endpoint.node_id].answer(prepared)
        if prepared.method not in ("GET", "HEAD") and 200 <= received.status < 300:
            claim = Claim(epoch=int(prepared.headers[EPOCH_HEADER]), instance_id=prepared.headers[INSTANCE_HEADER])
            self.note(Effect(prepared.endpoint.node_id, master, claim, prepared.path))
        return received

    def note(self, effect: Effect) -> None:
        """Keep an effect. Raises Violation when it must not have happened."""
        for earlier in self.effects:
            if earlier.claim == effect.claim and earlier.master != effect.master:
                raise Violation(f"{earlier.master} and {effect.master} command under one claim: {effect}")
            if earlier.node_id != effect.node_id:
                continue
            if earlier.claim.epoch > effect.claim.epoch:
                raise Violation(f"an older master is obeyed after a newer one: {earlier}, then {effect}")
            if earlier.claim.epoch == effect.claim.epoch and earlier.claim != effect.claim:
                raise Violation(f"two masters of one epoch are obeyed: {earlier}, then {effect}")
        self.effects.append(effect)

    def _clear(self) -> None:
        for table in reversed(TABLES):
            rows = table.objects.all()
            rows._raw_delete(rows.db)


class _Loop:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)


def _loud(words: str) -> None:
    raise Violation(words)


async def _inline(work: Callable[[], Any]) -> Any:
    return work()


@contextmanager
def playing() -> Iterator[Callable[[], Bench]]:
    """A function that makes a bench with nothing on it; one at a time."""
    base = Path(tempfile.mkdtemp(prefix="mirbad-trust-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    loop, benches = asyncio.new_event_loop(), []

    def make() -> Bench:
        if benches:
            shutil.rmtree(base / str(len(benches)), ignore_errors=True)
        folder = base / str(len(benches) + 1)
        folder.mkdir()
        benches.append(Bench(loop, folder))
        return benches[-1]

    def bench() -> Bench:
        return benches[-1]

    def now() -> datetime:
        if not benches or bench().acting is None:
            return datetime.fromisoformat("2030-01-01T00:00:00+00:00")
        return bench().now + bench().here().offset

    with (
        mock.patch.object(worker.log, "exception", _loud),
        mock.patch.dict(os.environ, {"DJANGO_ALLOW_ASYNC_UNSAFE": "true"}),
        # One connection, inside an event loop and outside: the test's own transaction.
        mock.patch.object(connections, "_connections", SimpleNamespace(default=connections["default"])),
        mock.patch.object(pools, "loop_thread", return_value=_Loop(loop)),
        mock.patch.multiple(client, in_thread=_inline, in_writer=_inline),
        mock.patch.multiple(health, in_thread=_inline, in_writer=_inline),
        mock.patch.object(health, "in_writer", _inline),
        mock.patch.object(client, "endpoint", lambda node_id: bench().endpoint(node_id)),
        mock.patch.object(health, "endpoint", lambda node_id: bench().endpoint(node_id)),
        mock.patch.object(client, "_send", lambda prepared: bench().send(prepared)),
        mock.patch.object(reachability.conditions, "replace"),
        mock.patch.object(clock, "now", now),
    ):
        try:
            yield make
        finally:
            loop.close()
            shutil.rmtree(base, ignore_errors=True)
