"""From a fake card to the status of an agent that runs a real engine: whose memory it is."""

import asyncio
from pathlib import Path

import pytest

from agent.fence import Fence
from agent.server.seq import Sequence
from agent.server.status import Probes, Reporter
from agent.telemetry import gpu
from agent.wire.capability import Capabilities
from agent.wire.instances import InstanceState
from agent.wire.status import GpuStatus, HostStatus
from tests.agent.engines.conftest import Node, spec
from tests.bench.gpus import GIB, Machine, card


async def test_the_memory_of_a_running_engine_is_told_with_its_model(
    node: Node, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await node.instances.launch("i1", "op-1", spec(model_id="tiny"))
    ready = await node.until("i1", InstanceState.READY, seconds=60)
    machine.library().cards(card(0, processes=f"{ready.pid}:{5 * GIB},1:{GIB}"), card(1, processes="!3", graphics="!3"))
    monkeypatch.setattr(gpu, "read_cards", lambda nvidia_smi: machine.cards())

    async def host() -> HostStatus:
        return HostStatus()

    async def capabilities() -> Capabilities:
        raise AssertionError("nobody asked")

    async def gpus() -> tuple[GpuStatus, ...]:
        return await gpu.gpu_statuses("no-such-smi")

    reporter = Reporter(
        Probes(host, gpus, capabilities), node.instances, Fence(tmp_path, "uid"), Sequence(tmp_path, "boot")
    )
    status = (await reporter.status())(1)
    first, second = status.gpus
    assert [(use.instance_id, use.model_id, use.used_bytes, use.measured) for use in first.models] == [
        ("i1", "tiny", 5 * GIB, True)
    ]
    assert {(one.pid, one.instance_id) for one in first.processes or ()} == {(ready.pid, "i1"), (1, "")}
    assert (second.models, second.processes, second.process_count) == ((), None, None)
    await node.instances.stop("i1", 0.1)
    await asyncio.wait_for(node.until("i1", InstanceState.EXITED), 20)
