"""View-models of the editor's placement: nodes and GPUs with what they say of a fit, and the fit itself."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from agent.wire.capability import Delivery, MemoryModel
from mirbad.web import parts
from mirbad.web.parts import Badge, Bar
from models_app.artifacts import shapes
from models_app.fit import ModelShape
from models_app.fit.verdict import WORDS, Line, State
from models_app.placement import fitting, planner, planning, snapshot
from models_app.placement.fleet import Card, Machine
from models_app.placement.wanted import Wanted
from nodes.models import Node

BADGES: dict[State, Badge] = {
    State.FITS: Badge("Fits", "ok", "circle-check"),
    State.TIGHT: Badge("Fits tightly", "warn", "triangle-alert"),
    State.DOES_NOT_FIT: Badge("Does not fit now", "bad", "circle-x"),
    State.UNKNOWN: Badge("Fit unknown", "unknown", "circle-help"),
}
_CHOOSE = Badge("Choose a GPU", "idle", "circle-dashed")
_SHORT = {
    "memory_short": WORDS[State.DOES_NOT_FIT],
    "tensor_parallel_mismatch": WORDS[State.DOES_NOT_FIT],
    "budget_too_small": "budget too small",
    "fit_unknown": WORDS[State.UNKNOWN],
    "node_draining": "draining",
    "node_offline": "offline",
    "node_incompatible": "incompatible",
    "node_pending_takeover": "waits for a takeover",
    "runtime_unavailable": "cannot run this engine",
    "gpus_required": "no usable GPU",
    "image_missing": "no image for it",
    "spec_rejected": "image not approved",
}
_MOST_REFUSALS = 40


@dataclass(frozen=True, slots=True)
class Seat:
    """Whose placement it is: of a `new` model, or of one that has it on `standing`, which it leaves by a move only."""

    standing: str = ""
    new: bool = False


@dataclass(frozen=True, slots=True)
class NodeOption:
    """A node to choose; `words` are its name, its state and how the model fits there."""

    id: str
    words: str
    selected: bool
    disabled: bool


@dataclass(frozen=True, slots=True)
class GpuOption:
    """A GPU to tick. `note` says what is free, or why it does not go with the others; `gone` is no longer there."""

    uuid: str
    words: str
    note: str
    checked: bool
    disabled: bool
    gone: bool = False


@dataclass(frozen=True, slots=True)
class FitLine:
    """One GPU or the host: what is needed of what can be used."""

    name: str
    bar: Bar
    badge: Badge
    note: str


@dataclass(frozen=True, slots=True)
class FitView:
    """Whether the model fits where the editor has it now, and on what that rests."""

    node_id: str
    badge: Badge
    reasons: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    lines: tuple[FitLine, ...] = ()
    parts: tuple[tuple[str, str, str], ...] = ()
    parts_of: str = ""
    inputs: tuple[tuple[str, str, str], ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    age: str = ""
    speed: str = ""


@dataclass(frozen=True, slots=True)
class Places:
    """All that the editor shows of placement. `fit` None: `lacking` says why; `fixed` leaves no choice of node."""

    nodes: tuple[NodeOption, ...]
    gpus: tuple[GpuOption, ...]
    fit: FitView | None
    lacking: str
    choices: tuple[planner.Choice, ...]
    refusals: tuple[planner.Refusal, ...]
    fixed: bool = False
    image: str = ""
    """What an empty image leads to on the chosen node."""


def of(wanted: Wanted | None, node_id: str, gpu_uuids: Sequence[str], *, seat: Seat, lacking: str = "") -> Places:
    """The placement of `wanted` (None: not typed far enough, `lacking` says what) with this node and these GPUs chosen.

    Asks nodes and the hub.
    """
    fleet = snapshot.take()
    gpu_uuids = _on_that_node(fleet, node_id, gpu_uuids, seat.standing)
    ranking, fit = None, None
    if wanted is not None:
        shape = shapes.find(wanted.source, fleet.keepers, first=node_id)
        ranking = _ranked(wanted, fleet, shape)
        if any(machine.node_id == node_id for machine in fleet.machines):
            fit = _fit(fitting.on_node(wanted, node_id, gpu_uuids))
    found = _places(fleet, ranking, fit, (node_id, gpu_uuids), seat, lacking)
    return replace(found, image=_image(wanted, fleet, node_id)) if wanted is not None else found


def _image(wanted: Wanted, fleet: snapshot.Fleet, node_id: str) -> str:
    machine = next((machine for machine in fleet.machines if machine.node_id == node_id), None)
    if machine is None or wanted.delivery != Delivery.CONTAINER:
        return "Empty: the default of the node, then of the master."
    image, digest = machine.images.get(wanted.runtime, ("", ""))
    if not image:
        return f"{node_id} has no default image for {wanted.runtime}: name one."
    return f"Empty: the default image of {node_id} ({image}{'@' + digest[:19] + '…' if digest else ''})."


def bare(node_id: str, gpu_uuids: Sequence[str], seat: Seat) -> Places:
    """`of` without asking anybody: what a page begins with."""
    fleet = snapshot.take()
    gpu_uuids = _on_that_node(fleet, node_id, gpu_uuids, seat.standing)
    return _places(fleet, None, None, (node_id, gpu_uuids), seat, "")


def _on_that_node(fleet: snapshot.Fleet, node_id: str, uuids: Sequence[str], standing: str) -> Sequence[str]:
    """What was ticked for another node before counts no more; where the model stands, a card that is gone does."""
    machine = next((machine for machine in fleet.machines if machine.node_id == node_id), None)
    if machine is None or node_id == standing:
        return uuids
    there = {card.uuid for card in machine.cards}
    return tuple(uuid for uuid in uuids if uuid in there)


def best(wanted: Wanted) -> planner.Ranking:
    """Every node for `wanted`, the best first."""
    fleet = snapshot.take()
    return _ranked(wanted, fleet, shapes.find(wanted.source, fleet.keepers))


def _ranked(wanted: Wanted, fleet: snapshot.Fleet, shape: ModelShape) -> planner.Ranking:
    return planner.plan(planning.wish_of(wanted, shape), fleet.with_weights(wanted.source))


def _places(
    fleet: snapshot.Fleet,
    ranking: planner.Ranking | None,
    fit: FitView | None,
    chosen: tuple[str, Sequence[str]],
    seat: Seat,
    lacking: str,
) -> Places:
    node_id, uuids = chosen
    members = [machine for machine in fleet.machines if machine.facts.lifecycle == "approved"]
    machine = next((machine for machine in members if machine.node_id == node_id), None)
    shown = [machine for machine in members if seat.standing in ("", machine.node_id)]
    return Places(
        nodes=_nodes(shown, ranking, node_id, seat.standing),
        gpus=gpu_options(machine, node_id, uuids),
        fit=fit,
        lacking=lacking,
        choices=ranking.choices[:5] if ranking else (),
        refusals=ranking.refusals[:_MOST_REFUSALS] if ranking else (),
        fixed=bool(seat.standing) or (seat.new and len(members) == 1),
    )


def _nodes(
    machines: Iterable[Machine], ranking: planner.Ranking | None, node_id: str, standing: str
) -> tuple[NodeOption, ...]:
    names = dict(Node.objects.approved().values_list("pk", "display_name"))
    said = {choice.node_id: choice.verdict.words for choice in ranking.choices} if ranking else {}
    refused = {refusal.node_id: refusal for refusal in ranking.refusals} if ranking else {}
    found = []
    for machine in machines:
        words = [names.get(machine.node_id) or machine.node_id]
        if machine.facts.draining:
            words.append("draining")
        elif machine.away:
            words.append(_SHORT.get(machine.away_code, "offline"))
        elif machine.node_id in said:
            words.append(said[machine.node_id])
        elif machine.node_id in refused:
            words.append(_SHORT.get(refused[machine.node_id].code, WORDS[State.DOES_NOT_FIT]))
        blocked = machine.facts.draining and machine.node_id not in (standing, node_id)
        found.append(NodeOption(machine.node_id, " · ".join(words), machine.node_id == node_id, blocked))
    return tuple(found)


def gpu_options(machine: Machine | None, node_id: str, chosen: Collection[str]) -> tuple[GpuOption, ...]:
    """The cards of a node as choices; those that cannot work with a ticked one are disabled, those gone are kept."""
    known = machine.facts.capabilities if machine is not None else None
    if machine is None or (known is not None and known.memory_model == MemoryModel.UNIFIED and not chosen):
        return ()
    cards = machine.cards
    ticked = [card for card in cards if card.uuid in chosen]
    kinds = {card.kind for card in ticked}
    options = [_gpu(card, checked=card.uuid in chosen, kinds=kinds) for card in cards]
    there = {card.uuid for card in cards}
    options += [
        GpuOption(uuid, f"GPU — · no longer on {node_id}", uuid, checked=True, disabled=False, gone=True)
        for uuid in dict.fromkeys(chosen)
        if uuid not in there
    ]
    return tuple(options)


def _gpu(card: Card, *, checked: bool, kinds: Collection[tuple[str, int | None]]) -> GpuOption:
    words = f"{card.room.label} · {card.name or 'name not reported'} · {parts.size(card.memory)}"
    usable = card.room.usable
    free = parts.NOT_REPORTED if usable is None else f"{parts.size(usable)} can be used"
    reserve = f" after a reserve of {parts.size(card.room.reserve)}" if card.room.reserve else ""
    others = f" · {parts.plural(card.models, 'model')} placed" if card.models else ""
    note = card.problem or f"{free}{reserve}{others}"
    other = bool(kinds) and card.kind not in kinds
    if other and not checked:
        note = "Another model or memory than the ticked ones: they cannot work as one."
    return GpuOption(card.uuid, words, note, checked=checked, disabled=other and not checked)


def _fit(fit: fitting.Fit) -> FitView:
    problems = tuple((problem.code, problem.message) for problem in fit.problems)
    if any(code == "gpus_required" for code, _ in problems):
        # Nobody asks how it would do on the processor.
        return FitView(fit.node_id, _CHOOSE, problems=problems)
    need = fit.estimate
    rate = fit.tokens_per_second
    count = len(fit.gpu_uuids)
    return FitView(
        node_id=fit.node_id,
        badge=BADGES[fit.state],
        reasons=fit.verdict.reasons,
        questions=fit.questions,
        lines=tuple(_line(line) for line in fit.verdict.lines),
        parts=tuple((part.name, parts.size(part.bytes), part.words) for part in need.parts),
        parts_of="on each GPU" if count > 1 else "on the GPU" if count else "of the host",
        inputs=tuple((item.name, item.value, item.source) for item in need.inputs),
        problems=problems,
        age="The node did not tell its free memory." if fit.age_seconds is None else "",
        speed="" if rate is None else f"about {rate:.1f} tokens a second on its processor",
    )


def _line(line: Line) -> FitLine:
    room = line.room
    usable = room.usable
    label = room.label if room.uuid else "Host memory"
    if line.need is None or usable is None:
        text = f"needs {parts.size(line.need)} of {parts.size(usable)}" if line.need is not None else "need unknown"
        bar = Bar(label, None, usable, text)
    else:
        shown = min(line.need, usable)
        short = line.state is State.DOES_NOT_FIT
        text = f"needs {parts.size(line.need)} of {parts.size(usable)}"
        bar = Bar(label, usable if short else shown, usable, text, judged=short)
    kept = [f"{parts.size(room.total)} in all"] if room.total is not None else []
    kept += [f"{parts.size(room.reserve)} reserved"] if room.reserve else []
    kept += [f"{parts.size(room.promised)} promised to starts"] if room.promised else []
    return FitLine(label, bar, BADGES[line.state], " · ".join(kept))
