"""Admission: the capacity check before a start, and the slots that limit concurrent starts."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agent.common import budget
from agent.common.budget import GIB
from agent.config import AgentConfig
from agent.errors import AgentError
from agent.wire.errors import AgentCode
from agent.wire.instances import MemoryEstimate

HOST_SLOT = "host"


@dataclass(frozen=True)
class MemoryNeed:
    """Memory that a start needs: host bytes, and bytes of all its GPUs. None is unknown and left out of the sum.

    `estimate` is the master's, for memory without a budget. The node's settings for this start come with it: its
    reserves, and its limit of concurrent starts.
    """

    host_bytes: int | None
    gpu_bytes: int | None
    gpu_uuids: tuple[str, ...]
    host_reserve: int | None = None
    gpu_reserve: Mapping[str, int] = field(default_factory=dict)
    max_starts: int | None = None
    estimate: MemoryEstimate = field(default_factory=MemoryEstimate)

    def share(self) -> int | None:
        """Return the bytes on each of its GPUs: of the budget, which is split evenly, or of the estimate."""
        if self.gpu_bytes is None:
            return self.estimate.gpu_bytes if self.gpu_uuids else None
        return budget.share(self.gpu_bytes, len(self.gpu_uuids))

    def on_gpu(self, total: int | None) -> int | None:
        """Return the bytes that it takes of a GPU of `total` bytes."""
        return budget.required(self.share(), self.estimate.fraction, total)

    def on_host(self, total: int | None) -> int | None:
        """Return the bytes that it takes of a host of `total` bytes."""
        return budget.required(self.host_bytes, None if self.gpu_uuids else self.estimate.fraction, total)

    def least_on_gpu(self) -> int | None:
        """Return the bytes that suffice on each GPU, because the engine shortens its context; None otherwise."""
        return self.estimate.gpu_least_bytes if self.gpu_bytes is None else None


@dataclass(frozen=True)
class NodeCapacity:
    """Memory that is free now. None is not reported. GPUs are by UUID; `gpu_labels` and `node` are for display."""

    host_available: int | None
    host_total: int | None
    gpu_free: dict[str, int | None]
    gpu_labels: dict[str, str]
    node: str = ""
    gpu_total: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class _Part:
    """One part of the node in a check: a GPU, or the host with an empty `uuid`. None is unknown."""

    label: str
    needed: int | None
    free: int | None
    least: int | None = None
    uuid: str = ""

    @property
    def is_short(self) -> bool:
        if self.needed is None or self.free is None or self.needed <= self.free:
            return False
        return self.least is None or self.least > self.free

    def to_json(self) -> dict[str, int | str | None]:
        free = None if self.free is None else max(0, self.free)
        return {"name": self.label, "gpuUuid": self.uuid or None, "neededBytes": self.needed, "freeBytes": free}


def reserve_bytes(config: AgentConfig, total: int | None, setting: int | None = None) -> int:
    """Return the host memory that models leave free, by the rule that the master judges a fit by."""
    return budget.host_reserve(total, setting, owner_reserve(config))


def owner_reserve(config: AgentConfig) -> int | None:
    """Return the reserve in ``agent.json``, None when it is not set."""
    return int(config.memory_reserve_gib * GIB) if "memory_reserve_gib" in config.model_fields_set else None


def admit(need: MemoryNeed, capacity: NodeCapacity, others: Iterable[MemoryNeed], reserve: int) -> None:
    """Raise AgentError ADMISSION_REFUSED with the memory that is short and its numbers. Unknown values refuse
    nothing.
    """
    parts = tuple(_parts(need, capacity, list(others), reserve))
    short = next((part for part in parts if part.is_short), None)
    if short is not None:
        raise _refusal(capacity, short, parts)


def _parts(need: MemoryNeed, capacity: NodeCapacity, starting: list[MemoryNeed], reserve: int) -> Iterator[_Part]:
    total = capacity.host_total
    taken = sum(other.on_host(total) or 0 for other in starting)
    yield _Part("host memory", need.on_host(total), budget.usable(capacity.host_available, reserve, taken))
    for uuid in need.gpu_uuids:
        total = capacity.gpu_total.get(uuid)
        taken = sum(other.on_gpu(total) or 0 for other in starting if uuid in other.gpu_uuids)
        yield _Part(
            label=capacity.gpu_labels.get(uuid, uuid),
            needed=need.on_gpu(total),
            free=budget.usable(capacity.gpu_free.get(uuid), need.gpu_reserve.get(uuid), taken),
            least=need.least_on_gpu(),
            uuid=uuid,
        )


def _refusal(capacity: NodeCapacity, short: _Part, parts: Iterable[_Part]) -> AgentError:
    where = f" on node {capacity.node}" if capacity.node else ""
    label = f"memory of {short.label}" if short.uuid else short.label
    needed, free = short.needed or 0, max(0, short.free or 0)
    detail = (
        f"Not enough {label}{where}: the model needs about {needed / GIB:.1f} GiB and {free / GIB:.1f} GiB is "
        "available. Stop another model, reduce the memory budget, or start anyway."
    )
    fields = {
        "part": "gpu" if short.uuid else "host",
        "neededBytes": needed,
        "freeBytes": free,
        "gpuUuid": short.uuid or None,
        "parts": [part.to_json() for part in parts],
    }
    return AgentError(AgentCode.ADMISSION_REFUSED, detail, fields)


class StartSlots:
    """Slots for starts: one start at a time on each GPU, one for models without a GPU, and a limit for the node.

    A start holds its slots until it is ready or has failed: only then is its memory visible in the free memory.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._held: dict[str, tuple[frozenset[str], MemoryNeed]] = {}
        self._released = asyncio.Condition()

    def try_take(self, key: str, slots: frozenset[str], need: MemoryNeed, *, force: bool = False) -> bool:
        """Take the slots if they are free. `force` takes them anyway (for an engine that was found starting)."""
        if key in self._held:
            return True
        busy = any(slots & held for held, _ in self._held.values())
        limits = [limit for limit in (self.limit, need.max_starts) if limit is not None]
        full = bool(limits) and len(self._held) >= min(limits)
        if (busy or full) and not force:
            return False
        self._held[key] = (slots, need)
        return True

    def others(self, key: str) -> list[MemoryNeed]:
        """Return the needs of the other starts in progress."""
        return [need for holder, (_, need) in self._held.items() if holder != key]

    async def take(self, key: str, slots: frozenset[str], need: MemoryNeed) -> None:
        """Wait for the slots and take them."""
        async with self._released:
            await self._released.wait_for(lambda: self.try_take(key, slots, need))

    async def release(self, key: str) -> None:
        """Free the slots of `key` and wake the next start. Does nothing when `key` holds none."""
        if self._held.pop(key, None) is not None:
            async with self._released:
                self._released.notify_all()

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[None]:
        """Release the slots of `key` on exit."""
        try:
            yield
        finally:
            await asyncio.shield(self.release(key))
