"""What a launch needs and what the node has, for admission."""

import asyncio

from agent import admission
from agent.admission import HOST_LANE, Need, Room
from agent.errors import AgentError
from agent.running.yard import Yard
from agent.runtimes import RUNTIMES
from agent.runtimes.base import Source
from agent.telemetry import gpu, host
from agent.telemetry.nvml import NoDriver
from agent.wire.capability import Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import LaunchSpec


def need_of(spec: LaunchSpec, source: Source | None) -> Need:
    """The budgets of the spec, or the runtime's estimate for the host."""
    host_bytes = spec.host_memory_budget_bytes
    if host_bytes is None:
        host_bytes = RUNTIMES[spec.runtime].host_memory_bytes(spec, source)
    return Need(
        host_bytes=host_bytes,
        gpu_bytes=spec.gpu_memory_budget_bytes,
        gpu_uuids=spec.gpu_uuids,
        host_reserve=spec.host_reserve_bytes,
        gpu_reserve=spec.gpu_reserve_bytes,
        max_starts=spec.max_concurrent_starts,
    )


def lanes_of(spec: LaunchSpec) -> frozenset[str]:
    """Its GPUs, or the host's lane. The simulated engine loads nothing and takes none."""
    if spec.runtime is Runtime.SIM:
        return frozenset()
    return frozenset(spec.gpu_uuids) or frozenset({HOST_LANE})


async def check(yard: Yard, key: str, need: Need, *, force: bool) -> None:
    """AgentError ADMISSION_REFUSED when there is no room, unless `force`."""
    if force:
        return
    gpu_free: dict[str, int | None] = {}
    labels: dict[str, str] = {}
    if need.gpu_uuids:
        statuses = await gpu.gpu_statuses(yard.config.nvidia_smi)
        for number, status in enumerate(statuses):
            total, used = status.total_bytes, status.used_bytes
            gpu_free[status.uuid] = None if total is None or used is None else total - used
            labels[status.uuid] = f"GPU {number}"
    available, total = await asyncio.to_thread(lambda: (host.available_memory_bytes(), host.total_memory_bytes()))
    room = Room(host_available=available, host_total=total, gpu_free=gpu_free, gpu_labels=labels)
    admission.admit(need, room, yard.starts.others(key), admission.reserve_bytes(yard.config, total, need.host_reserve))


async def require_gpus(yard: Yard, spec: LaunchSpec) -> None:
    """AgentError GPU_MISSING when a GPU of the spec is not on this node now."""
    if not spec.gpu_uuids:
        return
    try:
        found = {card.uuid for card in (await gpu.cards(yard.config.nvidia_smi)).cards if card.problem is None}
    except NoDriver as error:
        raise AgentError(
            AgentCode.GPU_MISSING, f"The GPUs of this node cannot be read ({error}); check the NVIDIA driver."
        ) from error
    missing = [uuid for uuid in spec.gpu_uuids if uuid not in found]
    if missing:
        raise AgentError(
            AgentCode.GPU_MISSING,
            f"GPU(s) {', '.join(missing)} are not on this node; select the model's GPUs again.",
            {"gpuUuids": missing},
        )
