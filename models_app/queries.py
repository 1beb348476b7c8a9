"""Questions about models, answered with a number of statements that does not grow with the rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import QuerySet

from mirbad.kernel.errors import NotFound
from models_app.models import ModelDefinition, Placement
from models_app.states import FAILED, READY, RUNNING, STARTING, STOPPED, STOPPING, UNHEALTHY, UNKNOWN

UNPLACED = "unplaced"


@dataclass(frozen=True, slots=True)
class ShownState:
    """What a page says of a model: `name` is an observed state or ``unplaced``; `reasons` are sentences.

    `serves` is whether the gateway may send requests there.
    """

    name: str
    reasons: tuple[str, ...] = ()
    serves: bool = False


def shown_state(placement: Placement | None) -> ShownState:
    """What to show of one placement; None is a model that stands nowhere."""
    if placement is None:
        return ShownState(UNPLACED, ("It stands on no node.",))
    node, reason = placement.node_id_text, placement.observed_reason
    reasons = (reason,) if reason else ()
    if placement.observed == UNKNOWN:
        wanted = "should run" if placement.desired == RUNNING else "should be stopped"
        return ShownState(UNKNOWN, (f"Node {node} does not report now; the model {wanted} there.",))
    if placement.observed == STOPPED and placement.desired == RUNNING:
        return ShownState(STOPPED, (*reasons, f"It should run on node {node} and does not yet."))
    if placement.observed in (READY, STARTING, UNHEALTHY) and placement.desired == STOPPED:
        return ShownState(placement.observed, (*reasons, "It is to be stopped."))
    if placement.observed in (FAILED, STOPPED, STARTING, STOPPING, UNHEALTHY, READY):
        return ShownState(placement.observed, reasons, placement.observed == READY and placement.routed)
    return ShownState(UNKNOWN, reasons)


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica: its placements by shard. A single-node replica is one placement with `wanted` 1."""

    id: UUID
    placements: tuple[Placement, ...]
    wanted: int

    @property
    def head(self) -> Placement:
        """Shard 0, which answers requests; the lowest that there is when it is gone."""
        return self.placements[0]

    @property
    def ready(self) -> int:
        """How many of its shards are seen ready."""
        return sum(placement.observed == READY for placement in self.placements)

    @property
    def routed(self) -> bool:
        """Whether the gateway may send requests there; a move brings its target up without."""
        return self.head.routed

    @property
    def desired(self) -> str:
        """What is wanted of all of it."""
        return RUNNING if any(placement.desired == RUNNING for placement in self.placements) else STOPPED

    @property
    def is_whole(self) -> bool:
        """Whether every shard that it must have is placed."""
        return len(self.placements) == self.wanted and self.head.shard == 0

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Its nodes, in the order of the shards."""
        return tuple(placement.node_id_text for placement in self.placements)


def replicas_of(model: ModelDefinition) -> tuple[Replica, ...]:
    """The replicas of `model`, routed ones first, then the oldest; from a prefetch when there was one."""
    return grouped(model.placements.all())


def grouped(placements: Iterable[Placement]) -> tuple[Replica, ...]:
    """`placements` as replicas, routed ones first, then the oldest."""
    found: dict[UUID, list[Placement]] = {}
    for placement in placements:
        found.setdefault(placement.replica, []).append(placement)
    replicas = [
        Replica(key, tuple(sorted(shards, key=lambda one: one.shard)), shards[0].shards)
        for key, shards in found.items()
    ]
    return tuple(sorted(replicas, key=lambda one: (not one.routed, one.head.created_at, str(one.id))))


def placements_of(model: ModelDefinition) -> tuple[Placement, ...]:
    """Every placement of `model`: by replica, and in a replica by shard. From a prefetch when there was one."""
    return tuple(placement for replica in replicas_of(model) for placement in replica.placements)


def primary(model: ModelDefinition) -> Placement | None:
    """The placement that stands for `model` where one must: shard 0 of its oldest routed replica."""
    return next(iter(placements_of(model)), None)


def placement_of(model: ModelDefinition) -> Placement | None:
    """`primary`."""
    return primary(model)


# Of shards that differ, the one that keeps the replica from serving gives it its name.
_WORST_FIRST = (FAILED, UNKNOWN, UNHEALTHY, STOPPING, STARTING, STOPPED, READY)
# Of replicas that differ, the one that is nearest to serving gives the model its name.
_BEST_FIRST = (READY, STARTING, UNHEALTHY, STOPPING, UNKNOWN, FAILED, STOPPED, UNPLACED)


def shown_replica_state(replica: Replica) -> ShownState:
    """What to show of one replica. It is ready only when each shard that it must have is."""
    if replica.wanted == 1:
        return shown_state(replica.head)
    each = [shown_state(placement) for placement in replica.placements]
    count = f"{replica.ready} of {replica.wanted} shards ready."
    if not replica.is_whole:
        gone = replica.wanted - len(replica.placements)
        text = f"{gone} of its {replica.wanted} shards stand on no node; remove this replica and add another."
        return ShownState(FAILED, (count, text))
    reasons = tuple(
        f"Shard {placement.shard} on {placement.node_id_text}: {reason}"
        for placement, shown in zip(replica.placements, each, strict=True)
        for reason in shown.reasons
    )
    name = min((shown.name for shown in each), key=_WORST_FIRST.index)
    if name == READY:
        serves = replica.routed and all(shown.serves for shown in each)
        return ShownState(READY, reasons, serves)
    if name == STOPPED and replica.ready:
        # Neither running nor stopped: on its way there, by what is wanted.
        name = STARTING if replica.desired == RUNNING else STOPPING
    return ShownState(name, reasons if name == STOPPED else (count, *reasons))


def shown_model_state(model: ModelDefinition) -> ShownState:
    """What to show of a whole model: the state of the replica nearest to serving, and what is said of the others."""
    replicas = replicas_of(model)
    routed = [replica for replica in replicas if replica.routed] or list(replicas)
    return merged_state([(replica, shown_replica_state(replica)) for replica in routed])


def merged_state(shown: Sequence[tuple[Replica, ShownState]]) -> ShownState:
    """The states of several replicas as the model's one."""
    if not shown:
        return shown_state(None)
    if len(shown) == 1:
        return shown[0][1]
    best = min((state for _, state in shown), key=lambda state: _BEST_FIRST.index(state.name))
    serving = sum(state.serves for _, state in shown)
    reasons = [f"On {', '.join(replica.node_ids)}: {reason}" for replica, state in shown for reason in state.reasons]
    wanted = sum(replica.desired == RUNNING for replica, _ in shown)
    if serving < wanted:
        reasons.insert(0, f"{serving} of {wanted} replicas serve.")
    return ShownState(best.name, tuple(reasons), bool(serving))


def all_models() -> QuerySet[ModelDefinition]:
    """Every definition with its sources, placements and hold; three more statements for any number of rows."""
    return ModelDefinition.objects.select_related("hold").prefetch_related("sources", "placements")


def one_model(model_id: str) -> ModelDefinition:
    """A definition with its sources, placements and hold. Raises NotFound."""
    model = all_models().filter(pk=model_id).first()
    if model is None:
        raise NotFound(f"There is no model {model_id!r}.")
    return model


def placements_on(node_ids: Iterable[str]) -> dict[str, list[Placement]]:
    """Placements with their definitions by node id, for all of `node_ids` in one statement."""
    found: dict[str, list[Placement]] = {node_id: [] for node_id in node_ids}
    for placement in Placement.objects.select_related("model").filter(node_id_text__in=list(found)):
        found[placement.node_id_text].append(placement)
    return found
