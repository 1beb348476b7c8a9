"""The shards of one replica start together: what each launch knows of the others, and where all of them meet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.wire.instances import LIVE_STATES, Rendezvous
from jobs import instances
from jobs.base import Step
from jobs.errors import StepFailed
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.states import CANCELLED, FAILED, OPEN, SUCCEEDED
from mirbad.kernel.ids import new_operation_id
from models_app.models import Placement
from models_app.placement import reconcile, shared
from models_app.queries import Replica
from nodes.models import Node

SHARD_FAILED = "shard_failed"


@dataclass(frozen=True, slots=True)
class Together:
    """One start of a replica: the operation of each shard, by rank."""

    operations: tuple[str, ...]

    @property
    def meeting(self) -> str:
        """A name that no other start has."""
        return self.operations[0]

    def to_input(self) -> list[str]:
        """As each of the operations keeps it."""
        return list(self.operations)


def plan(replica: Replica) -> Together | None:
    """A new start of `replica`; None for a replica of one shard, which starts alone."""
    if replica.wanted == 1:
        return None
    return Together(tuple(new_operation_id() for _ in range(replica.wanted)))


def of(known: Mapping[str, Any]) -> Together | None:
    """The start that an operation with the input `known` belongs to; None when it starts alone."""
    operations = known.get("shards")
    return Together(tuple(map(str, operations))) if operations else None


def operations_with(operation: Operation) -> Sequence[Operation]:
    """`operation` and those that are open for the other shards of the same start."""
    together = of(operation.input)
    if together is None:
        return [operation]
    others = unfinished().filter(pk__in=together.operations).exclude(pk=operation.pk)
    return [operation, *others.order_by("pk")]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Another shard of the same start has ended without success. `why` is empty when it was cancelled."""

    text: str
    why: Mapping[str, object]


def trouble(step: Step) -> Trouble | None:
    """Whether a shard's launch has become pointless, since another one's has ended."""
    together = of(step.input)
    if together is None:
        return None
    ended = Operation.objects.filter(pk__in=together.operations, outcome__in=(FAILED, CANCELLED))
    other = ended.exclude(pk=step.operation_id).order_by("finished_at").first()
    if other is None:
        return None
    rank = together.operations.index(other.pk)
    if other.outcome == CANCELLED:
        return Trouble(f"Shard {rank} was cancelled: stopping this one.", {})
    code = str(other.error.get("code", ""))
    detail = f"Shard {rank} on node {other.node_id_text} did not start: {other.error.get('detail', '')}"
    why = {"code": code if code in instances.KEEPS_DESIRED else SHARD_FAILED, "detail": detail}
    return Trouble("Another shard did not start: stopping this one.", why)


def waits_for(step: Step, starting: str, running: str) -> str:
    """Why a shard has to wait before its engine is started, in words; empty when it may.

    `starting` and `running` are the stages of a launch in which its engine is ordered, and was ordered. No engine waits
    for others whose weights are still on their way, or whose earlier engine still ends. And of two replicas that share
    nodes one goes first: each holding the turn on one node and waiting for it on another, neither would be whole.
    """
    together = of(step.input)
    if together is None:
        return ""
    others = list(Operation.objects.filter(pk__in=together.operations).exclude(pk=step.operation_id))
    behind = [other for other in others if other.outcome == OPEN and other.stage not in (starting, running)]
    if behind:
        return f"Waiting until {behind[0].node_id_text} can start its part, too."
    if any(other.stage == running for other in others):
        return ""
    nodes = {step.node_id, *(other.node_id_text for other in others)}
    for rival, operations in _rivals(together, nodes).items():
        ordered = any(other.stage == running for other in operations)
        can_go = all(other.stage in (starting, running) for other in operations)
        if ordered or (can_go and rival.meeting < together.meeting):
            return f"Waiting until {operations[0].model_id_text} has started on {operations[0].node_id_text}."
    return ""


def _rivals(together: Together, nodes: set[str]) -> dict[Together, list[Operation]]:
    """Open launches of other replicas that want one of `nodes`."""
    launches = unfinished().filter(lane="run", input__has_key="shards").exclude(pk__in=together.operations)
    found: dict[Together, list[Operation]] = {}
    for operation in launches.order_by("pk"):
        if (rival := of(operation.input)) is not None:
            found.setdefault(rival, []).append(operation)
    return {
        rival: operations
        for rival, operations in found.items()
        if nodes & {operation.node_id_text for operation in operations}
    }


UP = "up"
"""In the state of a shard's launch: its own part was seen ready."""


def are_missing(step: Step) -> int:
    """How many shards of the same start were not seen ready yet, this one left out; 0 for one that starts alone."""
    together = of(step.input)
    if together is None:
        return 0
    others = Operation.objects.filter(pk__in=together.operations).exclude(pk=step.operation_id)
    return sum(not (other.outcome == SUCCEEDED or other.state.get(UP)) for other in others)


def rendezvous(step: Step, placement: Placement) -> Rendezvous | None:
    """Where this shard meets the others; None while rank 0 has not chosen the port yet.

    StepFailed when a shard is gone, or the nodes share no fabric any more.
    """
    together = of(step.input)
    assert together is not None  # noqa: S101 - the caller has looked
    others = list(Placement.objects.filter(replica=placement.replica).order_by("shard"))
    if len(others) != placement.shards:
        text = f"The replica has {len(others)} of its {placement.shards} shards; remove it and add another."
        raise StepFailed("shard_missing", text, final=True)
    nodes = Node.objects.in_bulk([one.node_id_text for one in others])
    each = [reconcile.capabilities_of(nodes[one.node_id_text]) for one in others]
    fabrics = shared.shared_fabrics(each)
    if not fabrics:
        names = ", ".join(one.node_id_text for one in others)
        raise StepFailed("no_shared_fabric", f"The nodes {names} share no fabric that they can use now.", final=True)
    port = None
    if placement.shard > 0 and (port := _port_of(step, others[0], together)) is None:
        return None
    return Rendezvous(
        meeting=together.meeting,
        rank=placement.shard,
        world_size=placement.shards,
        address=nodes[others[0].node_id_text].address,
        port=port,
        fabric=fabrics[0],
        adapters=shared.fabrics_of(each[placement.shard])[fabrics[0]],
    )


def _port_of(step: Step, head: Placement, together: Together) -> int | None:
    about = replace(step, target_id=str(head.pk), node_id=head.node_id_text)
    view = instances.look(about)
    if view is None or view.state not in LIVE_STATES or not view.operation_id.startswith(f"{together.meeting}:"):
        return None
    return view.rendezvous_port
