"""View-models of the nodes pages. Every list costs a constant number of queries."""

from collections.abc import Iterable
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
from nodes.models import JoinToken, Node, NodePin
from nodes.pages import gpus
from nodes.pages.gpu_line import GpuLine, gpu_line
from nodes.pki import renewal
from nodes.states import APPROVED, PENDING, REVOKED

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
_DRAINING = Badge("Draining", "warn", "circle-pause", "Takes no new starts; what runs goes on serving")


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
        """Whether a person has to approve it."""
        return self.state == "PendingApproval"

    @property
    def revoked(self) -> bool:
        """Whether it is gone for good."""
        return self.state == "Revoked"

    @property
    def serving(self) -> bool:
        """Whether models can be asked there."""
        return self.state in ("Online", "Degraded")


def fleet(*, include_revoked: bool = False) -> tuple[NodeCard, ...]:
    """Every node that an operator still knows of. Four queries, however many nodes."""
    return tuple(card(node) for node in queries.rows(include_revoked=include_revoked))


def card(node: Node) -> NodeCard:
    """The card of a node whose `gpus` and `conditions` are prefetched."""
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
        system=_system(node, capabilities),
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


def _system(node: Node, capabilities: Capabilities | None) -> str:
    if capabilities is not None:
        words = [capabilities.os, capabilities.arch, parts.plural(capabilities.cpu_count, "CPU")]
    else:
        words = [str(node.machine.get("os") or ""), str(node.machine.get("arch") or "")]
    return " · ".join(word for word in words if word) or NOT_REPORTED


def _memory_model(capabilities: Capabilities | None) -> str:
    if capabilities is None:
        return NOT_REPORTED
    if capabilities.memory_model == MemoryModel.UNIFIED and capabilities.gpus:
        return f"Unified · {parts.size(capabilities.memory_bytes)}"
    kind = "Discrete" if capabilities.gpus else "CPU only"
    return f"{kind} · {parts.size(capabilities.memory_bytes)} RAM"


def _gpu_words(gpus: tuple[GpuLine, ...], capabilities: Capabilities | None) -> str:
    if gpus:
        return parts.plural(len(gpus), "GPU")
    if capabilities is None:
        return f"GPUs {NOT_REPORTED}"
    return "GPUs cannot be read" if capabilities.gpu_problem else "CPU only"


@dataclass(frozen=True, slots=True)
class Pending:
    """What a node that waits for approval says of itself. Shown, never trusted."""

    id: str
    name: str
    spki: str
    facts: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]
    enrolled_at: datetime | None


def pending(node: Node) -> Pending:
    """For the person who compares fingerprints. `node` has its pins prefetched."""
    machine = node.machine
    return Pending(
        id=node.pk,
        name=node.name,
        spki=_pin(node.pins.all(), NodePin.PENDING),
        facts=(
            ("Asked from", node.request_address or NOT_REPORTED),
            ("Agent address", f"{node.address}:{node.port}"),
            ("Host name", str(machine.get("hostname") or "") or NOT_REPORTED),
            ("System", _system(node, None)),
            ("Agent", node.agent_version or str(machine.get("agentVersion") or "") or NOT_REPORTED),
        ),
        gpus=tuple(
            f"{gpu.get('name') or 'GPU'} · {parts.size(gpu.get('memoryBytes'))}" for gpu in machine.get("gpus") or ()
        ),
        enrolled_at=node.enrolled_at,
    )


def _pin(pins: Iterable[NodePin], slot: str) -> str:
    return next((pin.spki_sha256 for pin in pins if pin.slot == slot), "")


@dataclass(frozen=True, slots=True)
class RuntimeLine:
    """A runtime in one delivery: there, or why not."""

    name: str
    available: bool
    words: str


_SLOTS = {
    NodePin.CURRENT: "in use",
    NodePin.NEXT: "accepted too, while its certificate is rotated",
    NodePin.PENDING: "waits for approval",
}


@dataclass(frozen=True, slots=True)
class PinLine:
    """A key that the master knows the node by."""

    words: str
    spki: str
    since: datetime
    ends: datetime | None


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """Everything that the tabs of a node page show of it."""

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
    """The view-model of a node that came from `nodes.queries.get`."""
    capabilities = queries.capabilities(node)
    shown = card(node)
    held = "None: no master has commanded it yet" if node.held_epoch is None else f"epoch {node.held_epoch}"
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
        ),
        runtimes=tuple(_runtime(item) for item in capabilities.runtimes) if capabilities else (),
        folders=capabilities.folders if capabilities else None,
        models_root=capabilities.models_root if capabilities else "",
        features=tuple(str(feature) for feature in capabilities.features) if capabilities else (),
        warnings=tuple(str(warning) for warning in node.warnings),
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
    return "; ".join(told) or "none stated: replicas on this node alone"


def _runtime(item: RuntimeCapability) -> RuntimeLine:
    words = item.version or "version not reported" if item.available else item.problem or "not available here"
    return RuntimeLine(f"{item.runtime} · {item.delivery}", item.available, words)


def audit_lines(node_id: str, limit: int = COMMANDS_SHOWN) -> list[AuditLine]:
    """The newest audit lines of the node."""
    return list(AuditLine.objects.filter(node_id_text=node_id).order_by("-id")[:limit])


@dataclass(frozen=True, slots=True)
class JoinProgress:
    """How far a machine has come with its token: waiting, pending, joined, rekeyed, expired or none."""

    node_id: str
    step: str
    expires_at: datetime | None = None
    pending: Pending | None = None
    rekey: bool = False
    spki: str = ""


def join_progress(node_id: str) -> JoinProgress:
    """From the token to the approved node, read from the rows."""
    now = clock.now()
    node = Node.objects.prefetch_related("pins").filter(pk=node_id).exclude(lifecycle=REVOKED).first()
    token = JoinToken.objects.filter(node_id_text=node_id).order_by("-created_at").first()
    waiting = token is not None and token.used_at is None and token.expires_at > now
    if token is not None and node is not None and token.purpose == JoinToken.REKEY:
        return _rekey_progress(node, token, waiting=waiting)
    if node is not None and node.lifecycle == APPROVED:
        return JoinProgress(node_id, "joined")
    if node is not None:
        return JoinProgress(node_id, "pending", None, pending(node))
    if token is None:
        return JoinProgress(node_id, "none")
    return JoinProgress(node_id, "waiting" if waiting else "expired", token.expires_at)


def _rekey_progress(node: Node, token: JoinToken, *, waiting: bool) -> JoinProgress:
    if token.used_at is None:
        return JoinProgress(node.pk, "waiting" if waiting else "expired", token.expires_at, rekey=True)
    if node.lifecycle == APPROVED:
        return JoinProgress(node.pk, "rekeyed", rekey=True, spki=token.used_by_spki)
    return JoinProgress(node.pk, "pending", None, pending(node), rekey=True)


@dataclass(frozen=True, slots=True)
class OpenToken:
    """A machine that was asked to join and has not come yet."""

    node_id: str
    display_name: str
    purpose: str
    expires_at: datetime


def open_tokens() -> tuple[OpenToken, ...]:
    """Tokens that are still good, for the list of nodes. One query."""
    rows = JoinToken.objects.filter(used_at=None, expires_at__gt=clock.now()).exclude(purpose=JoinToken.BOOTSTRAP)
    return tuple(OpenToken(row.node_id_text, row.display_name, row.purpose, row.expires_at) for row in rows[:50])
