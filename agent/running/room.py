"""What a launch needs and what the node has, for admission."""

import asyncio

from agent import admission
from agent.admission import HOST_LANE, Need, Room
from agent.errors import AgentError
from agent.running.yard import Yard
from agent.runtimes import RUNTIMES
from agent.runtimes.base import Source
from agent.telemetry import gpu, host
from agent.telemetry.nvml import Card, NoDriver
from agent.wire import budget
from agent.wire.capability import MemoryModel, Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import LaunchSpec


def need_of(spec: LaunchSpec, source: Source | None, memory_model: MemoryModel) -> Need:
    """The budgets of the spec, or the runtime's estimate for the host.

    Where GPUs share the host's memory there is one budget, and all of it is taken from the host.
    """
    host_bytes, gpu_bytes = spec.host_memory_budget_bytes, spec.gpu_memory_budget_bytes
    if memory_model is MemoryModel.UNIFIED and gpu_bytes is not None:
        # The estimate counts the weights, which are in the budget already.
        host_bytes, gpu_bytes = budget.on_shared_memory(host_bytes, gpu_bytes), None
    elif host_bytes is None:
        host_bytes = RUNTIMES[spec.runtime].host_memory_bytes(spec, source)
    return Need(
        host_bytes=host_bytes,
        gpu_bytes=gpu_bytes,
        gpu_uuids=spec.gpu_uuids,
        host_reserve=spec.host_reserve_bytes,
        gpu_reserve=spec.gpu_reserve_bytes,
        max_starts=spec.max_concurrent_starts,
    )


def part_of_card(spec: LaunchSpec, yard: Yard, host_total: int | None) -> float | None:
    """What part of each card's memory the budget is, rounded down to thousandths; None without a budget or a size.

    Cards that share the host's memory have all of it.
    """
    cards = yard.cards.cards if yard.cards else ()
    each, total = spec.gpu_memory_budget_bytes, host_total if cards else None
    if yard.memory_model is MemoryModel.DISCRETE:
        sizes = {card.uuid: card.total_bytes for card in cards}
        known = [size for uuid in spec.gpu_uuids if (size := sizes.get(uuid))]
        total = max(known) if known and len(known) == len(spec.gpu_uuids) else None
        each = budget.share(each, len(spec.gpu_uuids))
    if not each or not total:
        return None
    return min(int(each / total * 1000) / 1000, 1.0) or None


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
        for card in await _cards(yard):
            total, used = card.total_bytes, card.used_bytes
            gpu_free[card.uuid] = None if total is None or used is None else total - used
            labels[card.uuid] = f"GPU {card.index}" if card.index is not None else card.uuid
    available, total = await asyncio.to_thread(lambda: (host.available_memory_bytes(), host.total_memory_bytes()))
    room = Room(host_available=available, host_total=total, gpu_free=gpu_free, gpu_labels=labels, node=yard.node)
    admission.admit(need, room, yard.starts.others(key), admission.reserve_bytes(yard.config, total, need.host_reserve))


async def _cards(yard: Yard) -> tuple[Card, ...]:
    try:
        return (await gpu.cards(yard.config.nvidia_smi)).cards
    except NoDriver:
        return ()


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
