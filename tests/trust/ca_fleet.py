"""A fleet for CA rotations: agents with the real server and real mutual TLS on addresses of 127.0.0.0/8, in one loop.

Nodes join by the real join; what a worker, a watcher and the passing of time would do is done by `Fleet.drive`.
"""

import itertools
import random
import shutil
import socket
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agent.common import keys
from agent.config import AgentConfig
from agent.identity import Identity
from agent.server.status import Probes
from agent.wire.capability import Capabilities, Feature, MemoryModel
from agent.wire.instances import InstanceView
from agent.wire.status import GpuStatus, HostStatus
from jobs import ledger, worker
from jobs.kinds import ca_rotation as kind
from jobs.loops import ca_upkeep as loop
from mirbad.kernel import clock
from mirbad.kernel.actor import admin
from nodes import registry
from nodes.enrollment import join, tokens
from nodes.errors import NodeOffline
from nodes.link import client, health, pools
from nodes.models import CaRotation, Node
from nodes.pki import members, rotation
from tests.nodes.parts import request_for
from tests.standins.engines import RememberedEngines
from tests.standins.served import AgentLoop, ServedAgent, install

T = TypeVar("T")

OPERATOR = admin("a session")
_PEERS = itertools.count(1)


class FleetAgent(ServedAgent):
    """One of many agents on addresses of this machine, with remembered engines."""

    def __init__(self, loop: AgentLoop, folder: Path, node_id: str, address: str, port: int) -> None:
        self.address, self.port = address, port
        config = AgentConfig(state_dir=folder, models_root=folder, bind=address, port=port, drain_seconds=0.1)
        super().__init__(node_id, config, loop=loop, probes=self.probes(), engines=self.make_engines)

    def probes(self) -> Probes:
        return _PROBES

    def make_engines(self, _: Any, __: Any, changed: Callable[[InstanceView], None]) -> Any:
        return RememberedEngines(changed)

    def enroll(self, *, rekey: bool = False) -> str:
        """Join, or get a new key; the fingerprint of the key."""
        made = tokens.create(self.node_id, actor=OPERATOR, purpose="rekey" if rekey else "join")
        key = keys.new_key()
        also = {"node_uid": str(self.node.uid)} if rekey else {}
        request = request_for(made.token, self.node_id, key, **also)
        answer = join.enroll(request, f"192.0.{next(_PEERS) % 250}.1", rekey=rekey)
        # Only the master's own machine may be dialled at such an address.
        Node.objects.filter(pk=self.node_id).update(address=self.address, port=self.port, is_bootstrap=True)
        install(self.store, self.node_id, answer, keys.key_to_pem(key))
        return keys.spki_of(key.public_key())

    @property
    def node(self) -> Node:
        return Node.objects.get(pk=self.node_id)

    @property
    def identity(self) -> Identity:
        return self.store.load()

    def keep_state(self, folder: Path) -> None:
        """A copy of the state folder, as a backup of the machine makes one."""
        shutil.copytree(self.config.state_dir, folder, symlinks=True)

    def restore_state(self, folder: Path) -> None:
        """Put such a copy back, while the agent is down."""
        shutil.rmtree(self.config.state_dir / "identity")
        shutil.copytree(folder / "identity", self.config.state_dir / "identity", symlinks=True)


class Fleet:
    """A master's nodes. `forward` moves the master's clock."""

    def __init__(self, folder: Path, forward: Callable[[float], None]) -> None:
        self.folder, self.forward = folder, forward
        self.loop = AgentLoop()
        self.nodes: dict[str, FleetAgent] = {}
        self._net, self._port = random.SystemRandom().randrange(10, 250), 0

    def add(self, node_id: str, *, approve: bool = True) -> FleetAgent:
        """A new machine that joins and serves."""
        number = len(self.nodes) + 1
        address = f"127.{self._net}.{number // 200}.{number % 200 + 1}"
        agent = FleetAgent(self.loop, self._folder(node_id), node_id, address, self._port or _free_port(address))
        self._port = agent.port
        spki = agent.enroll()
        self.nodes[node_id] = agent
        agent.begin()
        if approve:
            registry.approve(node_id, spki, OPERATOR)
            health.connect(node_id)
        return agent

    def _folder(self, node_id: str) -> Path:
        path = self.folder / node_id
        path.mkdir(parents=True)
        return path

    def down(self, *node_ids: str) -> None:
        for node_id in node_ids:
            self.nodes[node_id].end()
            Node.objects.filter(pk=node_id).update(reachability="offline", reachability_reason="It is switched off.")

    def up(self, *node_ids: str) -> None:
        for node_id in node_ids:
            self.nodes[node_id].begin()
        self.connect(node_ids)

    def connect(self, node_ids: Iterable[str] | None = None) -> None:
        """Connect to nodes that are not Online, as the watcher does."""
        waiting = Node.objects.filter(lifecycle="approved").exclude(reachability="online")
        for node_id in node_ids or list(waiting.values_list("pk", flat=True)):
            if self.nodes[node_id].up and self.nodes[node_id].node.lifecycle == "approved":
                try:
                    health.connect(node_id)
                except NodeOffline:
                    continue

    def drive(self, until: Callable[[], Any], rounds: int = 60, *, reconnect: bool = True) -> None:
        """Let workers and time go on until `until` is true."""
        for _ in range(rounds):
            if until():
                return
            for operation_id in ledger.due_ids():
                # One step at a time, so that no stage is passed unseen.
                while worker.run_step(operation_id) == 0.0:
                    if until():
                        return
                if until():
                    return
            loop.tick()
            if reconnect:
                self.connect()
            self.forward(3.0)
        rotation = CaRotation.objects.first()
        told = list(rotation.nodes.values_list("node_id", "done_stage", "problem")) if rotation else []
        raise AssertionError(f"not there after {rounds} rounds: {rotation} {told}")

    def locked_out(self) -> list[str]:
        """Running nodes that do not answer their master over a fresh connection."""
        lost = []
        for node_id, agent in self.nodes.items():
            if agent.up and agent.node.lifecycle == "approved":
                try:
                    health.probe(node_id)
                except NodeOffline:
                    lost.append(node_id)
        return lost

    def close(self) -> None:
        for agent in self.nodes.values():
            agent.end()
        pools.loop_thread().run(client.close())
        self.loop.end()
        pools.database_threads().release()


def stage() -> str:
    """Return the stage of the newest rotation."""
    rotation = CaRotation.objects.order_by("-started_at").first()
    return rotation.stage if rotation is not None else ""


class Crash(BaseException):
    """The process dies here."""


class Crashes:
    """Dies once at each boundary that a rotation comes to: before and after every write and every round of calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.met: list[str] = []
        for module, name in (
            (ledger, "write"),
            (rotation, "move"),
            (members, "note"),
            (members, "note_given_ca"),
            (members, "settle"),
            (kind, "_together"),
        ):
            monkeypatch.setattr(module, name, self._around(name, getattr(module, name)))

    def _around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **also: Any) -> Any:
            self._at(f"{stage()} before {name}")
            result = real(*arguments, **also)
            self._at(f"{stage()} after {name}")
            return result

        return call

    def _at(self, boundary: str) -> None:
        if boundary not in self.met:
            self.met.append(boundary)
            raise Crash(boundary)


def survive(fleet: Fleet, until: Callable[[], Any], crashes: Crashes, rounds: int = 60) -> None:
    """Drive through every crash as a supervisor does: the lease of the dead worker runs out, another one begins."""
    for _ in range(120):
        try:
            fleet.drive(until, rounds)
        except Crash:
            fleet.forward(31)
            continue
        return
    raise AssertionError(f"still crashing: {crashes.met[-5:]}")


def insist(ask: Callable[[], Any]) -> Any:
    """Ask again after each crash, as a person does who got no answer."""
    while True:
        try:
            return ask()
        except Crash:
            continue


def moving_clock(real: Callable[[], Any] = clock.now) -> tuple[Callable[[], Any], Callable[[float], None]]:
    """A clock for the master, and what moves it forward."""
    ahead = [timedelta(0)]

    def forward(seconds: float) -> None:
        ahead[0] += timedelta(seconds=seconds)

    return (lambda: real() + ahead[0]), forward


async def _host() -> HostStatus:
    return HostStatus()


async def _gpus() -> tuple[GpuStatus, ...]:
    return ()


async def _capabilities() -> Capabilities:
    return Capabilities(
        os="Debian 12",
        arch="x86_64",
        hostname="simulated",
        cpu_count=8,
        memory_bytes=2**35,
        memory_model=MemoryModel.UNIFIED,
        memory_model_reason="no GPU",
        gpus=(),
        runtimes=(),
        features=(Feature.PKI_ROTATE,),
        folders=(),
        models_root="/srv/models",
        allow_tag_pulls=False,
    )


_PROBES = Probes(host=_host, gpus=_gpus, capabilities=_capabilities)


def _free_port(address: str) -> int:
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        return port
