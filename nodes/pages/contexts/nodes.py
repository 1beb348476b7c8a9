"""View-models of the list of nodes and of a node's page."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from agent.wire.capability import Capabilities, MemoryModel, ModelFolder, RuntimeCapability
from agent.wire.status import HostStatus
from audit.models import AuditLine
from mirbad.kernel import clock
from mirbad.web import parts
from mirbad.web.parts import NOT_REPORTED, Badge, Bar
from nodes import queries
from nodes.conditions import certificate_alarm_at
from nodes.models import Node, NodePin
from nodes.pages.contexts import gpus, witnesses
from nodes.pages.contexts.gpu_line import GpuLine, gpu_line
from nodes.pages.contexts.pending import Pending, pending
from nodes.pages.contexts.system import system
from nodes.pki import renewal
from nodes.states import APPROVED, PENDING

STALE_AFTER = timedelta(seconds=15)
COMMANDS_SHOWN = 200

TABS = (
    ("overview", "Overview"),
    ("gpus", "GPUs"),
    ("models", "Models"),
    ("operations", "Operations"),
    ("certificates", "Certificates"),
    ("settings", "Settings"),
    ("commands", "Recent commands"),
)

_BADGES: dict[str, Badge] = {
    "PendingApproval": Badge("Awaiting approval", "warn", "fingerprint", "Enrolled; compare its fingerprint"),
    "Online": Badge("Online", "ok", "circle-check"),
    "Degraded": Badge("Degraded", "warn", "triangle-alert"),
    "Offline": Badge("Offline", "bad", "unplug"),
    "Incompatible": Badge("Incompatible", "bad", "circle-x"),
    "PendingTakeover": Badge("Pending takeover", "bad", "shield-alert"),
    "Revoked": Badge("Revoked", "idle", "ban"),
}
_DRAINING = Badge("Draining", "warn", "circle-pause", "Accepts no new models; running models keep serving")


@dataclass(frozen=True, slots=True)
class NodeCard:
    """A node at a glance."""

    id: str
    name: str
    state: str
    badge: Badge
    draining_chip: Badge | None
    draining: bool
    reasons: tuple[str, ...]
    address: str
    system: str
    memory_model: str
    host: Bar
    cpu: Bar
    disk: Bar
    gpus: tuple[GpuLine, ...]
    gpu_words: str
    agent_version: str
    certificate_ends: datetime | None
    certificate_soon: bool
    certificate_expired: bool
    last_seen_at: datetime | None
    stale: bool

    @property
    def pending(self) -> bool:
        """Return whether the node waits for approval."""
        return self.state == "PendingApproval"

    @property
    def revoked(self) -> bool:
        """Return whether the node is revoked."""
        return self.state == "Revoked"

    @property
    def serving(self) -> bool:
        """Return whether models on the node can serve."""
        return self.state in ("Online", "Degraded")


def fleet(*, include_revoked: bool = False) -> tuple[NodeCard, ...]:
    """Return every node that is not revoked, or all. Four queries, however many nodes."""
    return tuple(card(node) for node in queries.rows(include_revoked=include_revoked))


def card(node: Node) -> NodeCard:
    """Return the card of a node whose `gpus` and `conditions` are prefetched."""
    now = clock.now()
    shown = queries.shown_state(node, list(node.conditions.all()))
    capabilities = queries.capabilities(node)
    host = HostStatus.model_validate(node.host)
    badge = _BADGES[shown.name]
    total = host.memory_total_bytes
    if total is None and capabilities is not None:
        total = capabilities.memory_bytes
    stale = node.lifecycle == APPROVED and (node.last_seen_at is None or now - node.last_seen_at > STALE_AFTER)
    used = _used(host.memory_total_bytes, host.memory_available_bytes)
    lines = tuple(gpu_line(gpu) for gpu in node.gpus.all())
    return NodeCard(
        id=node.pk,
        name=node.name,
        state=shown.name,
        badge=_DRAINING if shown.draining and shown.name == "Online" else badge,
        draining_chip=_DRAINING if shown.draining and shown.name != "Online" else None,
        draining=shown.draining,
        reasons=tuple(shown.reasons),
        address=f"{node.address}:{node.port}",
        system=system(node, capabilities),
        memory_model=_memory_model(capabilities),
        host=parts.memory_bar("Host memory", used, total),
        cpu=parts.percent_bar("CPU", host.cpu_percent, f"load {host.load_1m:.1f}" if host.load_1m is not None else ""),
        disk=parts.memory_bar("Disk", _used(host.disk_total_bytes, host.disk_free_bytes), host.disk_total_bytes),
        gpus=lines,
        gpu_words=_gpu_words(lines, capabilities),
        agent_version=node.agent_version or str(node.machine.get("agentVersion") or "") or NOT_REPORTED,
        certificate_ends=node.cert_not_after,
        certificate_soon=node.cert_not_after is not None and node.cert_not_after <= certificate_alarm_at(now),
        certificate_expired=node.cert_not_after is not None and node.cert_not_after <= now,
        last_seen_at=node.last_seen_at,
        stale=stale,
    )


def _used(total: int | None, free: int | None) -> int | None:
    return None if total is None or free is None else max(0, total - free)


def _memory_model(capabilities: Capabilities | None) -> str:
    if capabilities is None:
        return NOT_REPORTED
    memory = parts.size(capabilities.memory_bytes)
    if not capabilities.gpus:
        return f"{memory} RAM, no GPU"
    if capabilities.memory_model == MemoryModel.UNIFIED:
        return f"{memory}, shared with GPUs"
    return f"{memory} RAM, GPUs have own memory"


def _gpu_words(gpus: tuple[GpuLine, ...], capabilities: Capabilities | None) -> str:
    if gpus:
        return parts.plural(len(gpus), "GPU")
    if capabilities is None:
        return f"GPUs {NOT_REPORTED}"
    return "GPUs unreadable" if capabilities.gpu_problem else "CPU only"


@dataclass(frozen=True, slots=True)
class RuntimeLine:
    """A runtime in one delivery: available, or the reason why not."""

    name: str
    available: bool
    words: str


_SLOTS = {
    NodePin.CURRENT: "in use",
    NodePin.NEXT: "also accepted, during certificate rotation",
    NodePin.PENDING: "waits for approval",
}


@dataclass(frozen=True, slots=True)
class PinLine:
    """A key by which the master knows the node."""

    words: str
    spki: str
    since: datetime
    ends: datetime | None


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """The values that the tabs of a node page show."""

    card: NodeCard
    pending: Pending | None
    facts: tuple[tuple[str, str], ...]
    runtimes: tuple[RuntimeLine, ...]
    folders: tuple[ModelFolder, ...] | None
    models_root: str
    features: tuple[str, ...]
    warnings: tuple[str, ...]
    gpu_problem: str
    pins: tuple[PinLine, ...]
    renewal_at: datetime | None
    fencing: str


def detail(node: Node) -> NodeDetail:
    """Return the view-model of a node that came from `nodes.queries.get`."""
    capabilities = queries.capabilities(node)
    shown = card(node)
    held = "not claimed yet" if node.held_epoch is None else str(node.held_epoch)
    return NodeDetail(
        card=shown,
        pending=pending(node) if node.lifecycle == PENDING else None,
        facts=(
            ("Address", shown.address),
            ("System", shown.system),
            ("Memory", shown.memory_model),
            ("Memory bandwidth", gpus.bandwidth(node)),
            ("Agent", shown.agent_version),
            ("Protocol", str(node.protocol) if node.protocol else NOT_REPORTED),
            ("Machine uid", str(node.uid)),
            ("Fabrics", _fabrics(capabilities)),
            *witnesses.facts(node.pk),
        ),
        runtimes=tuple(_runtime(item) for item in capabilities.runtimes) if capabilities else (),
        folders=capabilities.folders if capabilities else None,
        models_root=capabilities.models_root if capabilities else "",
        features=tuple(str(feature) for feature in capabilities.features) if capabilities else (),
        warnings=queries.warnings(node),
        gpu_problem=(capabilities.gpu_problem or "") if capabilities else "",
        pins=tuple(
            PinLine(_SLOTS[pin.slot], pin.spki_sha256, pin.created_at, pin.cert_not_after)
            for pin in sorted(node.pins.all(), key=lambda pin: pin.slot)
        ),
        renewal_at=next((renewal.renewal_at(pin) for pin in node.pins.all() if pin.slot == NodePin.CURRENT), None),
        fencing=held,
    )


def _fabrics(capabilities: Capabilities | None) -> str:
    if capabilities is None:
        return NOT_REPORTED
    told = [
        f"{fabric.name} ({', '.join(fabric.adapters)})"
        if fabric.problem is None
        else f"{fabric.name}: {fabric.problem}"
        for fabric in capabilities.fabrics
    ]
    return "; ".join(told) or "No fast network: single-node replicas only"


def _runtime(item: RuntimeCapability) -> RuntimeLine:
    words = item.version or "version not reported" if item.available else item.problem or "not available here"
    return RuntimeLine(f"{item.runtime} · {item.delivery}", item.available, words)


def audit_lines(node_id: str, limit: int = COMMANDS_SHOWN) -> list[AuditLine]:
    """Return the newest audit lines of the node."""
    return list(AuditLine.objects.filter(node_id_text=node_id).order_by("-id")[:limit])
