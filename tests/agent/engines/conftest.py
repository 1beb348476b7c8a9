"""A node's instances with a throwaway state folder; engines that a test leaves running are killed after it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agent.config import AgentConfig
from agent.deliveries.base import LAUNCH_VARIABLE
from agent.running import EngineInstances
from agent.running.context import PollIntervals
from agent.telemetry import gpu
from agent.telemetry.nvml import Card, Cards
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import LIVE_STATES, InstanceState, InstanceView, LaunchSpec
from tests.bench import images
from tests.bench.docker import BenchImage, DockerBench
from tests.bench.gpus import Machine

QUICK = PollIntervals(starting_seconds=0.05, watching_seconds=0.1, memory_seconds=0.2, unhealthy_failures=3)


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


def contained(made_of: BenchImage, **changes: object) -> LaunchSpec:
    values = {"delivery": Delivery.CONTAINER, "image": made_of.repository, "image_digest": made_of.digest}
    return spec(**values | changes)


class Node:
    """The instances of one state folder, and every view that they reported."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.reported: list[InstanceView] = []
        self._changed = asyncio.Event()
        self.instances = self.new_agent()

    def new_agent(self) -> EngineInstances:
        """Another life of the agent on the same state folder."""
        instances = EngineInstances(self.config, "f" * 16, self._report, node="n1")
        instances._context.intervals = QUICK
        return instances

    def _report(self, view: InstanceView) -> None:
        self.reported.append(view)
        self._changed.set()

    async def restart(self) -> EngineInstances:
        """The agent ends and starts again; engines stay."""
        await self.instances.close()
        self.instances = self.new_agent()
        await self.instances.recover()
        return self.instances

    async def until_reported(self, is_so: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait until `is_so`, which is checked after each report of an instance."""
        try:
            async with asyncio.timeout(seconds):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"no such report in {seconds:g} s: {self.instances.views()}") from None

    async def until(self, instance_id: str, *states: InstanceState, seconds: float = 20.0) -> InstanceView:
        """Wait until the instance is in one of `states`, and if it has ended, until nothing works on it."""
        await self.until_reported(lambda: self.instances.view(instance_id).state in states, seconds)
        view = self.instances.view(instance_id)
        if view.state not in LIVE_STATES:
            await self.instances._supervisors[instance_id].wait_final()
        return view

    async def until_progress(self, instance_id: str, text: str) -> InstanceView:
        """Wait until the progress of the instance contains `text`."""

        def is_so() -> bool:
            progress = self.instances.view(instance_id).progress
            return progress is not None and text in progress.text

        await self.until_reported(is_so)
        return self.instances.view(instance_id)

    def processes(self) -> list[psutil.Process]:
        """Living engines of this node, by the folder that they write to."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = LAUNCH_VARIABLE in process.environ() and process.cwd().startswith(str(self.config.state_dir))
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    async def end(self) -> None:
        await self.instances.close()
        for process in self.processes():
            os.kill(process.pid, signal.SIGKILL)


async def kill(pid: int | None) -> None:
    """Kill a child of this process and wait until it is dead, without reaping it."""
    assert pid
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)


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
def sim(docker_bench: DockerBench) -> BenchImage:
    return docker_bench.image(images.SIM)


@pytest.fixture
def docker_config(config: AgentConfig, docker_bench: DockerBench, sim: BenchImage) -> AgentConfig:
    return config.model_copy(update={"docker_host": docker_bench.host, "approved_images": (sim.reference,)})


@pytest.fixture
async def dock(
    docker_config: AgentConfig, docker_bench: DockerBench, make_node: Callable[[AgentConfig], Node]
) -> AsyncIterator[Node]:
    node = make_node(docker_config)
    await node.instances.recover()
    yield node
    for container in docker_bench.client.containers.list(all=True):
        container.remove(force=True)


@pytest.fixture
def restarted_engine(docker_bench: DockerBench) -> Iterator[DockerBench]:
    """The engine, which a test stops: it runs again afterwards."""
    yield docker_bench
    docker_bench.stop_engine()
    docker_bench.start_engine()


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that reports two GPUs."""

    async def cards(*_: object) -> Cards:
        return Cards(tuple(Card(uuid=f"GPU-{number}", index=number, name="Some GPU") for number in range(2)))

    monkeypatch.setattr("agent.telemetry.gpu.cards", cards)


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
