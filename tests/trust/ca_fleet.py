"""A fleet for CA rotations: agents with the real server and real mutual TLS on addresses of 127.0.0.0/8, in one loop.

Nodes join by the real join; what a worker, a watcher and the passing of time would do is done by `Fleet.drive`.
"""

import asyncio
import itertools
import random
import shutil
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cryptography import x509

from agent.config import AgentConfig
from agent.identity import Identity, IdentityStore, fleet_id
from agent.server.serve import Server
from agent.server.status import Probes
from agent.wire.capability import Capabilities, Feature, MemoryModel
from agent.wire.enroll import EnrollAnswer
from agent.wire.status import GpuStatus, HostStatus
from jobs import ledger, worker
from jobs.kinds import ca_rotation as kind
from jobs.loops import ca_rotation as loop
from mirbad.kernel import clock
from mirbad.kernel.actor import admin
from nodes import registry
from nodes.enrollment import join, tokens
from nodes.errors import NodeOffline
from nodes.link import client, health, pools
from nodes.models import CaRotation, Node
from nodes.pki import keys, members, rotation
from tests.agent.core.engines import RememberedEngines
from tests.nodes.parts import request_for

T = TypeVar("T")

OPERATOR = admin("a session")
_PEERS = itertools.count(1)


class Agents:
    """The event loop in which agents serve."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def end(self) -> None:
        self.run(asyncio.sleep(0.1))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class SimulatedAgent:
    """One agent: the real server over a state folder of its own."""

    def __init__(self, agents: Agents, folder: Path, node_id: str, address: str, port: int) -> None:
        self.agents, self.node_id, self.address, self.port = agents, node_id, address, port
        self.config = AgentConfig(state_dir=folder, models_root=folder, bind=address, port=port, drain_seconds=0.1)
        self.store = IdentityStore(folder)
        self.server: Server | None = None

    def enroll(self, *, rekey: bool = False) -> str:
        """Join, or get a new key; the fingerprint of the key."""
        made = tokens.create(self.node_id, actor=OPERATOR, purpose="rekey" if rekey else "join")
        key = keys.new_key()
        also = {"node_uid": str(self.node.uid)} if rekey else {}
        request = request_for(made.token, self.node_id, key, **also)
        answer = join.enroll(request, f"192.0.{next(_PEERS) % 250}.1", rekey=rekey)
        # Only the master's own machine may be dialled at such an address.
        Node.objects.filter(pk=self.node_id).update(address=self.address, port=self.port, is_bootstrap=True)
        self._install(answer, keys.key_to_pem(key))
        return keys.spki_of(key.public_key())

    def _install(self, answer: EnrollAnswer, key_pem: bytes) -> None:
        self.store.install(
            Identity(
                node_id=self.node_id,
                node_uid=answer.node_uid,
                fleet=fleet_id(x509.load_pem_x509_certificate(answer.ca_bundle[0].encode())),
                master=answer.master_spki,
                key_pem=key_pem,
                chain=answer.chain,
                ca_bundle=answer.ca_bundle,
            )
        )

    @property
    def node(self) -> Node:
        return Node.objects.get(pk=self.node_id)

    @property
    def identity(self) -> Identity:
        return self.store.load()

    @property
    def up(self) -> bool:
        return self.server is not None

    def begin(self) -> None:
        async def start() -> Server:
            server = Server(self.config, self.store, _PROBES, lambda _, __, changed: RememberedEngines(changed))  # type: ignore[arg-type,return-value]
            await server.start()
            return server

        self.server = self.agents.run(start())

    def end(self) -> None:
        if self.server is not None:
            self.agents.run(self.server.stop())
            self.server = None

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
        self.agents = Agents()
        self.nodes: dict[str, SimulatedAgent] = {}
        self._net, self._port = random.SystemRandom().randrange(10, 250), 0

    def add(self, node_id: str, *, approve: bool = True) -> SimulatedAgent:
        """A new machine that joins and serves."""
        number = len(self.nodes) + 1
        address = f"127.{self._net}.{number // 200}.{number % 200 + 1}"
        agent = SimulatedAgent(self.agents, self._folder(node_id), node_id, address, self._port or _free_port(address))
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
        """What the watcher does with nodes that are not Online."""
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
        self.agents.end()
        pools.database_threads().release()


def stage() -> str:
    """Where the newest rotation is."""
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
            (members, "note_told"),
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
