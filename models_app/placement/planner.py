"""Ranks the places where a model may go, and says of every other node why not. Pure: plans on what was seen once.

Better is: what fits with room to spare before what fits tightly, fewer cards, a node that has the weights, fewer models
on the cards and the node, and of several holes the smallest that is enough, so that large ones stay.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent.wire import images
from agent.wire.capability import Delivery, MemoryModel, Runtime
from models_app.fit import Estimate, ModelShape, ServePlan, estimate
from models_app.fit.speed import tokens_per_second
from models_app.fit.verdict import State, Verdict, judge
from models_app.placement import feasible
from models_app.placement.fleet import Card, Machine

MOST_CARDS = 16
_STEP = 1024**3
"""Holes that differ by less count as the same."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be placed. `avoid` are nodes that are out of the question, each with its sentence.

    `image` and `image_digest` are its own; without them a container runs the node's default.
    """

    runtime: str
    delivery: str
    shape: ModelShape
    plan: ServePlan
    avoid: dict[str, str] = field(default_factory=dict)
    image: str = ""
    image_digest: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One place that is good. `why` are the reasons for its rank; `rank` sorts, the smallest first."""

    node_id: str
    gpu_uuids: tuple[str, ...]
    gpu_labels: tuple[str, ...]
    verdict: Verdict
    estimate: Estimate
    why: tuple[str, ...]
    rank: tuple[int, ...]
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """One node where it cannot go: a code for programs, a sentence for a person, and all problems where several are."""

    node_id: str
    code: str
    message: str
    problems: tuple[feasible.Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Ranking:
    """Every node, either among `choices` (the best first) or among `refusals`."""

    choices: tuple[Choice, ...]
    refusals: tuple[Refusal, ...]

    @property
    def best(self) -> Choice | None:
        """The first choice."""
        return self.choices[0] if self.choices else None


class NeedOn(Protocol):
    """What it needs on so many cards."""

    def __call__(self, cards: int, *, shares_memory: bool = False) -> Estimate:
        """The estimate."""
        ...


class _Needs:
    """The estimate by the number of cards, made once for all nodes."""

    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self._made: dict[tuple[int, bool], Estimate] = {}

    def on(self, cards: int, *, shares_memory: bool = False) -> Estimate:
        key = (cards, shares_memory)
        if key not in self._made:
            self._made[key] = estimate(self._wish.shape, self._wish.plan.on(cards, shares_memory=shares_memory))
        return self._made[key]


def plan(wish: Wish, fleet: Iterable[Machine]) -> Ranking:
    """Where `wish` may go in `fleet`."""
    needs = _Needs(wish)
    choices: list[Choice] = []
    refusals: list[Refusal] = []
    for machine in fleet:
        found = consider(wish, machine, needs.on)
        if isinstance(found, Choice):
            choices.append(found)
        else:
            refusals.append(found)
    choices.sort(key=lambda choice: (*choice.rank, choice.node_id))
    refusals.sort(key=lambda refusal: refusal.node_id)
    return Ranking(tuple(choices), tuple(refusals))


def consider(wish: Wish, machine: Machine, needs: NeedOn) -> Choice | Refusal:
    """The best place on one node, or why there is none."""
    node_id = machine.node_id
    if words := wish.avoid.get(node_id):
        return Refusal(node_id, "placed_already", words)
    bare = feasible.Wish(wish.runtime, wish.delivery)
    found = [
        problem
        for problem in feasible.problems(bare, node_id, machine.facts)
        # The cards are what is looked for.
        if problem.code != "gpus_required"
    ]
    if found:
        return Refusal(node_id, found[0].code, found[0].message, tuple(found))
    if machine.away:
        return Refusal(node_id, machine.away_code, machine.away)
    if refusal := _image_refused(wish, machine):
        return refusal
    if _wants_cards(wish, machine):
        return _on_cards(wish, machine, needs)
    return _on_host(wish, machine, needs)


def _image_refused(wish: Wish, machine: Machine) -> Refusal | None:
    """Why the node would not run the image, by the rule that it goes by itself."""
    known = machine.facts.capabilities
    if wish.delivery != Delivery.CONTAINER or known is None:
        return None
    image, digest = (wish.image, wish.image_digest) if wish.image else machine.images.get(wish.runtime, ("", ""))
    if not image:
        text = f"The model names no image, and node {machine.node_id!r} has no default one."
        return Refusal(machine.node_id, "image_missing", text)
    try:
        images.admitted(image, digest or None, approved=known.approved_images, allow_tag_pulls=known.allow_tag_pulls)
    except images.BadImage as error:
        return Refusal(machine.node_id, "spec_rejected", f"Node {machine.node_id!r}: {error}")
    return None


def cards_for(wish: Wish, machine: Machine) -> tuple[str, ...]:
    """The GPUs of one node that `wish` would get, fitting or not; none where it runs on the host."""
    if not _wants_cards(wish, machine) or not machine.kinds:
        return ()
    needs = _Needs(wish)
    found = _on_cards(wish, machine, needs.on)
    if isinstance(found, Choice):
        return found.gpu_uuids
    cards = max(machine.kinds.values(), key=len)
    count = _counts(len(cards))[-1]
    return tuple(card.uuid for card in _smallest_holes(cards, count, needs.on(count)))


def _wants_cards(wish: Wish, machine: Machine) -> bool:
    """Whether the engine is to run on cards with memory of their own there."""
    known = machine.facts.capabilities
    if known is None or known.memory_model != MemoryModel.DISCRETE or not machine.cards:
        return False
    if wish.runtime == Runtime.VLLM:
        return True
    # The llama.cpp that comes with the agent, which states its version, has no GPU code.
    own = next((o for o in known.runtimes if o.runtime == wish.runtime and o.delivery == wish.delivery), None)
    return wish.runtime == Runtime.LLAMA_CPP and (wish.delivery == Delivery.CONTAINER or not (own and own.version))


def _on_host(wish: Wish, machine: Machine, needs: NeedOn) -> Choice | Refusal:
    need = needs(0, shares_memory=machine.has_gpu_with_shared_memory and wish.runtime != Runtime.SIM)
    verdict = judge(need, (), machine.host)
    if refusal := _refused(machine, need, verdict):
        return refusal
    rate = None
    if wish.runtime != Runtime.SIM and not machine.has_gpu_with_shared_memory:
        rate = tokens_per_second(need.active_bytes, machine.bytes_per_second)
    return _choice(machine, (), verdict, need, rate)


def _on_cards(wish: Wish, machine: Machine, needs: NeedOn) -> Choice | Refusal:
    kinds = machine.kinds
    if not kinds:
        return Refusal(machine.node_id, "gpus_required", f"No GPU of node {machine.node_id!r} can be used now.")
    best: Choice | None = None
    worst: Refusal | None = None
    for count in _counts(max(len(cards) for cards in kinds.values())):
        need = needs(count)
        for cards in kinds.values():
            if len(cards) < count:
                continue
            chosen = _smallest_holes(cards, count, need)
            verdict = judge(need, [card.room for card in chosen], machine.host)
            refusal = _refused(machine, need, verdict)
            if refusal is not None:
                worst = refusal
                continue
            choice = _choice(machine, chosen, verdict, need, None)
            if best is None or choice.rank < best.rank:
                best = choice
        if best is not None:
            return best
    assert worst is not None  # noqa: S101 - with a kind of card there was a count of 1
    return worst


def _counts(most: int) -> Sequence[int]:
    """How many cards may work as one: a card, or twice as many again and again."""
    return [count for count in (1, 2, 4, 8, MOST_CARDS) if count <= most]


def _smallest_holes(cards: Sequence[Card], count: int, need: Estimate) -> tuple[Card, ...]:
    """`count` cards: those with the fewest models and the least room that is enough; else those with the most room."""

    def wanted(card: Card) -> int | None:
        if need.gpu_bytes is None:
            return None
        claimed = int(need.claim * card.room.total) if need.claim and card.room.total else 0
        return max(need.gpu_bytes, claimed)

    roomy = [
        (card.models, (usable - (least or 0)) // _STEP, at, card)
        for at, card in enumerate(cards)
        if (usable := card.room.usable) is not None and (least := wanted(card)) is not None and usable >= least
    ]
    if len(roomy) >= count:
        roomy.sort(key=lambda item: item[:3])
        return tuple(item[3] for item in sorted(roomy[:count], key=lambda item: item[2]))
    largest = sorted(range(len(cards)), key=lambda at: -(cards[at].room.usable or 0))[:count]
    return tuple(cards[at] for at in sorted(largest))


def _refused(machine: Machine, need: Estimate, verdict: Verdict) -> Refusal | None:
    if verdict.state is State.DOES_NOT_FIT:
        code = need.problems[0][0] if need.problems else "memory_short"
        return Refusal(machine.node_id, code, verdict.reasons[0])
    if verdict.state is State.UNKNOWN:
        reason = verdict.reasons[0] if verdict.reasons else "what the model needs is not known."
        text = f"It is not known whether it fits ({reason.rstrip('.')}); choose the place yourself, or give a budget."
        return Refusal(machine.node_id, "fit_unknown", text)
    return None


def _choice(machine: Machine, cards: Sequence[Card], verdict: Verdict, need: Estimate, rate: float | None) -> Choice:
    left = min((line.left for line in verdict.lines if line.left is not None), default=0)
    models = max((card.models for card in cards), default=machine.models)
    rank = (
        int(verdict.state is State.TIGHT),
        len(cards),
        int(not machine.holds_weights),
        models,
        machine.models,
        left // _STEP,
    )
    return Choice(
        node_id=machine.node_id,
        gpu_uuids=tuple(card.uuid for card in cards),
        gpu_labels=tuple(card.room.label for card in cards),
        verdict=verdict,
        estimate=need,
        why=_why(machine, cards, verdict, models, left),
        rank=rank,
        tokens_per_second=rate,
    )


def _why(machine: Machine, cards: Sequence[Card], verdict: Verdict, models: int, left: int) -> tuple[str, ...]:
    where = f"on {', '.join(card.room.label for card in cards)}" if cards else "on the host"
    others = "no other model" if not models else f"{models} other model{'' if models == 1 else 's'}"
    return (
        f"{verdict.words} {where}",
        "has the weights" if machine.holds_weights else "has to download the weights",
        f"{others} {'on these cards' if cards else 'on the node'}",
        f"{left / _STEP:.1f} GiB would be left",
    )
