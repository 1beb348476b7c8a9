"""Questions about nodes. Lists take a constant number of statements, however many nodes there are."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from django.db.models import F, QuerySet
from pydantic import ValidationError

from agent.wire.capability import Capabilities
from mirbad.kernel.errors import Conflict, NotFound
from nodes.errors import NodeDraining, NodeIncompatible, NodeOffline, NodePendingTakeover, NodeRevoked
from nodes.models import Gpu, Node, NodeCondition, NodePin
from nodes.states import APPROVED, FENCED, INCOMPATIBLE, ONLINE, PENDING, RE_PAIR, REVOKED, UNKNOWN


@dataclass(frozen=True, slots=True)
class ShownState:
    """What a person reads of a node: one name of the seven, the draining flag beside it, and reasons as sentences."""

    name: str
    draining: bool
    reasons: tuple[str, ...] = ()

    @property
    def serving(self) -> bool:
        """Whether models can be asked there."""
        return self.name in {"Online", "Degraded"}


@dataclass(frozen=True, slots=True)
class Parts:
    """What belongs to one node."""

    gpus: list[Gpu] = field(default_factory=list)
    conditions: list[NodeCondition] = field(default_factory=list)
    pins: list[NodePin] = field(default_factory=list)


def fleet_members() -> QuerySet[Node]:
    """Approved nodes; with none at all, the ones that wait count instead."""
    approved = Node.objects.approved()
    return approved if approved.exists() else Node.objects.not_revoked()


def shown_state(node: Node, conditions: Iterable[NodeCondition]) -> ShownState:
    """The state of a node from its columns and its conditions; runs no query."""
    conditions = tuple(conditions)
    reason = tuple(item.detail for item in conditions if item.code == RE_PAIR)
    reason += (node.reachability_reason,) if node.reachability_reason else ()
    if node.lifecycle == REVOKED:
        return ShownState("Revoked", False)
    if node.lifecycle == PENDING:
        return ShownState("PendingApproval", node.draining, reason)
    if node.reachability == FENCED:
        return ShownState("PendingTakeover", node.draining, reason)
    if node.reachability == INCOMPATIBLE:
        return ShownState("Incompatible", node.draining, reason)
    if node.reachability == UNKNOWN:
        return ShownState("Offline", node.draining, reason or ("The master has not reached the node yet.",))
    if node.reachability != ONLINE:
        return ShownState("Offline", node.draining, reason)
    reasons = tuple(item.detail for item in conditions) + tuple(str(warning) for warning in node.warnings)
    return ShownState("Degraded" if reasons else "Online", node.draining, tuple(dict.fromkeys(reasons)))


def waits_for_continuation(node: Node) -> bool:
    """Whether `node` obeys another master since a takeover, so that only a person can say how it goes on; no query."""
    epoch, held = node.takeover_epoch, node.held_epoch
    fenced = node.lifecycle == APPROVED and node.reachability == FENCED and bool(node.takeover_id)
    return fenced and epoch is not None and held is not None and held >= epoch


def waiting_for_continuation() -> list[Node]:
    """The nodes of `waits_for_continuation`; one statement."""
    waiting = Node.objects.approved().filter(
        reachability=FENCED, takeover_epoch__isnull=False, held_epoch__gte=F("takeover_epoch")
    )
    return [node for node in waiting if waits_for_continuation(node)]


def rows(*, include_revoked: bool = False) -> list[Node]:
    """Nodes with GPUs, conditions and pins prefetched: four statements."""
    nodes = Node.objects.all() if include_revoked else Node.objects.not_revoked()
    return list(nodes.prefetch_related("gpus", "conditions", "pins"))


def parts(nodes: Iterable[Node]) -> dict[str, Parts]:
    """What belongs to each of `nodes`, by node: three statements. Cheaper than to prefetch it for a long list."""
    ids = [node.pk for node in nodes]
    found: dict[str, Parts] = defaultdict(Parts)
    for gpu in Gpu.objects.filter(node_id__in=ids).order_by("index", "uuid"):
        found[gpu.node_id].gpus.append(gpu)
    for condition in NodeCondition.objects.filter(node_id__in=ids).order_by("code", "subject"):
        found[condition.node_id].conditions.append(condition)
    for pin in NodePin.objects.filter(node_id__in=ids):
        found[pin.node_id].pins.append(pin)
    return found


def get(node_id: str) -> Node:
    """One node, as in `rows`. Raises NotFound."""
    node = Node.objects.prefetch_related("gpus", "conditions", "pins").filter(pk=node_id).first()
    if node is None:
        raise NotFound(f"There is no node {node_id}.")
    return node


def require_named(node_id: str) -> None:
    """NotFound unless there is a node of that id, in whatever state."""
    if not Node.objects.filter(pk=node_id).exists():
        raise NotFound(f"There is no node {node_id}.")


def require_known(node_id: str) -> Node:
    """The node, approved and not revoked. Raises NotFound, NodeRevoked, Conflict (it waits for approval)."""
    node = Node.objects.filter(pk=node_id).first()
    if node is None:
        raise NotFound(f"There is no node {node_id}.")
    if node.lifecycle == REVOKED:
        raise NodeRevoked(f"Node {node_id} is revoked.")
    if node.lifecycle != APPROVED:
        raise Conflict(f"Node {node_id} waits for approval. Approve it first.")
    return node


def require_serving(node_id: str) -> Node:
    """The node, when models can be asked there now.

    Raises what `require_known` raises, NodeIncompatible, NodePendingTakeover, NodeOffline.
    """
    node = require_known(node_id)
    why = f" {node.reachability_reason}" if node.reachability_reason else ""
    if node.reachability == INCOMPATIBLE:
        raise NodeIncompatible(f"Node {node_id} cannot be worked with.{why}")
    if node.reachability == FENCED:
        raise NodePendingTakeover(f"Node {node_id} obeys another master; it waits for a takeover.{why}")
    if node.reachability != ONLINE:
        raise NodeOffline(f"Node {node_id} is offline.{why}", retry_after_seconds=5)
    return node


def require_placeable(node_id: str) -> Node:
    """The node, when it serves and takes new work. Raises what `require_serving` raises, NodeDraining."""
    node = require_serving(node_id)
    if node.draining:
        raise NodeDraining(f"Node {node_id} is draining; it takes no new work until it is undrained.")
    return node


def capabilities(node: Node) -> Capabilities | None:
    """What the node last said it can do; None before it did, and when it is in a form of another version."""
    if not node.capabilities:
        return None
    try:
        return Capabilities.model_validate(node.capabilities)
    except ValidationError:
        return None
