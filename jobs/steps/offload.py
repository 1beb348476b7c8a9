"""The plan of an evacuation: the models that are still on the node, the next move, and the reasons against others.

Only reads. The number of statements grows with the models of the node alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from agent.wire.capability import Capabilities, GpuCapability, MemoryModel, Runtime
from jobs.base import Moment, OperationData
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.states import FAILED
from jobs.steps.moving import MOVE
from mirbad.kernel import clock
from models_app.models import Hold, ModelSource, Placement
from models_app.placement import apply, candidates, feasible
from nodes.models import Node

MOST_TRIES = 3
"""Moves of one model that may fail in a row before it is left where it is."""

AGAIN_AFTER = timedelta(minutes=10)
"""After so long such a model is tried once more: the obstacle may be gone."""

LEFT_FOR = timedelta(seconds=30)
"""A move that was refused is requested again after so long."""

_FIT_UNKNOWN = "fit_unknown"
PAUSE = timedelta(seconds=5)
"""Between two tries of one model, times the tries."""


class RefusedMove(OperationData):
    """A refusal of a move that an evacuation requested."""

    at: Moment
    detail: str


class EvacuationState(OperationData):
    """State of an evacuation: the last refusal of each model's move."""

    refused: Mapping[str, RefusedMove] = {}


@dataclass(frozen=True, slots=True)
class EvacuationMove:
    """A move that can be opened now."""

    model_id: str
    node_id: str
    gpu_uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """The progress of an evacuation. `stuck` has the reason, as a sentence, for each model that cannot move now.

    While a move is open, no other model is considered.
    """

    left: tuple[str, ...]
    moving: tuple[Operation, ...]
    next: EvacuationMove | None
    stuck: Mapping[str, str]


def survey(node_id: str, evacuation_id: str, state: EvacuationState) -> Survey:
    """Return the progress of the evacuation of `node_id`. `state` is that of its operation."""
    placements = _placements(node_id)
    moves = {row.model_id_text: row for row in unfinished().filter(concurrency_group="placement", target_kind="model")}
    left = tuple(row.model_id for row in placements)
    moving = tuple(moves[row.model_id] for row in placements if row.model_id in moves)
    if moving:
        return Survey(left, moving, None, {})
    lately = _refused_lately(state)
    busy = set(
        unfinished().filter(concurrency_group="run", target_kind="placement").values_list("target_id", flat=True)
    )
    tries = _tries(evacuation_id)
    targets = _targets(node_id)
    stuck: dict[str, str] = {}
    for placement in placements:
        why = lately.get(placement.model_id) or _why_not(placement, busy, tries.get(placement.model_id, ()))
        choice = why or choose(placement, targets)
        if isinstance(choice, EvacuationMove):
            return Survey(left, (), choice, stuck)
        stuck[placement.model_id] = choice
    return Survey(left, (), None, stuck)


def outlook(node_id: str) -> list[tuple[str, str, str]]:
    """Return each model on the node with the target it would move to now ("" for none), and the reason against it."""
    targets = _targets(node_id)
    found = []
    for placement in _placements(node_id):
        why = _why_not(placement, (), ())
        choice = why or choose(placement, targets)
        where = choice.node_id if isinstance(choice, EvacuationMove) else ""
        found.append((placement.model_id, where, "" if where else str(choice)))
    return found


def refused(state: EvacuationState, model_id: str, detail: str) -> EvacuationState:
    """Return the state with one more refusal, which counts for a moment."""
    return state.changed(refused={**state.refused, model_id: RefusedMove(at=clock.now(), detail=detail)})


def _refused_lately(state: EvacuationState) -> dict[str, str]:
    since = clock.now() - LEFT_FOR
    return {
        model_id: f"Model {model_id} cannot be moved now: {refusal.detail}"
        for model_id, refusal in state.refused.items()
        if refusal.at > since
    }


def choose(placement: Placement, targets: Sequence[Node]) -> EvacuationMove | str:
    """Return the move of the model of `placement`; the reason, as a sentence, when there is none.

    The planner's first candidate. Where the planner does not know whether the model fits, the target's own check
    decides: the model keeps serving here until it serves there.
    """
    model = placement.model
    ranking = candidates.rank(model, ask=False)
    serving = {node.pk for node in targets}
    for best in ranking.candidates:
        if best.node_id in serving:
            return EvacuationMove(model.pk, best.node_id, best.gpu_uuids)
    unknown = {refusal.node_id for refusal in ranking.rejections if refusal.code == _FIT_UNKNOWN}
    reasons = [refusal.message for refusal in ranking.rejections if refusal.node_id in serving - unknown]
    for node in targets:
        if node.pk not in unknown:
            continue
        facts = apply.facts_of(node)
        gpus = _gpus(placement, facts.capabilities)
        found = feasible.problems(feasible.PlacementRequest(model.runtime, model.delivery, gpus), node.pk, facts)
        if not found:
            return EvacuationMove(model.pk, node.pk, gpus)
        reasons.append(found[0].message)
    if not reasons:
        return f"Model {model.pk} has nowhere to go: no other node serves and takes work."
    return f"Model {model.pk} has nowhere to go. {' '.join(dict.fromkeys(reasons))}"


def _placements(node_id: str) -> list[Placement]:
    rows = Placement.objects.filter(node_id_text=node_id).select_related("model__hold")
    return list(rows.prefetch_related("model__sources", "model__placements").order_by("created_at", "pk"))


def _targets(node_id: str) -> list[Node]:
    """Return the nodes that accept models now, those with the fewest first."""
    load = Counter(Placement.objects.values_list("node_id_text", flat=True))
    nodes = Node.objects.serving().filter(draining=False).exclude(pk=node_id)
    return sorted(nodes, key=lambda node: (load[node.pk], node.pk))


def _why_not(placement: Placement, busy: Iterable[str], failed: Sequence[Operation]) -> str:
    model_id = placement.model_id
    hold: Hold | None = getattr(placement.model, "hold", None)
    if hold is not None:
        return f"Model {model_id}: {hold.words} holds it."
    if placement.shards > 1:
        return f"Model {model_id} runs on {placement.shards} nodes as one; remove that replica and add another."
    if any(source.kind != ModelSource.HUGGING_FACE for source in placement.model.sources.all()):
        return f"The weights of model {model_id} are in a folder of this node alone; unplace it, or add it elsewhere."
    if str(placement.pk) in busy:
        return f"Model {model_id} is being started or stopped."
    if not failed:
        return ""
    last = failed[0]
    detail = str(last.error.get("detail", "")) or "no reason was given"
    if len(failed) >= MOST_TRIES:
        return f"Model {model_id} could not be moved {len(failed)} times. {detail}"
    if last.finished_at is not None and clock.now() < last.finished_at + PAUSE * len(failed):
        return f"The move of model {model_id} is tried again in a moment. {detail}"
    return ""


def _tries(evacuation_id: str) -> dict[str, list[Operation]]:
    """Return the moves of this evacuation that failed recently, by model, the newest first."""
    rows = Operation.objects.filter(
        kind=MOVE, outcome=FAILED, input__onBehalfOf=evacuation_id, finished_at__gt=clock.now() - AGAIN_AFTER
    )
    found: dict[str, list[Operation]] = {}
    for row in rows.order_by("-finished_at", "-pk"):
        found.setdefault(row.model_id_text, []).append(row)
    return found


def _gpus(placement: Placement, capabilities: Capabilities | None) -> tuple[str, ...]:
    """Return as many GPUs as the model has now, of one kind, the kind with the most memory first."""
    if capabilities is None or capabilities.memory_model == MemoryModel.UNIFIED:
        return ()
    wanted = len(placement.gpu_uuids) or (1 if placement.model.runtime == Runtime.VLLM else 0)
    kinds: dict[tuple[str | None, int | None], list[GpuCapability]] = {}
    for gpu in capabilities.gpus:
        kinds.setdefault((gpu.name, gpu.memory_bytes), []).append(gpu)
    for same in sorted(kinds.values(), key=lambda gpus: -(gpus[0].memory_bytes or 0)):
        if len(same) >= wanted:
            return tuple(gpu.uuid for gpu in same[:wanted])
    return ()
