"""Several masters and several agents in one process, without a socket: the real code of both, played step by step.

A master is its rows (identity, nodes, operations); whoever acts has their rows in the database. So a backup is a copy
of rows, and restoring one is loading it. The agents are those of `machines`.
"""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from django.db import connections

from agent.wire.base import EPOCH_HEADER, INSTANCE_HEADER
from agent.wire.fence import Claim
from jobs import worker
from jobs.models import Operation, OperationEvent
from mirbad.kernel import clock
from nodes import fencing, reachability
from nodes.errors import NodeOffline
from nodes.link import client, health, pools
from nodes.link.transport import Endpoint
from nodes.models import MasterIdentity, Node
from tests.trust.machines import Machine

TABLES = (MasterIdentity, Node, Operation, OperationEvent)
NODES = ("a", "b", "c")
_REFUSALS = ("stale_master", "competing_master")

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
        self.heard: dict[tuple[str, Claim], set[str]] = {}
        self.inherited: set[tuple[str, Claim]] = set()
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
        for number, machine in enumerate(self.machines.values(), 1):
            Node.objects.create(id=machine.node_id, uid=machine.uid, address=f"192.0.2.{number}", lifecycle="approved")
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
            # What it heard since the backup is gone with its rows.
            self.heard = {key: nodes for key, nodes in self.heard.items() if key[0] != over}
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
        if fencing.is_fenced():
            self.inherited.add((name, fencing.present()))
        return name

    def here(self) -> Master:
        """Return the acting master."""
        assert self.acting is not None
        return self.masters[self.acting]

    def step(self, operation_id: str) -> None:
        """One step of an operation, if it is due."""
        self.now += timedelta(seconds=30)
        worker.run_step(operation_id)

    # -- between masters and agents ------------------------------------------------------------------------------------

    def endpoint(self, node_id: str) -> Endpoint:
        """Return the endpoint at which the acting master dials a node."""
        return Endpoint(node_id, "192.0.2.1", 9443, node_id, None)  # type: ignore[arg-type]

    async def send(self, prepared: Any) -> Any:
        """The network: what is cut gives no answer."""
        node_id = prepared.endpoint.node_id
        if node_id in self.here().cut:
            raise NodeOffline(f"Node {node_id} cannot be reached.")
        if prepared.claim is not None and fencing.is_fenced():
            raise Violation(f"{self.acting} is fenced and sent {prepared.method} {prepared.path} to {node_id}")
        received = await self.deliver(prepared, self.here().name)
        self.hear(prepared, received)
        return received

    def hear(self, prepared: Any, received: Any) -> None:
        """Keep a refusal that the acting master is about to hear, when an honest node said it."""
        node_id = prepared.endpoint.node_id
        refused = received.status == 409 and json.loads(received.body)["code"] in _REFUSALS
        if prepared.claim is not None and refused and self.machines[node_id].lie is None:
            self.heard.setdefault((self.here().name, prepared.claim), set()).add(node_id)

    async def deliver(self, prepared: Any, master: str) -> Any:
        """Hand a call to its agent and note what the agent admitted."""
        received, honest = await self.machines[prepared.endpoint.node_id].answer(prepared)
        if honest and prepared.method not in ("GET", "HEAD") and 200 <= received.status < 300:
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
