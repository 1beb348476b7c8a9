"""A node's instances with a throwaway state folder; whatever a test leaves running is ended after it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agent.config import AgentConfig
from agent.deliveries.base import LAUNCH_VARIABLE
from agent.running import Instances
from agent.running.yard import Pace
from agent.telemetry import gpu
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import LIVE_STATES, InstanceState, InstanceView, LaunchSpec
from tests.bench.gpus import Machine

QUICK = Pace(starting=0.05, watching=0.1, memory=0.2, failures=3)


def spec(**changes: object) -> LaunchSpec:
    values: dict[str, object] = {
        "model_id": "m1",
        "generation": 1,
        "config_hash": "c",
        "runtime": Runtime.SIM,
        "delivery": Delivery.PROCESS,
        "served_names": ("org/m1",),
        "args": ("--tokens-per-second", "0"),
    }
    return LaunchSpec.model_validate(values | changes)


class Node:
    """Instances of one state folder, and what they told."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.told: list[InstanceView] = []
        self._lives: list[Instances] = []
        self.instances = self._new()

    def _new(self) -> Instances:
        instances = Instances(self.config, "f" * 16, self.told.append, node="n1")
        instances._yard.pace = QUICK
        self._lives.append(instances)
        return instances

    async def restart(self) -> Instances:
        """The agent ends and starts again; engines stay."""
        await self.instances.close()
        self.instances = self._new()
        await self.instances.recover()
        return self.instances

    async def until(self, instance_id: str, *states: InstanceState, seconds: float = 20.0) -> InstanceView:
        deadline = asyncio.get_running_loop().time() + seconds
        while (view := self.instances.view(instance_id)).state not in states:
            assert asyncio.get_running_loop().time() < deadline, f"still {view.state}: {view}"
            await asyncio.sleep(0.02)
        if view.state not in LIVE_STATES:
            await self.instances._keepers[instance_id].wait_final()
        return view

    def processes(self) -> list[psutil.Process]:
        """Living engines of this node, by the folder that they write to."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = LAUNCH_VARIABLE in process.environ() and process.cwd() == str(
                    self.config.state_dir / "instances"
                )
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    async def end(self) -> None:
        await self.instances.close()
        for process in self.processes():
            os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    root = tmp_path / "models"
    root.mkdir()
    return AgentConfig(state_dir=tmp_path / "state", models_root=root, nvidia_smi="no-nvidia-smi-here")


@pytest.fixture
async def make_node() -> AsyncIterator[Callable[[AgentConfig], Node]]:
    nodes: list[Node] = []

    def make(config: AgentConfig) -> Node:
        nodes.append(Node(config))
        return nodes[-1]

    yield make
    for node in nodes:
        await node.end()


@pytest.fixture
async def node(config: AgentConfig, make_node: Callable[[AgentConfig], Node]) -> Node:
    made = make_node(config)
    await made.instances.recover()
    return made


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_gpu_is_remembered() -> Iterator[None]:
    gpu.forget()
    yield
    gpu.forget()
