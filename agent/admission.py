"""Whether there is room for one more engine, and whose turn it is to start."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agent.config import AgentConfig
from agent.errors import AgentError
from agent.wire import budget
from agent.wire.budget import GIB
from agent.wire.errors import AgentCode

HOST_LANE = "host"


@dataclass(frozen=True)
class Need:
    """What a start will take: host bytes, and bytes per GPU. None is unknown and takes no part in the sum.

    With it come the node's settings for this start: what it leaves alone, and how many may start beside it.
    """

    host_bytes: int | None
    gpu_bytes: int | None
    gpu_uuids: tuple[str, ...]
    host_reserve: int | None = None
    gpu_reserve: Mapping[str, int] = field(default_factory=dict)
    max_starts: int | None = None

    def share(self) -> int | None:
        """Bytes on each of its GPUs; the budget is split evenly."""
        return budget.share(self.gpu_bytes, len(self.gpu_uuids))


@dataclass(frozen=True)
class Room:
    """What is free now. None is not reported. `gpu_free` is per UUID; `gpu_labels` and `node` are for a person."""

    host_available: int | None
    host_total: int | None
    gpu_free: dict[str, int | None]
    gpu_labels: dict[str, str]
    node: str = ""


def reserve_bytes(config: AgentConfig, total: int | None, setting: int | None = None) -> int:
    """Host memory that models leave alone. On a small machine the default is a quarter of it.

    The node's `setting` replaces the default; of it and the machine owner's word the larger counts.
    """
    reserve = int(config.memory_reserve_gib * GIB)
    if "memory_reserve_gib" in config.model_fields_set:
        return max(reserve, setting or 0)
    if setting is not None:
        return setting
    return reserve if total is None else min(reserve, total // 4)


def admit(need: Need, room: Room, others: Iterable[Need], reserve: int) -> None:
    """AgentError ADMISSION_REFUSED, naming the part that is short and its numbers. What is unknown refuses nothing."""
    waiting = list(others)
    taken = sum(other.host_bytes or 0 for other in waiting)
    free = budget.usable(room.host_available, reserve, taken)
    if need.host_bytes is not None and free is not None and need.host_bytes > free:
        raise _refusal(room, "host memory", need.host_bytes, free, None)
    share = need.share()
    if share is None:
        return
    for uuid in need.gpu_uuids:
        taken = sum(other.share() or 0 for other in waiting if uuid in other.gpu_uuids)
        free = budget.usable(room.gpu_free.get(uuid), need.gpu_reserve.get(uuid), taken)
        if free is not None and share > free:
            raise _refusal(room, room.gpu_labels.get(uuid, uuid), share, free, uuid)


def _refusal(room: Room, part: str, needed: int, free: int, gpu: str | None) -> AgentError:
    where = f" on node {room.node}" if room.node else ""
    detail = (
        f"Not enough memory: the model needs about {needed / GIB:.1f} GiB and {max(0, free) / GIB:.1f} GiB can be used"
        f"{where} ({part}). Stop another model, choose a smaller budget, or start it anyway."
    )
    fields = {"part": "gpu" if gpu else "host", "neededBytes": needed, "freeBytes": max(0, free), "gpuUuid": gpu}
    return AgentError(AgentCode.ADMISSION_REFUSED, detail, fields)


class Starts:
    """One start at a time on each GPU, one for models without a GPU, and a limit for the node.

    A start holds its lanes from its turn until it is ready or has failed, because only then is what it takes seen in
    what is free.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._held: dict[str, tuple[frozenset[str], Need]] = {}
        self._moved = asyncio.Condition()

    def try_take(self, key: str, lanes: frozenset[str], need: Need, *, force: bool = False) -> bool:
        """Take the lanes if they are free. With `force` take them anyway (an engine that was found starting)."""
        if key in self._held:
            return True
        busy = any(lanes & held for held, _ in self._held.values())
        limits = [limit for limit in (self.limit, need.max_starts) if limit is not None]
        full = bool(limits) and len(self._held) >= min(limits)
        if (busy or full) and not force:
            return False
        self._held[key] = (lanes, need)
        return True

    def others(self, key: str) -> list[Need]:
        """What the other starts in progress will take."""
        return [need for holder, (_, need) in self._held.items() if holder != key]

    async def take(self, key: str, lanes: frozenset[str], need: Need) -> None:
        """Wait for the lanes."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.try_take(key, lanes, need))

    async def release(self, key: str) -> None:
        """Let the next one start. Nothing when `key` holds no lane."""
        if self._held.pop(key, None) is not None:
            async with self._moved:
                self._moved.notify_all()

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[None]:
        """Release at the end, whatever happens."""
        try:
            yield
        finally:
            await asyncio.shield(self.release(key))
