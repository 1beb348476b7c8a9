"""Memory that a launch needs and the node has, for admission."""

import asyncio

from agent import admission
from agent.admission import HOST_SLOT, MemoryNeed, NodeCapacity
from agent.common import budget
from agent.common.gpu_label import gpu_label
from agent.errors import AgentError
from agent.running.context import EngineContext
from agent.runtimes import RUNTIMES
from agent.runtimes.base import WeightsSource
from agent.telemetry import gpu, host
from agent.telemetry.cards import Card, NoDriver, SlowDriver
from agent.wire.capability import MemoryModel, Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import LaunchSpec, MemoryEstimate


def need_for(spec: LaunchSpec, source: WeightsSource | None, memory_model: MemoryModel) -> MemoryNeed:
    """Return the budgets of the spec, else the master's estimate, else for the host the runtime's.

    Where GPUs share the host's memory there is one budget, and all of it is taken from the host.
    """
    host_bytes, gpu_bytes = spec.host_memory_budget_bytes, spec.gpu_memory_budget_bytes
    estimate = spec.estimate or MemoryEstimate()
    if memory_model is MemoryModel.UNIFIED and gpu_bytes is not None:
        # The estimate counts the weights, which are in the budget already.
        host_bytes, gpu_bytes = budget.on_shared_memory(host_bytes, gpu_bytes), None
        estimate = MemoryEstimate(fraction=estimate.fraction)
    elif host_bytes is None:
        host_bytes = estimate.host_bytes
        if host_bytes is None:
            host_bytes = RUNTIMES[spec.runtime].host_memory_bytes(spec, source)
    return MemoryNeed(
        host_bytes=host_bytes,
        gpu_bytes=gpu_bytes,
        gpu_uuids=spec.gpu_uuids,
        host_reserve=spec.host_reserve_bytes,
        gpu_reserve=spec.gpu_reserve_bytes,
        max_starts=spec.max_concurrent_starts,
        estimate=estimate,
    )


def card_fraction(spec: LaunchSpec, context: EngineContext, host_total: int | None) -> float | None:
    """Return the budget as a fraction of each card's memory, rounded down to thousandths; None if unknown.

    Cards that share the host's memory count with all of it.
    """
    cards = context.cards.cards if context.cards else ()
    each, total = spec.gpu_memory_budget_bytes, host_total if cards else None
    if context.memory_model is MemoryModel.DISCRETE:
        sizes = {card.uuid: card.total_bytes for card in cards}
        known = [size for uuid in spec.gpu_uuids if (size := sizes.get(uuid))]
        total = max(known) if known and len(known) == len(spec.gpu_uuids) else None
        each = budget.share(each, len(spec.gpu_uuids))
    if not each or not total:
        return None
    return min(int(each / total * 1000) / 1000, 1.0) or None


def slots_for(spec: LaunchSpec) -> frozenset[str]:
    """Return its GPUs, or the host's slot. The simulated engine loads nothing and needs no slot."""
    if spec.runtime is Runtime.SIM:
        return frozenset()
    return frozenset(spec.gpu_uuids) or frozenset({HOST_SLOT})


async def check(context: EngineContext, key: str, need: MemoryNeed, *, force: bool) -> None:
    """Raise AgentError ADMISSION_REFUSED when memory is short, unless `force`."""
    if force:
        return
    gpu_free: dict[str, int | None] = {}
    gpu_total: dict[str, int | None] = {}
    labels: dict[str, str] = {}
    if need.gpu_uuids:
        for card in await _cards(context):
            total, used = card.total_bytes, card.used_bytes
            gpu_free[card.uuid] = None if total is None or used is None else total - used
            gpu_total[card.uuid] = total
            labels[card.uuid] = gpu_label(card.index, card.uuid)
    available, total = await asyncio.to_thread(lambda: (host.available_memory_bytes(), host.total_memory_bytes()))
    capacity = NodeCapacity(available, total, gpu_free, labels, context.node, gpu_total)
    admission.admit(
        need,
        capacity,
        context.start_slots.others(key),
        admission.reserve_bytes(context.config, total, need.host_reserve),
    )


async def _cards(context: EngineContext) -> tuple[Card, ...]:
    try:
        return (await gpu.recent(context.config.nvidia_smi)).cards
    except NoDriver:
        return ()


async def require_gpus(context: EngineContext, spec: LaunchSpec) -> None:
    """Raise AgentError GPU_MISSING when a GPU of the spec is not on this node now, or does not work.

    START_CONFLICT while the driver has not answered: the start is tried again. An engine on shared memory gets every
    GPU, so each of them must work.
    """
    shared = spec.runtime is Runtime.VLLM and context.memory_model is MemoryModel.UNIFIED
    if not spec.gpu_uuids and not (shared and context.cards is not None and context.cards.cards):
        return
    try:
        found = {card.uuid: card for card in (await gpu.recent(context.config.nvidia_smi)).cards}
    except SlowDriver as error:
        text = f"The start waits for the GPU driver of this node: {error}"
        raise AgentError(AgentCode.START_CONFLICT, text) from error
    except NoDriver as error:
        raise AgentError(
            AgentCode.GPU_MISSING, f"The GPUs of this node cannot be read ({error}). Check the NVIDIA driver."
        ) from error
    missing = [uuid for uuid in spec.gpu_uuids if uuid not in found]
    if missing:
        raise AgentError(
            AgentCode.GPU_MISSING,
            f"Not on this node: GPU {', '.join(missing)}. Select the model's GPUs again.",
            {"gpuUuids": missing},
        )
    wanted = [found[uuid] for uuid in spec.gpu_uuids] or [card for card in found.values() if card.code]
    broken = [card for card in wanted if card.problem is not None]
    if broken:
        text = " ".join(str(card.problem) for card in broken)
        raise AgentError(AgentCode.GPU_MISSING, text, {"gpuUuids": [card.uuid for card in broken]})
