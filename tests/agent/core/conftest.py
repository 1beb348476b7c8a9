"""A real agent on a real TLS port, and a master that calls it."""

import io
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent.config import AgentConfig
from agent.identity import Identity, IdentityStore
from agent.server.serve import Server
from agent.server.status import Probes
from agent.wire.base import EPOCH_HEADER, INSTANCE_HEADER, OPERATION_HEADER
from agent.wire.capability import Capabilities, MemoryModel
from agent.wire.fence import Claim
from agent.wire.status import GpuStatus, HostStatus
from tests.agent.core.fleet import Fleet, Leaf, server_name
from tests.agent.core.listener import EnrollServer, enroll_server
from tests.standins.engines import RememberedEngines

FIRST_CLAIM = Claim(epoch=1, instance_id="master-one")


def launch_spec(**changes: Any) -> dict[str, Any]:
    """A launch that any agent would read."""
    spec = {
        "modelId": "smollm2-135m",
        "generation": 1,
        "configHash": "c0ffee",
        "runtime": "sim",
        "delivery": "process",
        "servedNames": ["smollm2-135m"],
    }
    return {**spec, **changes}


def capabilities(**changes: Any) -> Capabilities:
    """Return the capabilities of a small machine without GPUs."""
    values: dict[str, Any] = {
        "os": "linux",
        "arch": "x86_64",
        "hostname": "pc-1",
        "cpu_count": 2,
        "memory_bytes": 8 << 30,
        "memory_model": MemoryModel.UNIFIED,
        "memory_model_reason": "no GPU reported",
        "gpus": (),
        "runtimes": (),
        "features": (),
        "folders": (),
        "models_root": "/srv/models",
        "allow_tag_pulls": False,
    }
    return Capabilities(**{**values, **changes})


@dataclass
class Machine:
    """The values of the probes; tests change them while the agent runs."""

    host: HostStatus | Exception = field(default_factory=lambda: HostStatus(memory_total_bytes=8 << 30))
    gpus: tuple[GpuStatus, ...] | Exception = ()
    capabilities: Capabilities | Exception = field(default_factory=capabilities)

    def probes(self) -> Probes:
        async def say(value: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return Probes(lambda: say(self.host), lambda: say(self.gpus), lambda: say(self.capabilities))


@dataclass(frozen=True)
class Reply:
    """One answer."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


class Master:
    """Calls one agent, as a master with one key does."""

    def __init__(self, port: int, context: ssl.SSLContext, name: str = server_name()) -> None:
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self.base = f"https://127.0.0.1:{port}/agent/v1"
        self._tls: dict[str, Any] = {"ssl": context, "server_hostname": name}
        self._numbers = itertools.count(1)

    def new_operation(self) -> str:
        return f"op-{next(self._numbers)}"

    async def get(self, path: str) -> Reply:
        return await self.send("GET", path)

    async def send(self, method: str, path: str, data: bytes | None = None, **headers: str) -> Reply:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, self.base + path, data=data, headers=names, **self._tls) as response:
            return Reply(response.status, await response.json(), dict(response.headers))

    async def change(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        claim: Claim = FIRST_CLAIM,
        operation_id: str | None = None,
    ) -> Reply:
        """A mutating call with everything that it carries."""
        headers = {
            EPOCH_HEADER: str(claim.epoch),
            INSTANCE_HEADER: claim.instance_id,
            OPERATION_HEADER: operation_id or self.new_operation(),
        }
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        async with self.session.request(method, self.base + path, data=data, headers=headers, **self._tls) as response:
            return Reply(response.status, await response.json(), dict(response.headers))

    async def claim(self, claim: Claim = FIRST_CLAIM) -> Reply:
        return await self.change("PUT", "/fence", claim.to_wire(), claim=claim)

    def events(self, query: str = "") -> Any:
        return self.session.get(f"{self.base}/events{query}", timeout=aiohttp.ClientTimeout(total=30), **self._tls)


@dataclass
class Agent:
    """A running agent and all that a test reaches into."""

    server: Server
    engines: RememberedEngines
    machine: Machine
    store: IdentityStore
    config: AgentConfig
    fleet: Fleet
    folder: Path
    new_master: Callable[[Leaf | None], Master]


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    # port 0 cannot be written into agent.json, but a test that takes any free port collides with nobody
    made = AgentConfig(state_dir=tmp_path / "state", models_root=tmp_path / "models", bind="127.0.0.1")
    return made.model_copy(update={"port": 0})


@pytest.fixture
def identity(fleet: Fleet) -> Identity:
    return fleet.identity()


@pytest.fixture
async def start_agent(
    fleet: Fleet, config: AgentConfig, identity: Identity, tmp_path: Path
) -> AsyncIterator[Callable[[], Awaitable[Agent]]]:
    """Starts an agent on the state folder of this test, as often as asked (one after another)."""
    store = IdentityStore(config.state_dir)
    store.install(identity)
    running: list[Server] = []
    masters: list[Master] = []

    async def start() -> Agent:
        for server in running:
            await server.stop()
        running.clear()
        machine = Machine()
        made: list[RememberedEngines] = []

        def make(_: AgentConfig, __: str, changed: Any) -> Any:
            made.append(RememberedEngines(changed))
            return made[-1]

        server = Server(config, store, machine.probes(), make)
        await server.start()
        running.append(server)

        def new_master(shown: Leaf | None) -> Master:
            master = Master(server.port, fleet.client_context(tmp_path, shown))
            masters.append(master)
            return master

        return Agent(server, made[0], machine, store, config, fleet, tmp_path, new_master)

    yield start
    for master in masters:
        await master.session.close()
    for server in running:
        await server.stop()


@pytest.fixture
async def agent(start_agent: Callable[[], Awaitable[Agent]]) -> Agent:
    return await start_agent()


@pytest.fixture
async def stranger(agent: Agent) -> Master:
    """The pinned master, before its first claim."""
    return agent.new_master(agent.fleet.master)


@pytest.fixture
async def master(stranger: Master) -> Master:
    """The pinned master of an approved node."""
    reply = await stranger.claim()
    assert reply.status == 200
    return stranger


@pytest.fixture
def listener(fleet: Fleet, tmp_path: Path) -> Iterator[EnrollServer]:
    with enroll_server(fleet, tmp_path) as server:
        yield server


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"
