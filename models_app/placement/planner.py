"""The ranking of nodes for a model, with the reason against every other node. Pure: plans on one snapshot.

A candidate ranks higher if the model fits with memory to spare, needs fewer cards, has the weights on the node,
shares cards and node with fewer models, and leaves the least memory unused, so that large gaps stay.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent.common import budget, image_rules, reason
from agent.wire.capability import Delivery, MemoryModel, Runtime
from mirbad.kernel.sizes import size
from models_app.fit import Estimate, ModelShape, ServePlan, estimate
from models_app.fit.speed import tokens_per_second
from models_app.fit.verdict import FitState, FitVerdict, judge
from models_app.placement import feasible
from models_app.placement.fleet import FleetCard, Machine

MOST_CARDS = 16
_STEP = 1024**3
"""Free memory that differs by less counts as the same."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The input of a plan. `avoid` are excluded nodes, each with its reason.

    `image` and `image_digest` are the model's own; without them a container runs the node's default.
    """

    runtime: str
    delivery: str
    shape: ModelShape
    plan: ServePlan
    avoid: dict[str, str] = field(default_factory=dict)
    image: str = ""
    image_digest: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node and GPUs that the planner would choose. `why` explains its rank; `rank` sorts, the smallest first."""

    node_id: str
    gpu_uuids: tuple[str, ...]
    gpu_labels: tuple[str, ...]
    verdict: FitVerdict
    estimate: Estimate
    why: tuple[str, ...]
    rank: tuple[int, ...]
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """One node that cannot take the model: a code for programs, a sentence for a person, and all problems."""

    node_id: str
    code: str
    message: str
    problems: tuple[feasible.Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Ranking:
    """Every node, either among `candidates` (the best first) or among `rejections`."""

    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]

    @property
    def best(self) -> Candidate | None:
        """Return the first candidate."""
        return self.candidates[0] if self.candidates else None


class EstimateFor(Protocol):
    """An estimate by the number of cards."""

    def __call__(self, cards: int, *, shares_memory: bool = False) -> Estimate:
        """Return the estimate on `cards` cards."""
        ...


class _EstimateCache:
    """The estimate by the number of cards, computed once for all nodes."""

    def __init__(self, request: PlanRequest) -> None:
        self._wish = request
        self._made: dict[tuple[int, bool], Estimate] = {}

    def on(self, cards: int, *, shares_memory: bool = False) -> Estimate:
        key = (cards, shares_memory)
        if key not in self._made:
            self._made[key] = estimate(self._wish.shape, self._wish.plan.on(cards, shares_memory=shares_memory))
        return self._made[key]


def plan(request: PlanRequest, fleet: Iterable[Machine]) -> Ranking:
    """Rank the nodes of `fleet` for `request`."""
    estimates = _EstimateCache(request)
    candidates: list[Candidate] = []
    rejections: list[Rejection] = []
    for machine in fleet:
        found = consider(request, machine, estimates.on)
        if isinstance(found, Candidate):
            candidates.append(found)
        else:
            rejections.append(found)
    candidates.sort(key=lambda candidate: (*candidate.rank, candidate.node_id))
    rejections.sort(key=lambda rejection: rejection.node_id)
    return Ranking(tuple(candidates), tuple(rejections))


def consider(request: PlanRequest, machine: Machine, estimates: EstimateFor) -> Candidate | Rejection:
    """Return the best place on one node, or the reason against the node."""
    if rejection := reject(request, machine):
        return rejection
    if _wants_cards(request, machine):
        return _on_cards(machine, estimates)
    return _on_host(request, machine, estimates)


def reject(request: PlanRequest, machine: Machine) -> Rejection | None:
    """Return the reason against a node that no choice of GPUs changes, None when there is none.

    The one source of "why not on this node" for the ranking, for pages and for refusals. Memory is not judged here.
    """
    node_id = machine.node_id
    if text := request.avoid.get(node_id):
        return Rejection(node_id, "placed_already", text)
    if rejection := reject_node(machine) or _reject_root(request, machine):
        return rejection
    # With one GPU, so that an agent that cannot assign GPUs is rejected; problems of the GPUs depend on the choice.
    gpus = tuple(card.uuid for card in machine.cards[:1]) if _wants_cards(request, machine) else ()
    one_gpu = feasible.PlacementRequest(request.runtime, request.delivery, gpus)
    problems = feasible.problems(one_gpu, node_id, machine.facts)
    found = tuple(problem for problem in problems if problem.field != feasible.GPU_FIELD)
    if found:
        return Rejection(node_id, found[0].code, found[0].message, found)
    return _reject_image(request, machine)


def reject_node(machine: Machine) -> Rejection | None:
    """Return the reason against placing any model on a node now: its lifecycle, a drain, or its connection."""
    if problem := feasible.node_problem(machine.node_id, machine.facts):
        return Rejection(machine.node_id, problem.code, problem.message, (problem,))
    if machine.unavailable:
        return Rejection(machine.node_id, machine.unavailable_code, machine.unavailable)
    return None


def _reject_root(request: PlanRequest, machine: Machine) -> Rejection | None:
    """Return the rejection of a node whose models disk is not there: no engine that reads weights starts on it."""
    known = machine.facts.capabilities
    if known is None or request.runtime == Runtime.SIM:
        return None
    for found in reason.paired(known.warnings, known.warning_codes):
        if found.code == "models_root_changed":
            return Rejection(machine.node_id, "models_root_changed", f"Node {machine.node_id!r}: {found}")
    return None


def _reject_image(request: PlanRequest, machine: Machine) -> Rejection | None:
    """Return the rejection of an image that the node would refuse, by the rule of its agent."""
    known = machine.facts.capabilities
    if request.delivery != Delivery.CONTAINER or known is None:
        return None
    image, digest = request.image, request.image_digest
    if not image:
        image, digest = machine.images.get(request.runtime, ("", ""))
    if not image:
        text = f"The model has no image, and node {machine.node_id!r} has no default image."
        return Rejection(machine.node_id, "image_missing", text)
    try:
        image_rules.admitted(
            image, digest or None, approved=known.approved_images, allow_tag_pulls=known.allow_tag_pulls
        )
    except image_rules.BadImage as error:
        return Rejection(machine.node_id, "spec_rejected", f"Node {machine.node_id!r}: {error}")
    return None


def cards_for(request: PlanRequest, machine: Machine) -> tuple[str, ...]:
    """Return the GPUs of one node that `request` would get, fitting or not; none where it runs on the host."""
    if not _wants_cards(request, machine) or not machine.kinds:
        return ()
    estimates = _EstimateCache(request)
    found = _on_cards(machine, estimates.on)
    if isinstance(found, Candidate):
        return found.gpu_uuids
    cards = max(machine.kinds.values(), key=len)
    count = _counts(len(cards))[-1]
    return tuple(card.uuid for card in _smallest_holes(cards, count, estimates.on(count)))


def _wants_cards(request: PlanRequest, machine: Machine) -> bool:
    """Return whether the engine runs on cards with memory of their own there."""
    known = machine.facts.capabilities
    if known is None or known.memory_model != MemoryModel.DISCRETE or not machine.cards:
        return False
    if request.runtime == Runtime.VLLM:
        return True
    # The llama.cpp that is installed with the agent, which reports its version, has no GPU code.
    own = next((o for o in known.runtimes if o.runtime == request.runtime and o.delivery == request.delivery), None)
    return request.runtime == Runtime.LLAMA_CPP and (
        request.delivery == Delivery.CONTAINER or not (own and own.version)
    )


def _on_host(request: PlanRequest, machine: Machine, estimates: EstimateFor) -> Candidate | Rejection:
    need = estimates(0, shares_memory=machine.has_gpu_with_shared_memory and request.runtime != Runtime.SIM)
    verdict = judge(need, (), machine.host)
    if rejection := _rejected(machine, need, verdict):
        return rejection
    rate = None
    if request.runtime != Runtime.SIM and not machine.has_gpu_with_shared_memory:
        rate = tokens_per_second(need.active_bytes, machine.rate(request.plan))
    return _candidate(machine, (), verdict, need, rate)


def _on_cards(machine: Machine, estimates: EstimateFor) -> Candidate | Rejection:
    kinds = machine.kinds
    if not kinds:
        reasons = " ".join(dict.fromkeys(card.problem for card in machine.cards))
        text = f"Node {machine.node_id!r} has no usable GPU now. {reasons}"
        return Rejection(machine.node_id, "gpus_required", text)
    best: Candidate | None = None
    worst: Rejection | None = None
    for count in _counts(max(len(cards) for cards in kinds.values())):
        need = estimates(count)
        for cards in kinds.values():
            if len(cards) < count:
                continue
            chosen = _smallest_holes(cards, count, need)
            verdict = judge(need, [card.capacity for card in chosen], machine.host)
            rejection = _rejected(machine, need, verdict)
            if rejection is not None:
                worst = rejection
                continue
            candidate = _candidate(machine, chosen, verdict, need, None)
            if best is None or candidate.rank < best.rank:
                best = candidate
        if best is not None:
            return best
    assert worst is not None  # noqa: S101 - with a kind of card there was a count of 1
    return worst


def _counts(most: int) -> Sequence[int]:
    """Return the numbers of cards that may work as one: powers of two."""
    return [count for count in (1, 2, 4, 8, MOST_CARDS) if count <= most]


def _smallest_holes(cards: Sequence[FleetCard], count: int, need: Estimate) -> tuple[FleetCard, ...]:
    """Choose `count` cards of one kind.

    Those with the fewest models and the least free memory that is enough; without enough such cards, those with the
    most free memory.
    """

    def rank(at: int) -> tuple[int, ...]:
        usable, required = cards[at].capacity.usable, None
        if need.gpu_bytes is not None:
            required = budget.required(need.gpu_bytes, need.claim, cards[at].capacity.total)
        if usable is None or required is None or usable < required:
            return (True, -(usable or 0))  # behind every card that has enough
        return (False, cards[at].models, (usable - required) // _STEP)

    chosen = sorted(range(len(cards)), key=rank)[:count]
    return tuple(cards[at] for at in sorted(chosen))


def _rejected(machine: Machine, need: Estimate, verdict: FitVerdict) -> Rejection | None:
    if verdict.state is FitState.DOES_NOT_FIT:
        code = need.problems[0][0] if need.problems else "memory_short"
        return Rejection(machine.node_id, code, verdict.reasons[0])
    if verdict.state is FitState.UNKNOWN:
        reason = verdict.reasons[0] if verdict.reasons else "the memory that the model needs is unknown."
        text = f"Fit unknown ({reason.removesuffix('.')}); choose the node yourself, or set a memory budget."
        return Rejection(machine.node_id, "fit_unknown", text)
    return None


def _candidate(
    machine: Machine, cards: Sequence[FleetCard], verdict: FitVerdict, need: Estimate, rate: float | None
) -> Candidate:
    left = min(line.left for line in verdict.lines if line.left is not None)
    models = max((card.models for card in cards), default=machine.models)
    rank = (
        int(verdict.state is FitState.TIGHT),
        len(cards),
        int(not machine.holds_weights),
        models,
        machine.models,
        left // _STEP,
    )
    return Candidate(
        node_id=machine.node_id,
        gpu_uuids=tuple(card.uuid for card in cards),
        gpu_labels=tuple(card.capacity.label for card in cards),
        verdict=verdict,
        estimate=need,
        why=_why(machine, cards, verdict, models, left),
        rank=rank,
        tokens_per_second=rate,
    )


def _why(machine: Machine, cards: Sequence[FleetCard], verdict: FitVerdict, models: int, left: int) -> tuple[str, ...]:
    where = f"on {', '.join(card.capacity.label for card in cards)}" if cards else "on the host"
    others = "no other model" if not models else f"{models} other model{'' if models == 1 else 's'}"
    return (
        f"{verdict.words} {where}",
        "has the weights" if machine.holds_weights else "needs to download the weights",
        f"{others} {'on these GPUs' if cards else 'on the node'}",
        f"{size(left)} would remain free",
    )
