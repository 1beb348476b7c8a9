"""What an evacuation has before it: which models still stand on the node, which of them goes where next, and why not.

Only reads. A number of statements that grows with the models of the node alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from agent.wire.capability import Capabilities, GpuCapability, MemoryModel, Runtime
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.states import FAILED
from mirbad.kernel import clock
from models_app.models import Hold, ModelSource, Placement
from models_app.placement import apply, feasible, planning
from models_app.placement.wanted import of_model
from nodes.models import Node

MOST_TRIES = 3
"""Moves of one model that may fail in a row before it is left where it is."""

AGAIN_AFTER = timedelta(minutes=10)
"""After so long it is tried once more: what was in its way may be gone."""

LEFT_FOR = timedelta(seconds=30)
"""A move that was refused is asked for again after so long."""

_REFUSED = "refused"
_FIT_UNKNOWN = "fit_unknown"
PAUSE = timedelta(seconds=5)
"""Between two tries of one model, times the tries."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One model that can go now."""

    model_id: str
    node_id: str
    gpu_uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """How far an evacuation is. `stuck` says for each model that was looked at and cannot go now why, as a sentence.

    While a move is under way nothing else is looked at.
    """

    left: tuple[str, ...]
    moving: tuple[Operation, ...]
    next: Choice | None
    stuck: Mapping[str, str]


def survey(node_id: str, evacuation_id: str, state: Mapping[str, Any]) -> Survey:
    """How the evacuation of `node_id` stands now. `state` is what its operation knows."""
    placements = _placements(node_id)
    moves = {row.model_id_text: row for row in unfinished().filter(lane="placement", target_kind="model")}
    left = tuple(row.model_id for row in placements)
    moving = tuple(moves[row.model_id] for row in placements if row.model_id in moves)
    if moving:
        return Survey(left, moving, None, {})
    lately = _refused_lately(state)
    busy = set(unfinished().filter(lane="run", target_kind="placement").values_list("target_id", flat=True))
    tries = _tries(evacuation_id)
    targets = _targets(node_id)
    stuck: dict[str, str] = {}
    for placement in placements:
        why = lately.get(placement.model_id) or _why_not(placement, busy, tries.get(placement.model_id, ()))
        choice = why or choose(placement, targets)
        if isinstance(choice, Choice):
            return Survey(left, (), choice, stuck)
        stuck[placement.model_id] = choice
    return Survey(left, (), None, stuck)


def outlook(node_id: str) -> list[tuple[str, str, str]]:
    """For each model on the node: its id, where it would go now ("" when nowhere), and why not."""
    targets = _targets(node_id)
    found = []
    for placement in _placements(node_id):
        why = _why_not(placement, (), ())
        choice = why or choose(placement, targets)
        where = choice.node_id if isinstance(choice, Choice) else ""
        found.append((placement.model_id, where, "" if where else str(choice)))
    return found


def refused(state: Mapping[str, Any], model_id: str, detail: str) -> dict[str, Any]:
    """State that knows of one more refusal, which counts for a moment."""
    told = {"at": clock.now().isoformat(), "detail": detail}
    return {_REFUSED: {**state.get(_REFUSED, {}), model_id: told}}


def _refused_lately(state: Mapping[str, Any]) -> dict[str, str]:
    since = clock.now() - LEFT_FOR
    return {
        model_id: f"Model {model_id} cannot be moved now: {told['detail']}"
        for model_id, told in state.get(_REFUSED, {}).items()
        if datetime.fromisoformat(told["at"]) > since
    }


def choose(placement: Placement, targets: Sequence[Node]) -> Choice | str:
    """Where the model of `placement` goes; the reason, as a sentence, when it can go nowhere.

    The planner's first choice. Where it cannot tell whether the model fits, the target's own check decides: the model
    goes on serving here until it serves there.
    """
    model = placement.model
    standing = {other.node_id_text for other in model.placements.all()}
    ranking = planning.rank_wanted(of_model(model), standing=standing, ask=False)
    serving = {node.pk for node in targets}
    for best in ranking.choices:
        if best.node_id in serving:
            return Choice(model.pk, best.node_id, best.gpu_uuids)
    unknown = {refusal.node_id for refusal in ranking.refusals if refusal.code == _FIT_UNKNOWN}
    reasons = [refusal.message for refusal in ranking.refusals if refusal.node_id in serving - unknown]
    for node in targets:
        if node.pk not in unknown:
            continue
        facts = apply.facts_of(node)
        gpus = _gpus(placement, facts.capabilities)
        found = feasible.problems(feasible.Wish(model.runtime, model.delivery, gpus), node.pk, facts)
        if not found:
            return Choice(model.pk, node.pk, gpus)
        reasons.append(found[0].message)
    if not reasons:
        return f"Model {model.pk} has nowhere to go: no other node serves and takes work."
    return f"Model {model.pk} has nowhere to go. {' '.join(dict.fromkeys(reasons))}"


def _placements(node_id: str) -> list[Placement]:
    rows = Placement.objects.filter(node_id_text=node_id).select_related("model__hold")
    return list(rows.prefetch_related("model__sources", "model__placements").order_by("created_at", "pk"))


def _targets(node_id: str) -> list[Node]:
    """Nodes that take models now, those with the fewest first."""
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
    """Moves of this evacuation that failed lately, by model, the newest first."""
    rows = Operation.objects.filter(
        kind="move", outcome=FAILED, input__onBehalfOf=evacuation_id, finished_at__gt=clock.now() - AGAIN_AFTER
    )
    found: dict[str, list[Operation]] = {}
    for row in rows.order_by("-finished_at"):
        found.setdefault(row.model_id_text, []).append(row)
    return found


def _gpus(placement: Placement, capabilities: Capabilities | None) -> tuple[str, ...]:
    """As many GPUs as the model has now, of one kind, the freest of placements first."""
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
