"""Queries about nodes. Lists cost a constant number of statements, however many nodes there are."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F, QuerySet
from pydantic import ValidationError

from agent.common.reason import OTHER, Reason, coded, codes
from agent.wire.capability import Capabilities
from mirbad.kernel.errors import Conflict
from nodes.errors import (
    ModelsRootChanged,
    NodeDraining,
    NodeIncompatible,
    NodeOffline,
    NodePendingTakeover,
    NodeRevoked,
    no_such_node,
)
from nodes.models import Gpu, Node, NodeCondition, NodePin
from nodes.states import APPROVED, FENCED, INCOMPATIBLE, ONLINE, PENDING, RE_PAIR, REVOKED, UNKNOWN


@dataclass(frozen=True, slots=True)
class ShownNodeState:
    """A node's state for people: one name of the seven, the draining flag beside it, and reasons, which have codes."""

    name: str
    draining: bool
    reasons: tuple[str, ...] = ()

    @property
    def reason_codes(self) -> tuple[str, ...]:
        """Return the code of each of `reasons`."""
        return codes(self.reasons)

    @property
    def serving(self) -> bool:
        """Return whether models on the node can serve."""
        return self.name in {"Online", "Degraded"}


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The GPUs, conditions and pins of one node."""

    gpus: list[Gpu] = field(default_factory=list)
    conditions: list[NodeCondition] = field(default_factory=list)
    pins: list[NodePin] = field(default_factory=list)


def fleet_members() -> QuerySet[Node]:
    """Return the approved nodes; without any, the pending ones instead."""
    approved = Node.objects.approved()
    return approved if approved.exists() else Node.objects.not_revoked()


REASON_CODES = {FENCED: "node_pending_takeover", INCOMPATIBLE: "node_incompatible"}
_NOT_REACHED = Reason("node_not_reached", "The master has not reached this node yet.")


def shown_state(node: Node, conditions: Iterable[NodeCondition]) -> ShownNodeState:
    """Return the state of a node from its columns and its conditions; no query."""
    conditions = tuple(conditions)
    reason: tuple[str, ...] = tuple(Reason(item.code, item.detail) for item in conditions if item.code == RE_PAIR)
    reason += coded(REASON_CODES.get(node.reachability, "node_offline"), filter(None, [node.reachability_reason]))
    if node.lifecycle == REVOKED:
        return ShownNodeState("Revoked", False)
    if node.lifecycle == PENDING:
        return ShownNodeState("PendingApproval", node.draining, reason)
    if node.reachability == FENCED:
        return ShownNodeState("PendingTakeover", node.draining, reason)
    if node.reachability == INCOMPATIBLE:
        return ShownNodeState("Incompatible", node.draining, reason)
    if node.reachability == UNKNOWN:
        return ShownNodeState("Offline", node.draining, reason or (_NOT_REACHED,))
    if node.reachability != ONLINE:
        return ShownNodeState("Offline", node.draining, reason)
    reasons = tuple(Reason(item.code, item.detail) for item in conditions) + warnings(node)
    return ShownNodeState("Degraded" if reasons else "Online", node.draining, tuple(dict.fromkeys(reasons)))


def warnings(node: Node) -> tuple[Reason, ...]:
    """Return the warnings of the node's agent; no query."""
    return tuple(map(_warning, node.warnings))


def _warning(stored: Any) -> Reason:
    # an agent without codes sent text alone
    if isinstance(stored, dict):
        return Reason(str(stored.get("code") or OTHER), str(stored.get("detail", "")))
    return Reason(OTHER, str(stored))


def waits_for_continuation(node: Node) -> bool:
    """Return whether `node` obeys another master since a takeover, so that only a person can continue it; no query."""
    epoch, held = node.takeover_epoch, node.held_epoch
    fenced = node.lifecycle == APPROVED and node.reachability == FENCED
    return fenced and epoch is not None and held is not None and held >= epoch


def waiting_for_continuation() -> list[Node]:
    """Return the nodes of `waits_for_continuation`; one statement."""
    waiting = Node.objects.approved().filter(
        reachability=FENCED, takeover_epoch__isnull=False, held_epoch__gte=F("takeover_epoch")
    )
    return [node for node in waiting if waits_for_continuation(node)]


def rows(*, include_revoked: bool = False) -> list[Node]:
    """Return nodes with GPUs, conditions and pins prefetched: four statements."""
    nodes = Node.objects.all() if include_revoked else Node.objects.not_revoked()
    return list(nodes.prefetch_related("gpus", "conditions", "pins"))


def parts(nodes: Iterable[Node]) -> dict[str, NodeParts]:
    """Return the `NodeParts` of each of `nodes`, by node: three statements. Cheaper than a prefetch for a long list."""
    ids = [node.pk for node in nodes]
    found: dict[str, NodeParts] = defaultdict(NodeParts)
    for gpu in Gpu.objects.filter(node_id__in=ids).order_by("index", "uuid"):
        found[gpu.node_id].gpus.append(gpu)
    for condition in NodeCondition.objects.filter(node_id__in=ids).order_by("code", "subject"):
        found[condition.node_id].conditions.append(condition)
    for pin in NodePin.objects.filter(node_id__in=ids):
        found[pin.node_id].pins.append(pin)
    return found


def get(node_id: str) -> Node:
    """Return one node, as in `rows`. Raises NotFound."""
    node = Node.objects.prefetch_related("gpus", "conditions", "pins").filter(pk=node_id).first()
    if node is None:
        raise no_such_node(node_id)
    return node


def require_named(node_id: str) -> None:
    """Raise NotFound unless there is a node of that id, in any state."""
    if not Node.objects.filter(pk=node_id).exists():
        raise no_such_node(node_id)


def require_known(node_id: str) -> Node:
    """Return the node, approved and not revoked. Raises NotFound, NodeRevoked, Conflict (it waits for approval)."""
    node = Node.objects.filter(pk=node_id).first()
    if node is None:
        raise no_such_node(node_id)
    if node.lifecycle == REVOKED:
        raise NodeRevoked(f"Node {node_id} is revoked.")
    if node.lifecycle != APPROVED:
        raise Conflict(f"Node {node_id} waits for approval. Approve it first.")
    return node


def require_serving(node_id: str) -> Node:
    """Return the node, when models on it can serve now.

    Raises the errors of `require_known`, NodeIncompatible, NodePendingTakeover, NodeOffline.
    """
    node = require_known(node_id)
    why = f" {node.reachability_reason}" if node.reachability_reason else ""
    if node.reachability == INCOMPATIBLE:
        raise NodeIncompatible(f"Node {node_id} is incompatible.{why}")
    if node.reachability == FENCED:
        raise NodePendingTakeover(f"Node {node_id} obeys another master and waits for a takeover.{why}")
    if node.reachability != ONLINE:
        raise NodeOffline(f"Node {node_id} is offline.{why}", retry_after_seconds=5)
    return node


def require_placeable(node_id: str) -> Node:
    """Return the node, when it serves and accepts new models. Raises the errors of `require_serving`, NodeDraining."""
    node = require_serving(node_id)
    if node.draining:
        raise NodeDraining(f"Node {node_id} is draining and accepts no new models. Undrain it first.")
    return node


def models_root_problem(warnings: Iterable[Any]) -> str:
    """Return why the disk with a node's models is not the one before, by its stored warnings; empty when it is."""
    return next((found for found in map(_warning, warnings) if found.code == ModelsRootChanged.code), "")


def require_models_root(node: Node) -> None:
    """Pass when the disk with the node's models is the one that was there before. Raises ModelsRootChanged."""
    if problem := models_root_problem(node.warnings):
        raise ModelsRootChanged(f"Node {node.pk}: {problem}")


def capabilities(node: Node) -> Capabilities | None:
    """Return the node's last reported capabilities; None before a report, and when their form is of another version."""
    if not node.capabilities:
        return None
    try:
        return Capabilities.model_validate(node.capabilities)
    except ValidationError:
        return None
