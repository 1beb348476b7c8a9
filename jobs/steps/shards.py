"""Joint start of the shards of one replica: the launches of the other shards, and the rendezvous."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.wire.instances import LIVE_STATES, Rendezvous
from jobs.base import OperationData, Step, StoredFailure
from jobs.errors import StepFailed
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.states import CANCELLED, FAILED, OPEN, SUCCEEDED
from jobs.steps import instances
from jobs.steps.instances import Engine
from mirbad.kernel.ids import new_operation_id
from models_app.models import Placement
from models_app.placement import multi_node
from models_app.queries import PlacedReplica
from nodes import queries as node_queries
from nodes.models import Node

SHARD_FAILED = "shard_failed"


class ShardInput(OperationData):
    """Input of the launch of a shard: the operations of all shards of the start, by rank; empty for a lone start."""

    shards: tuple[str, ...] = ()


class ShardState(OperationData):
    """State of the launch of a shard. `up`: its own part was observed ready."""

    up: bool = False


ShardStep = Step[ShardInput, ShardState]


@dataclass(frozen=True, slots=True)
class JointStart:
    """One start of a replica: the operation of each shard, by rank."""

    operations: tuple[str, ...]

    @property
    def rendezvous_id(self) -> str:
        """Return a name that no other start has."""
        return self.operations[0]


def plan(replica: PlacedReplica) -> JointStart | None:
    """Return a new start of `replica`; None for a replica of one shard, which starts alone."""
    if replica.shard_count == 1:
        return None
    return JointStart(tuple(new_operation_id() for _ in range(replica.shard_count)))


def of(data: ShardInput) -> JointStart | None:
    """Return the start that a launch belongs to; None when it starts alone."""
    return JointStart(data.shards) if data.shards else None


def _of_row(operation: Operation) -> JointStart | None:
    return of(ShardInput.model_validate(operation.input))


def operations_with(operation: Operation) -> Sequence[Operation]:
    """Return `operation` and the open ones of the other shards of the same start."""
    joint = _of_row(operation)
    if joint is None:
        return [operation]
    others = unfinished().filter(pk__in=joint.operations).exclude(pk=operation.pk)
    return [operation, *others.order_by("pk")]


@dataclass(frozen=True, slots=True)
class ShardFailure:
    """Another shard of the same start has ended without success. `why` is None when it was cancelled."""

    text: str
    why: StoredFailure | None


def failure_of_other(step: ShardStep) -> ShardFailure | None:
    """Return the end without success of another shard, which makes this launch pointless; None when there is none."""
    joint = of(step.input)
    if joint is None:
        return None
    ended = Operation.objects.filter(pk__in=joint.operations, outcome__in=(FAILED, CANCELLED))
    other = ended.exclude(pk=step.operation_id).order_by("finished_at", "pk").first()
    if other is None:
        return None
    rank = joint.operations.index(other.pk)
    if other.outcome == CANCELLED:
        return ShardFailure(f"Shard {rank} was cancelled: stopping this one.", None)
    code = str(other.error.get("code", ""))
    detail = f"Shard {rank} on node {other.node_id_text} did not start: {other.error.get('detail', '')}"
    why = StoredFailure(code=code if code in instances.KEEPS_DESIRED else SHARD_FAILED, detail=detail)
    return ShardFailure("Another shard did not start: stopping this one.", why)


def waits_for(step: ShardStep, starting: str, running: str) -> str:
    """Return the reason why a shard's engine must not start yet; empty when it may.

    `starting` and `running` are the stages of a launch before and after the request to start its engine. No engine
    waits for others whose weights are still downloading, or whose earlier engine is still stopping. And of two replicas
    that share nodes one starts first: each with a start on one node, waiting for the other, neither would be complete.
    """
    joint = of(step.input)
    if joint is None:
        return ""
    others = list(Operation.objects.filter(pk__in=joint.operations).exclude(pk=step.operation_id))
    behind = [other for other in others if other.outcome == OPEN and other.stage not in (starting, running)]
    if behind:
        return f"Waiting until {behind[0].node_id_text} can start its part, too."
    if any(other.stage == running for other in others):
        return ""
    nodes = {step.node_id, *(other.node_id_text for other in others)}
    for rival, operations in _rivals(joint, nodes).items():
        started = any(other.stage == running for other in operations)
        can_start = all(other.stage in (starting, running) for other in operations)
        if started or (can_start and rival.rendezvous_id < joint.rendezvous_id):
            return f"Waiting until {operations[0].model_id_text} has started on {operations[0].node_id_text}."
    return ""


def _rivals(joint: JointStart, nodes: set[str]) -> dict[JointStart, list[Operation]]:
    """Return the open launches of other replicas that use one of `nodes`."""
    launches = unfinished().filter(concurrency_group="run", input__has_key="shards").exclude(pk__in=joint.operations)
    found: dict[JointStart, list[Operation]] = {}
    for operation in launches.order_by("pk"):
        if (rival := _of_row(operation)) is not None:
            found.setdefault(rival, []).append(operation)
    return {
        rival: operations
        for rival, operations in found.items()
        if nodes & {operation.node_id_text for operation in operations}
    }


def are_missing(step: ShardStep) -> int:
    """Return how many other shards of the same start were not observed ready yet; 0 for a lone start."""
    joint = of(step.input)
    if joint is None:
        return 0
    others = Operation.objects.filter(pk__in=joint.operations).exclude(pk=step.operation_id)
    return sum(not (other.outcome == SUCCEEDED or ShardState.model_validate(other.state).up) for other in others)


def rendezvous(step: ShardStep, placement: Placement) -> Rendezvous | None:
    """Return the rendezvous of this shard with the others; None while rank 0 has not chosen the port yet.

    StepFailed when a shard is gone, or the nodes share no fabric any more.
    """
    joint = of(step.input)
    assert joint is not None  # noqa: S101 - the caller has checked
    others = list(Placement.objects.filter(replica=placement.replica).order_by("shard"))
    if len(others) != placement.shards:
        text = f"The replica has {len(others)} of its {placement.shards} shards; remove it and add another."
        raise StepFailed("shard_missing", text, final=True)
    nodes = Node.objects.in_bulk([one.node_id_text for one in others])
    each = [node_queries.capabilities(nodes[one.node_id_text]) for one in others]
    fabrics = multi_node.shared_fabrics(each)
    if not fabrics:
        names = ", ".join(one.node_id_text for one in others)
        raise StepFailed("no_shared_fabric", f"The nodes {names} share no fabric that they can use now.", final=True)
    port = None
    if placement.shard > 0 and (port := _port_of(others[0], joint)) is None:
        return None
    return Rendezvous(
        meeting=joint.rendezvous_id,
        rank=placement.shard,
        world_size=placement.shards,
        address=nodes[others[0].node_id_text].address,
        port=port,
        fabric=fabrics[0],
        adapters=multi_node.fabrics_of(each[placement.shard])[fabrics[0]],
    )


def _port_of(head: Placement, joint: JointStart) -> int | None:
    view = instances.look(Engine(head.node_id_text, str(head.pk)))
    if view is None or view.state not in LIVE_STATES or not view.operation_id.startswith(f"{joint.rendezvous_id}:"):
        return None
    return view.rendezvous_port
