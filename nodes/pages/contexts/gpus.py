"""View-models of GPUs: a card with all that is known of it, for the GPUs tab and the dashboard."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from agent.common.gpu_label import GONE_GPU, gpu_label
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
"""The number of colours for things of a kind; after it colours repeat."""

_WORKS = Badge("OK", "ok", "circle-check")
_LOST = Badge("Lost", "bad", "unplug", "The GPU no longer responds on its bus")
_PROBLEM = Badge("Problem", "warn", "triangle-alert")
_FAULTS = {
    "gpu_needs_reset": Badge("Needs reset", "bad", "triangle-alert", "Nothing is placed on it until it was reset"),
    "gpu_needs_reboot": Badge("Needs reboot", "bad", "triangle-alert", "Nothing is placed on it until the reboot"),
    "gpu_needs_drain": Badge("Needs drain", "bad", "triangle-alert", "Nothing is placed on it until it was recovered"),
}
_RELEASED = Badge(
    "Not read", "idle", "circle-pause", "The node is drained: the GPU can be reset, or its driver reloaded"
)
_ABSENT = Badge("Absent", "idle", "circle-dashed", "The node no longer reports this GPU")
_UNKNOWN = Badge("Not reported", "unknown", "circle-help", "The node has not reported this GPU's status")
_OLD = Badge("Last known", "unknown", "clock", "The node is unreachable; these values are from its last status")
_SLOW = Badge("Slow link", "warn", "triangle-alert", "The PCIe link is slower than the GPU supports")


@dataclass(frozen=True, slots=True)
class MemorySegment:
    """The part of a card's memory that one model, or everything else, uses. `x` and `width` are percent of the card."""

    name: str
    model_id: str
    size: str
    note: str
    colour: int
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class GpuProcessLine:
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
    parts: tuple[MemorySegment, ...]
    processes: tuple[GpuProcessLine, ...] | None
    process_words: str
    present: bool
    works: bool
    """True when the last status reports no problem."""

    @property
    def figures(self) -> tuple[tuple[str, str], ...]:
        """The known values by name."""
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
    """Values that the cards of one node share: its reachability, models of engines by instance, colours by model."""

    heard: bool
    model_of: Mapping[str, str]
    colour_of: Mapping[str, int]


def cards(node: Node) -> tuple[GpuCard, ...]:
    """Return the GPUs of a node whose `gpus` are prefetched, reported ones first; no query."""
    capabilities = queries.capabilities(node)
    reported = _reported(capabilities)
    rows = sorted(node.gpus.all(), key=lambda gpu: (not gpu.present, gpu.index is None, gpu.index or 0, gpu.uuid))
    labels = _labels(rows, reported)
    observed = {gpu.uuid: (gpu_status(gpu.uuid, gpu.seen) if gpu.seen else None) for gpu in rows}
    models = {use.model_id for status in observed.values() if status is not None for use in status.models}
    last = node.last_seen_at
    context = _Context(
        heard=node.reachability == ONLINE and last is not None and clock.now() - last <= STALE_AFTER,
        model_of={str(item.get("instanceId")): str(item.get("modelId")) for item in node.engines},
        colour_of=colours(models),
    )
    return tuple(_card(gpu, reported.get(gpu.uuid), observed[gpu.uuid], labels[gpu.uuid], context) for gpu in rows)


def colours(names: Iterable[str]) -> dict[str, int]:
    """Return a colour for each name, from 1; the same for the same set of names."""
    return {name: number % SERIES + 1 for number, name in enumerate(sorted(names))}


def _reported(capabilities: Capabilities | None) -> dict[str, GpuCapability]:
    return {gpu.uuid: gpu for gpu in capabilities.gpus} if capabilities else {}


def _labels(rows: Iterable[Gpu], reported: dict[str, GpuCapability]) -> dict[str, str]:
    """Return labels by UUID: ``GPU 1``, or ``GPU 1 · slice 2`` for the second slice of that card."""
    slices: dict[str, int] = {}
    found = {}
    for gpu in rows:
        label = gpu_label(gpu.index, gpu.uuid)
        parent = reported[gpu.uuid].parent_uuid if gpu.uuid in reported else None
        if parent:
            slices[parent] = slices.get(parent, 0) + 1
            label = f"{label} · slice {slices[parent]}"
        found[gpu.uuid] = label if gpu.present else GONE_GPU
    return found


def _card(gpu: Gpu, reported: GpuCapability | None, status: GpuStatus | None, label: str, context: _Context) -> GpuCard:
    """Return one card from its row, the node's capabilities, and its last status."""
    observed = status or GpuStatus(uuid=gpu.uuid)
    total = observed.total_bytes if observed.total_bytes is not None else gpu.memory_bytes
    used = observed.used_bytes
    free = None if total is None or used is None else max(0, total - used)
    headroom = None if free is None else max(0, free - (gpu.reserve_bytes or 0))
    pcie = reported.pcie if reported else None
    fault = observed if observed.problem or reported is None else reported
    problem = fault.problem or ""
    lost = observed.lost or bool(reported and reported.lost)
    return GpuCard(
        uuid=gpu.uuid,
        label=label,
        name=gpu.name or "name not reported",
        parent=(reported.parent_uuid or "") if reported else "",
        badge=_badge(gpu, fault, lost=lost, heard=context.heard),
        problem=problem if gpu.present else "The node no longer reports this GPU.",
        slow=_SLOW if pcie is not None and pcie.is_slow else None,
        link=_link(pcie),
        link_words=_link_words(pcie),
        memory=_memory(label, gpu, used, total),
        total="shared with the host" if gpu.shares_host_memory else parts.size(total),
        used=_used(observed),
        free="the host's" if gpu.shares_host_memory else parts.size(free),
        reserve=parts.size(gpu.reserve_bytes) if gpu.reserve_bytes else "none",
        headroom="the host's" if gpu.shares_host_memory else parts.size(headroom),
        reserve_x=round(100 - 100 * gpu.reserve_bytes / total, 2) if gpu.reserve_bytes and total else None,
        shares_host_memory=bool(gpu.shares_host_memory),
        busy=parts.percent_bar("Utilization", observed.utilization_percent),
        busy_figure="" if observed.utilization_percent is None else f"{observed.utilization_percent:.0f} %",
        temperature=_figure(observed.temperature_celsius, "°C"),
        power=_power(observed),
        compute=(reported.compute_capability or NOT_REPORTED) if reported else NOT_REPORTED,
        driver=(reported.driver_version or NOT_REPORTED) if reported else NOT_REPORTED,
        address=(reported.pci_address or "") if reported else "",
        parts=_parts(observed.models, used, total, context.colour_of),
        processes=_processes(observed, context.model_of),
        process_words=_process_words(observed),
        present=gpu.present,
        works=gpu.present and not lost and not problem and bool(gpu.seen),
    )


def _used(observed: GpuStatus) -> str:
    """Return the used memory, with its age while the driver is slow or the card is not read."""
    age = observed.age_seconds
    return parts.size(observed.used_bytes) + (f", {parts.span(age)} ago" if age is not None else "")


def _badge(gpu: Gpu, fault: GpuStatus | GpuCapability, *, lost: bool, heard: bool) -> Badge:
    if not gpu.present:
        return _ABSENT
    if lost:
        return _LOST
    if fault.problem:
        return _FAULTS.get(fault.problem_code or "", _PROBLEM)
    if not gpu.seen:
        return _UNKNOWN
    if gpu.seen.get("released"):
        return _RELEASED
    return _WORKS if heard else _OLD


def _memory(label: str, gpu: Gpu, used: int | None, total: int | None) -> Bar:
    if gpu.shares_host_memory:
        words = "shares host memory" if used is None else f"{parts.size(used)} of host memory, by GPU processes"
        return Bar(label, None, None, words, "shares host memory")
    return parts.memory_bar(label, used, total)


def _figure(value: float | None, unit: str) -> str:
    return NOT_REPORTED if value is None else f"{value:.0f} {unit}"


def _power(observed: GpuStatus) -> str:
    if observed.power_watts is None:
        return NOT_REPORTED
    limit = f" of {observed.power_limit_watts:.0f}" if observed.power_limit_watts is not None else ""
    return f"{observed.power_watts:.0f}{limit} W"


def _link(pcie: PcieLink | None) -> str:
    return (pcie and _pcie(pcie.generation, pcie.lanes, pcie.bytes_per_second)) or NOT_REPORTED


def _link_words(pcie: PcieLink | None) -> str:
    if pcie is None or not pcie.is_slow:
        return ""
    could = _pcie(pcie.card_generation, pcie.card_lanes, pcie.card_bytes_per_second)
    return f"The GPU supports {could}. Check its slot and riser."


def _pcie(generation: int | None, lanes: int | None, rate: int | None) -> str:
    """Return ``PCIe 4, 16 lanes (31.5 GB/s)``, as far as it is known."""
    words = [f"PCIe {generation}"] if generation is not None else []
    words += [parts.plural(lanes, "lane")] if lanes is not None else []
    return ", ".join(words) + (f" ({_rate(rate)})" if rate is not None else "")


def _rate(value: int | None) -> str:
    return "" if value is None else f"{value / 1e9:.1f} GB/s"


def _parts(
    models: Sequence[GpuModelUse], used: int | None, total: int | None, colour_of: Mapping[str, int]
) -> tuple[MemorySegment, ...]:
    """Return the models in the order of their ids, then all other use."""
    found: list[MemorySegment] = []
    x = 0.0
    known = 0
    for use in sorted(models, key=lambda use: use.model_id):
        width = _percent(use.used_bytes, total)
        note = "" if use.measured else "estimated: process memory cannot be read, so it is split evenly"
        size = parts.size(use.used_bytes)
        found.append(MemorySegment(use.model_id, use.model_id, size, note, colour_of[use.model_id], x, width))
        x += width
        known += use.used_bytes or 0
    rest = None if used is None else max(0, used - known)
    if rest:
        found.append(
            MemorySegment("other" if models else "in use", "", parts.size(rest), "", 0, x, _percent(rest, total))
        )
    return tuple(found)


def _percent(value: int | None, total: int | None) -> float:
    return round(100 * value / total, 2) if value and total else 0.0


def _processes(observed: GpuStatus, model_of: Mapping[str, str]) -> tuple[GpuProcessLine, ...] | None:
    if observed.processes is None:
        return None
    return tuple(
        GpuProcessLine(
            one.pid, one.name or "name not reported", parts.size(one.used_bytes), model_of.get(one.instance_id, "")
        )
        for one in observed.processes
    )


def _process_words(observed: GpuStatus) -> str:
    if observed.process_count is None:
        return f"processes {NOT_REPORTED}"
    return parts.plural(observed.process_count, "process", "processes") if observed.process_count else "no process"


def bandwidth(node: Node) -> str:
    """Return the rate at which the machine reads memory, which limits replies on its CPUs."""
    host = host_status(node.host)
    machine, core = host.memory_bandwidth_bytes_per_second, host.core_bandwidth_bytes_per_second
    if machine is None:
        return "not measured yet"
    return f"{machine / 1e9:.1f} GB/s" + (f", one core {core / 1e9:.1f} GB/s" if core is not None else "")


@dataclass(frozen=True, slots=True)
class GpuTotals:
    """The GPUs of a node or of a fleet in sums; memory is of those that report it."""

    count: int
    lost: int
    memory: str
    busy: str


def totals(rows: Iterable[Gpu]) -> GpuTotals:
    """Return the sums over the present cards."""
    count = lost = used = total = 0
    busy: list[float] = []
    for gpu in rows:
        if not gpu.present:
            continue
        count += 1
        observed = gpu.seen
        lost += bool(observed.get("lost"))
        size = observed.get("totalBytes") or gpu.memory_bytes
        if size and observed.get("usedBytes") is not None:
            used, total = used + observed["usedBytes"], total + size
        if observed.get("utilizationPercent") is not None:
            busy.append(float(observed["utilizationPercent"]))
    return GpuTotals(
        count=count,
        lost=lost,
        memory=f"{parts.size(used)} of {parts.size(total)}" if total else NOT_REPORTED,
        busy=f"{sum(busy) / len(busy):.0f} %" if busy else NOT_REPORTED,
    )
