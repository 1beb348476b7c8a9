"""Reads of models with a constant number of queries."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import QuerySet

from mirbad.kernel.errors import NotFound
from models_app.models import ModelDefinition, Placement
from models_app.states import FAILED, READY, RUNNING, STARTING, STOPPED, STOPPING, UNHEALTHY, UNKNOWN

UNPLACED = "unplaced"


@dataclass(frozen=True, slots=True)
class ShownModelState:
    """The state of a model on pages: `name` is an observed state or ``unplaced``; `reasons` are sentences.

    `serves` is whether the gateway may send requests to it.
    """

    name: str
    reasons: tuple[str, ...] = ()
    serves: bool = False


def shown_state(placement: Placement | None) -> ShownModelState:
    """Return the state to show of one placement; None is a model without a placement."""
    if placement is None:
        return ShownModelState(UNPLACED, ("Not placed on any node.",))
    node, reason = placement.node_id_text, placement.observed_reason
    reasons = (reason,) if reason else ()
    if placement.observed == UNKNOWN:
        desired = "should run" if placement.desired == RUNNING else "should be stopped"
        return ShownModelState(UNKNOWN, (f"Node {node} is not reporting; the model {desired} there.",))
    if placement.halted:
        reasons = (placement.halted, *reasons)
    elif placement.observed == FAILED and placement.desired == RUNNING:
        reasons = (*reasons, "It is started again automatically.")
    if placement.observed == STOPPED and placement.desired == RUNNING:
        return ShownModelState(STOPPED, (*reasons, f"Should be running on node {node}; not started yet."))
    if placement.observed in (READY, STARTING, UNHEALTHY) and placement.desired == STOPPED:
        return ShownModelState(placement.observed, (*reasons, "Will be stopped."))
    if (notice := notice_of(placement)) and placement.observed in (READY, UNHEALTHY):
        reasons = (*reasons, notice)
    if placement.observed in (FAILED, STOPPED, STARTING, STOPPING, UNHEALTHY, READY):
        return ShownModelState(placement.observed, reasons, placement.observed == READY and placement.routed)
    return ShownModelState(UNKNOWN, reasons)


def notice_of(placement: Placement) -> str:
    """Return what its node says of an engine that serves, but not as it was asked to; empty for nothing."""
    return str(placement.observed_view.get("notice") or "")


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """One replica: its placements by shard. A single-node replica is one placement with `shard_count` 1."""

    id: UUID
    placements: tuple[Placement, ...]
    shard_count: int

    @property
    def head(self) -> Placement:
        """Return shard 0, which responds to requests; without it the lowest shard that exists."""
        return self.placements[0]

    @property
    def ready(self) -> int:
        """Return how many shards are observed ready."""
        return sum(placement.observed == READY for placement in self.placements)

    @property
    def routed(self) -> bool:
        """Return whether the gateway may send requests to it; a move brings its target up unrouted."""
        return self.head.routed

    @property
    def desired(self) -> str:
        """Return the desired state of the whole replica."""
        return RUNNING if any(placement.desired == RUNNING for placement in self.placements) else STOPPED

    @property
    def is_whole(self) -> bool:
        """Return whether every required shard is placed."""
        return len(self.placements) == self.shard_count and self.head.shard == 0

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Return its nodes, in the order of the shards."""
        return tuple(placement.node_id_text for placement in self.placements)


def replicas_of(model: ModelDefinition) -> tuple[PlacedReplica, ...]:
    """Return the replicas of `model`, routed ones first, then the oldest; from a prefetch when there was one."""
    return grouped(model.placements.all())


def grouped(placements: Iterable[Placement]) -> tuple[PlacedReplica, ...]:
    """Group `placements` into replicas, routed ones first, then the oldest."""
    found: dict[UUID, list[Placement]] = {}
    for placement in placements:
        found.setdefault(placement.replica, []).append(placement)
    replicas = [
        PlacedReplica(key, tuple(sorted(shards, key=lambda one: one.shard)), shards[0].shards)
        for key, shards in found.items()
    ]
    return tuple(sorted(replicas, key=lambda one: (not one.routed, one.head.created_at, str(one.id))))


def placements_of(model: ModelDefinition) -> tuple[Placement, ...]:
    """Return every placement of `model`: by replica, and in a replica by shard. From a prefetch when there was one."""
    return tuple(placement for replica in replicas_of(model) for placement in replica.placements)


def primary(model: ModelDefinition) -> Placement | None:
    """Return the placement that represents `model` where one must: shard 0 of its oldest routed replica."""
    return next(iter(placements_of(model)), None)


# Of shards that differ, the one that keeps the replica from serving determines the state.
_WORST_FIRST = (FAILED, UNKNOWN, UNHEALTHY, STOPPING, STARTING, STOPPED, READY)
# Of replicas that differ, the one closest to serving determines the state of the model.
_BEST_FIRST = (READY, STARTING, UNHEALTHY, STOPPING, UNKNOWN, FAILED, STOPPED, UNPLACED)


def shown_replica_state(replica: PlacedReplica) -> ShownModelState:
    """Return the state to show of one replica. It is ready only when every required shard is."""
    if replica.shard_count == 1:
        return shown_state(replica.head)
    each = [shown_state(placement) for placement in replica.placements]
    count = f"{replica.ready} of {replica.shard_count} shards ready."
    if not replica.is_whole:
        gone = replica.shard_count - len(replica.placements)
        text = f"{gone} of {replica.shard_count} shards are missing; remove this replica and add another."
        return ShownModelState(FAILED, (count, text))
    reasons = tuple(
        f"Shard {placement.shard} on {placement.node_id_text}: {reason}"
        for placement, shown in zip(replica.placements, each, strict=True)
        for reason in shown.reasons
    )
    name = min((shown.name for shown in each), key=_WORST_FIRST.index)
    if name == READY:
        serves = replica.routed and all(shown.serves for shown in each)
        return ShownModelState(READY, reasons, serves)
    if name == STOPPED and replica.ready:
        # Some shards run: the replica is between stopped and ready; the desired state gives the direction.
        name = STARTING if replica.desired == RUNNING else STOPPING
    return ShownModelState(name, reasons if name == STOPPED else (count, *reasons))


def shown_model_state(model: ModelDefinition) -> ShownModelState:
    """Return the state to show of a model: that of the replica closest to serving, with the others' reasons."""
    return state_of_replicas(replicas_of(model))


def state_of_replicas(replicas: Sequence[PlacedReplica]) -> ShownModelState:
    """Return the state to show of a model with these replicas."""
    routed = [replica for replica in replicas if replica.routed] or list(replicas)
    return merged_state([(replica, shown_replica_state(replica)) for replica in routed])


def merged_state(shown: Sequence[tuple[PlacedReplica, ShownModelState]]) -> ShownModelState:
    """Merge the states of several replicas into the model's one."""
    if not shown:
        return shown_state(None)
    if len(shown) == 1:
        return shown[0][1]
    best = min((state for _, state in shown), key=lambda state: _BEST_FIRST.index(state.name))
    serving = sum(state.serves for _, state in shown)
    reasons = [f"On {', '.join(replica.node_ids)}: {reason}" for replica, state in shown for reason in state.reasons]
    desired = sum(replica.desired == RUNNING for replica, _ in shown)
    if serving < desired:
        reasons.insert(0, f"{serving} of {desired} replicas are serving.")
    return ShownModelState(best.name, tuple(reasons), bool(serving))


def all_models() -> QuerySet[ModelDefinition]:
    """Return every definition with its sources, placements and hold; three more queries for any number of rows."""
    return ModelDefinition.objects.select_related("hold").prefetch_related("sources", "placements")


def one_model(model_id: str) -> ModelDefinition:
    """Return a definition with its sources, placements and hold. Raises NotFound."""
    model = all_models().filter(pk=model_id).first()
    if model is None:
        raise NotFound(f"Model {model_id!r} does not exist.")
    return model
