"""View-models of GPUs: a card with all that is known of it, as the GPUs tab and the dashboard show it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from agent.wire.capability import Capabilities, GpuCapability, PcieLink
from agent.wire.status import GpuModelUse, GpuStatus
from mirbad.kernel import clock
from mirbad.web import parts
from mirbad.web.parts import NOT_REPORTED, Badge, Bar
from nodes import queries
from nodes.models import Gpu, Node
from nodes.states import ONLINE
from nodes.telemetry.now import gpu_status, host_status

STALE_AFTER = timedelta(seconds=15)

SERIES = 8
"""How many colours there are for things of a kind; more begin again."""

_WORKS = Badge("Works", "ok", "circle-check")
_LOST = Badge("Lost", "bad", "unplug", "It no longer answers on its bus")
_PROBLEM = Badge("Problem", "warn", "triangle-alert")
_ABSENT = Badge("Not there", "idle", "circle-dashed", "The node no longer reports this GPU")
_UNKNOWN = Badge("Not reported", "unknown", "circle-help", "No status of it has come")
_OLD = Badge("Last known", "unknown", "clock", "The node is not heard; these values are from its last status")
_SLOW = Badge("Slow link", "warn", "triangle-alert", "Its PCIe link carries less than the card could")


@dataclass(frozen=True, slots=True)
class Part:
    """What one model, or all else, holds of a card's memory. `x` and `width` are percent of the card."""

    name: str
    model_id: str
    size: str
    note: str
    colour: int
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """A process on a card."""

    pid: int
    name: str
    size: str
    owner: str


@dataclass(frozen=True, slots=True)
class GpuCard:
    """One GPU, or one MIG slice of it."""

    uuid: str
    label: str
    name: str
    parent: str
    badge: Badge
    problem: str
    slow: Badge | None
    link: str
    link_words: str
    memory: Bar
    total: str
    used: str
    free: str
    reserve: str
    headroom: str
    reserve_x: float | None
    shares_host_memory: bool
    busy: Bar
    busy_figure: str
    temperature: str
    power: str
    compute: str
    driver: str
    address: str
    parts: tuple[Part, ...]
    processes: tuple[ProcessLine, ...] | None
    process_words: str
    present: bool
    works: bool
    """Whether nothing is wrong with it, as it was last told."""

    @property
    def figures(self) -> tuple[tuple[str, str], ...]:
        """What is known of it, by name."""
        return (
            ("Total", self.total),
            ("Used", self.used),
            ("Free", self.free),
            ("Reserve", self.reserve),
            ("Headroom", self.headroom),
            ("Temperature", self.temperature),
            ("Power", self.power),
            ("Compute", self.compute),
            ("Driver", self.driver),
        )


@dataclass(frozen=True, slots=True)
class _Context:
    """What the cards of one node share: whether it is heard, models of engines by instance, colours by model."""

    heard: bool
    model_of: Mapping[str, str]
    colour_of: Mapping[str, int]


def cards(node: Node) -> tuple[GpuCard, ...]:
    """The GPUs of a node whose `gpus` are prefetched, those that it reports first; runs no query."""
    capabilities = queries.capabilities(node)
    told = _told(capabilities)
    rows = sorted(node.gpus.all(), key=lambda gpu: (not gpu.present, gpu.index is None, gpu.index or 0, gpu.uuid))
    labels = _labels(rows, told)
    seen = {gpu.uuid: (gpu_status(gpu.uuid, gpu.seen) if gpu.seen else None) for gpu in rows}
    models = {use.model_id for status in seen.values() if status is not None for use in status.models}
    last = node.last_seen_at
    context = _Context(
        heard=node.reachability == ONLINE and last is not None and clock.now() - last <= STALE_AFTER,
        model_of={str(item.get("instanceId")): str(item.get("modelId")) for item in node.engines},
        colour_of=colours(models),
    )
    return tuple(_card(gpu, told.get(gpu.uuid), seen[gpu.uuid], labels[gpu.uuid], context) for gpu in rows)


def colours(names: Iterable[str]) -> dict[str, int]:
    """A colour for each name, from 1, the same wherever the same names are."""
    return {name: number % SERIES + 1 for number, name in enumerate(sorted(names))}


def _told(capabilities: Capabilities | None) -> dict[str, GpuCapability]:
    return {gpu.uuid: gpu for gpu in capabilities.gpus} if capabilities else {}


def _labels(rows: Iterable[Gpu], told: dict[str, GpuCapability]) -> dict[str, str]:
    """``GPU 1``, or ``GPU 1 · slice 2`` for the second slice of that card."""
    slices: dict[str, int] = {}
    found = {}
    for gpu in rows:
        label = f"GPU {gpu.index}" if gpu.index is not None else "GPU"
        parent = told[gpu.uuid].parent_uuid if gpu.uuid in told else None
        if parent:
            slices[parent] = slices.get(parent, 0) + 1
            label = f"{label} · slice {slices[parent]}"
        found[gpu.uuid] = label if gpu.present else "GPU —"
    return found


def _card(gpu: Gpu, told: GpuCapability | None, status: GpuStatus | None, label: str, context: _Context) -> GpuCard:
    """One card from its row, what its node said it is, and what it said last."""
    seen = status or GpuStatus(uuid=gpu.uuid)
    total = seen.total_bytes if seen.total_bytes is not None else gpu.memory_bytes
    used = seen.used_bytes
    free = None if total is None or used is None else max(0, total - used)
    headroom = None if free is None else max(0, free - (gpu.reserve_bytes or 0))
    pcie = told.pcie if told else None
    problem = seen.problem or (told.problem if told else None) or ""
    lost = seen.lost or bool(told and told.lost)
    return GpuCard(
        uuid=gpu.uuid,
        label=label,
        name=gpu.name or "name not reported",
        parent=(told.parent_uuid or "") if told else "",
        badge=_badge(gpu, problem, lost=lost, heard=context.heard),
        problem=problem if gpu.present else "The node no longer reports this GPU.",
        slow=_SLOW if pcie is not None and pcie.is_slow else None,
        link=_link(pcie),
        link_words=_link_words(pcie),
        memory=_memory(label, gpu, used, total),
        total="shared with the host" if gpu.shares_host_memory else parts.size(total),
        used=parts.size(used),
        free="the host's" if gpu.shares_host_memory else parts.size(free),
        reserve=parts.size(gpu.reserve_bytes) if gpu.reserve_bytes else "none",
        headroom="the host's" if gpu.shares_host_memory else parts.size(headroom),
        reserve_x=round(100 - 100 * gpu.reserve_bytes / total, 2) if gpu.reserve_bytes and total else None,
        shares_host_memory=bool(gpu.shares_host_memory),
        busy=parts.percent_bar("Utilization", seen.utilization_percent),
        busy_figure="" if seen.utilization_percent is None else f"{seen.utilization_percent:.0f} %",
        temperature=_figure(seen.temperature_celsius, "°C"),
        power=_power(seen),
        compute=(told.compute_capability or NOT_REPORTED) if told else NOT_REPORTED,
        driver=(told.driver_version or NOT_REPORTED) if told else NOT_REPORTED,
        address=(told.pci_address or "") if told else "",
        parts=_parts(seen.models, used, total, context.colour_of),
        processes=_processes(seen, context.model_of),
        process_words=_process_words(seen),
        present=gpu.present,
        works=gpu.present and not lost and not problem and bool(gpu.seen),
    )


def _badge(gpu: Gpu, problem: str, *, lost: bool, heard: bool) -> Badge:
    if not gpu.present:
        return _ABSENT
    if lost:
        return _LOST
    if problem:
        return _PROBLEM
    if not gpu.seen:
        return _UNKNOWN
    return _WORKS if heard else _OLD


def _memory(label: str, gpu: Gpu, used: int | None, total: int | None) -> Bar:
    if gpu.shares_host_memory:
        words = "shares host memory" if used is None else f"{parts.size(used)} by GPU processes, of the host's memory"
        return Bar(label, None, None, words, "shares host memory")
    return parts.memory_bar(label, used, total)


def _figure(value: float | None, unit: str) -> str:
    return NOT_REPORTED if value is None else f"{value:.0f} {unit}"


def _power(seen: GpuStatus) -> str:
    if seen.power_watts is None:
        return NOT_REPORTED
    limit = f" of {seen.power_limit_watts:.0f}" if seen.power_limit_watts is not None else ""
    return f"{seen.power_watts:.0f}{limit} W"


def _link(pcie: PcieLink | None) -> str:
    return (pcie and _pcie(pcie.generation, pcie.lanes, pcie.bytes_per_second)) or NOT_REPORTED


def _link_words(pcie: PcieLink | None) -> str:
    if pcie is None or not pcie.is_slow:
        return ""
    could = _pcie(pcie.card_generation, pcie.card_lanes, pcie.card_bytes_per_second)
    return f"The card could use {could}. Check its slot and riser."


def _pcie(generation: int | None, lanes: int | None, rate: int | None) -> str:
    """``PCIe 4, 16 lanes (31.5 GB/s)``, as far as it is known."""
    words = [f"PCIe {generation}"] if generation is not None else []
    words += [parts.plural(lanes, "lane")] if lanes is not None else []
    return ", ".join(words) + (f" ({_rate(rate)})" if rate is not None else "")


def _rate(value: int | None) -> str:
    return "" if value is None else f"{value / 1e9:.1f} GB/s"


def _parts(
    models: Sequence[GpuModelUse], used: int | None, total: int | None, colour_of: Mapping[str, int]
) -> tuple[Part, ...]:
    """Models in the order of their ids, then what is somebody else's."""
    found: list[Part] = []
    x = 0.0
    known = 0
    for use in sorted(models, key=lambda use: use.model_id):
        width = _percent(use.used_bytes, total)
        note = "" if use.measured else "memory of its processes cannot be read: split evenly"
        size = parts.size(use.used_bytes)
        found.append(Part(use.model_id, use.model_id, size, note, colour_of[use.model_id], x, width))
        x += width
        known += use.used_bytes or 0
    rest = None if used is None else max(0, used - known)
    if rest:
        found.append(
            Part("everything else" if models else "in use", "", parts.size(rest), "", 0, x, _percent(rest, total))
        )
    return tuple(found)


def _percent(value: int | None, total: int | None) -> float:
    return round(100 * value / total, 2) if value and total else 0.0


def _processes(seen: GpuStatus, model_of: Mapping[str, str]) -> tuple[ProcessLine, ...] | None:
    if seen.processes is None:
        return None
    return tuple(
        ProcessLine(
            one.pid, one.name or "name not reported", parts.size(one.used_bytes), model_of.get(one.instance_id, "")
        )
        for one in seen.processes
    )


def _process_words(seen: GpuStatus) -> str:
    if seen.process_count is None:
        return f"processes {NOT_REPORTED}"
    return parts.plural(seen.process_count, "process", "processes") if seen.process_count else "no process"


def bandwidth(node: Node) -> str:
    """How fast the machine reads memory: what a reply on its CPUs is as fast as."""
    host = host_status(node.host)
    machine, core = host.memory_bandwidth_bytes_per_second, host.core_bandwidth_bytes_per_second
    if machine is None:
        return "not measured yet"
    return f"{machine / 1e9:.1f} GB/s" + (f", one core {core / 1e9:.1f} GB/s" if core is not None else "")


@dataclass(frozen=True, slots=True)
class GpuTotals:
    """The GPUs of a node or of a fleet in figures; memory is of those that tell it."""

    count: int
    lost: int
    memory: str
    busy: str


def totals(rows: Iterable[Gpu]) -> GpuTotals:
    """Sums over the cards that are there."""
    count = lost = used = total = 0
    busy: list[float] = []
    for gpu in rows:
        if not gpu.present:
            continue
        count += 1
        seen = gpu.seen
        lost += bool(seen.get("lost"))
        size = seen.get("totalBytes") or gpu.memory_bytes
        if size and seen.get("usedBytes") is not None:
            used, total = used + seen["usedBytes"], total + size
        if seen.get("utilizationPercent") is not None:
            busy.append(float(seen["utilizationPercent"]))
    return GpuTotals(
        count=count,
        lost=lost,
        memory=f"{parts.size(used)} of {parts.size(total)}" if total else NOT_REPORTED,
        busy=f"{sum(busy) / len(busy):.0f} %" if busy else NOT_REPORTED,
    )
