"""View-models of the replicas of a model, and of the nodes for another one."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from mirbad.web import parts
from mirbad.web.gpu_choices import gpu_choices
from mirbad.web.parts import Badge
from models_app import queries
from models_app.models import ModelDefinition, Placement
from models_app.pages.contexts import badges
from models_app.placement import candidates, multi_node
from models_app.states import FAILED, READY, RUNNING, STARTING, STOPPED, UNHEALTHY, UNKNOWN
from nodes import queries as node_queries
from nodes.models import Node

MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class ShardRow:
    """One placement of a replica."""

    rank: int
    node_id: str
    node_name: str
    badge: Badge
    gpus: str
    memory: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica in a list."""

    id: UUID
    badge: Badge
    reasons: tuple[str, ...]
    shards: tuple[ShardRow, ...]
    shard_count: int
    ready: int
    state: str
    desired_running: bool
    routed: bool

    @property
    def several(self) -> bool:
        """Return whether it needs more than one node."""
        return self.shard_count > 1

    @property
    def may_start(self) -> bool:
        """Return whether it can be started now."""
        return self.routed and self.state not in (READY, STARTING, UNHEALTHY)

    @property
    def may_stop(self) -> bool:
        """Return whether it can be stopped now."""
        return self.routed and (self.desired_running or self.state in (READY, STARTING, UNHEALTHY, UNKNOWN))

    @property
    def may_remove(self) -> bool:
        """Return whether it is stopped, as far as is known."""
        return self.routed and not self.desired_running and self.state in (STOPPED, FAILED)


def rows(model: ModelDefinition, nodes: Mapping[str, Node]) -> tuple[ReplicaRow, ...]:
    """Return the replicas of a model whose placements are prefetched; `nodes` are its nodes by id."""
    return tuple(_row(replica, nodes) for replica in queries.replicas_of(model))


def _row(replica: queries.PlacedReplica, nodes: Mapping[str, Node]) -> ReplicaRow:
    shown = queries.shown_replica_state(replica)
    return ReplicaRow(
        id=replica.id,
        badge=badges.of(shown.name, desired_running=replica.desired == RUNNING),
        reasons=shown.reasons,
        shards=tuple(_shard(placement, nodes) for placement in replica.placements),
        shard_count=replica.shard_count,
        ready=replica.ready,
        state=shown.name,
        desired_running=replica.desired == RUNNING,
        routed=replica.routed,
    )


def _shard(placement: Placement, nodes: Mapping[str, Node]) -> ShardRow:
    node = nodes.get(placement.node_id_text)
    return ShardRow(
        rank=placement.shard,
        node_id=placement.node_id_text,
        node_name=node.name if node else placement.node_id_text,
        badge=badges.of(placement.observed, desired_running=placement.desired == RUNNING),
        gpus=parts.plural(len(placement.gpu_uuids), "GPU") if placement.gpu_uuids else "",
        memory=parts.size(placement.observed_view.get("memoryBytes")),
        reason=placement.observed_reason,
    )


@dataclass(frozen=True, slots=True)
class ReplicaOption:
    """A node for a shard, with its GPUs and usable fabrics."""

    id: str
    name: str
    fabrics: tuple[str, ...]
    gpus: tuple[tuple[str, str], ...]
    problem: str


def options(model: ModelDefinition) -> tuple[ReplicaOption, ...]:
    """Return the approved nodes without a placement of the model, with the planner's reason against each."""
    taken = {placement.node_id_text for placement in model.placements.all()}
    rejections = candidates.rejections(model)
    found = []
    for node in Node.objects.approved().exclude(pk__in=taken).order_by("pk")[:MOST_SHOWN]:
        capabilities = node_queries.capabilities(node)
        gpus = gpu_choices(capabilities)
        fabrics = tuple(multi_node.fabrics_of(capabilities))
        rejection = rejections.get(node.pk)
        problem = rejection.message if rejection is not None else ""
        found.append(ReplicaOption(node.pk, node.name, fabrics, gpus, problem))
    return tuple(found)
