"""View-models of the placement in the editor: nodes and GPUs with their fit, and the fit of the current choice."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from agent.common.gpu_label import gone_gpu_label
from agent.wire.capability import Delivery, MemoryModel
from mirbad.web import parts
from mirbad.web.parts import Badge, Bar
from models_app.artifacts import shapes
from models_app.fit import ModelShape
from models_app.fit.verdict import WORDS, FitLine, FitState
from models_app.placement import candidates, fit_preview, planner, snapshot
from models_app.placement.fleet import FleetCard, Machine
from models_app.placement.workload import Workload
from nodes.models import Node

BADGES: dict[FitState, Badge] = {
    FitState.FITS: Badge("Fits", "ok", "circle-check"),
    FitState.TIGHT: Badge("Fits tightly", "warn", "triangle-alert"),
    FitState.DOES_NOT_FIT: Badge("Does not fit now", "bad", "circle-x"),
    FitState.UNKNOWN: Badge("Fit unknown", "unknown", "circle-help"),
}
_CHOOSE = Badge("Choose a GPU", "idle", "circle-dashed")
_SHORT = {
    "memory_short": WORDS[FitState.DOES_NOT_FIT],
    "tensor_parallel_mismatch": WORDS[FitState.DOES_NOT_FIT],
    "budget_too_small": "budget too small",
    "fit_unknown": WORDS[FitState.UNKNOWN],
    "node_draining": "draining",
    "node_offline": "offline",
    "node_incompatible": "incompatible",
    "node_pending_takeover": "waiting for takeover",
    "runtime_unavailable": "cannot run this engine",
    "gpus_required": "no usable GPU",
    "image_missing": "no image",
    "spec_rejected": "image not approved",
}
_MOST_REJECTIONS = 40


@dataclass(frozen=True, slots=True)
class EditedPlacement:
    """The edited placement: of a `new` model, or of one on node `placed_on`, which only a move changes."""

    placed_on: str = ""
    new: bool = False


@dataclass(frozen=True, slots=True)
class NodeOption:
    """A node to choose; `words` are its name, its state and the fit there."""

    id: str
    words: str
    selected: bool
    disabled: bool


@dataclass(frozen=True, slots=True)
class GpuOption:
    """A GPU to tick. `note` is its free memory, or the reason against it; `gone` is no longer reported."""

    uuid: str
    words: str
    note: str
    checked: bool
    disabled: bool
    gone: bool = False


@dataclass(frozen=True, slots=True)
class FitRow:
    """One GPU or the host: needed and usable memory."""

    name: str
    bar: Bar
    badge: Badge
    note: str


@dataclass(frozen=True, slots=True)
class FitView:
    """The fit of the current choice, and the values that it is based on."""

    node_id: str
    badge: Badge
    reasons: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    lines: tuple[FitRow, ...] = ()
    parts: tuple[tuple[str, str, str], ...] = ()
    parts_of: str = ""
    inputs: tuple[tuple[str, str, str], ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    age: str = ""
    speed: str = ""


@dataclass(frozen=True, slots=True)
class PlacementView:
    """The placement section of the editor. `fit` is None for the reason `missing`; `fixed` allows no choice of node."""

    nodes: tuple[NodeOption, ...]
    gpus: tuple[GpuOption, ...]
    fit: FitView | None
    missing: str
    candidates: tuple[planner.Candidate, ...]
    rejections: tuple[planner.Rejection, ...]
    fixed: bool = False
    image: str = ""
    """The image that an empty field leads to on the chosen node."""


def of(
    workload: Workload | None, node_id: str, gpu_uuids: Sequence[str], *, edited: EditedPlacement, missing: str = ""
) -> PlacementView:
    """Return the placement of `workload` with this node and these GPUs chosen. Calls nodes and the hub.

    `workload` is None while the form is incomplete; `missing` then names the missing value.
    """
    fleet = snapshot.take()
    gpu_uuids = _on_that_node(fleet, node_id, gpu_uuids, edited.placed_on)
    ranking, fit = None, None
    if workload is not None:
        shape = shapes.find(workload.source, fleet.reports, first=node_id)
        ranking = _ranked(workload, fleet, shape)
        if any(machine.node_id == node_id for machine in fleet.machines):
            fit = _fit(fit_preview.on_node(workload, node_id, gpu_uuids))
    found = _places(fleet, ranking, fit, (node_id, gpu_uuids), edited, missing)
    return replace(found, image=_image(workload, fleet, node_id)) if workload is not None else found


def _image(workload: Workload, fleet: snapshot.FleetSnapshot, node_id: str) -> str:
    machine = next((machine for machine in fleet.machines if machine.node_id == node_id), None)
    if machine is None or workload.delivery != Delivery.CONTAINER:
        return "Default: the node's image, then the master's."
    image, digest = machine.images.get(workload.runtime, ("", ""))
    if not image:
        return f"{node_id} has no default image for {workload.runtime}; enter one."
    return f"Default: the image of {node_id} ({image}{'@' + digest[:19] + '…' if digest else ''})."


def bare(node_id: str, gpu_uuids: Sequence[str], edited: EditedPlacement) -> PlacementView:
    """Return the placement as `of` does, without calling nodes or the hub: the first view of a page."""
    fleet = snapshot.take()
    gpu_uuids = _on_that_node(fleet, node_id, gpu_uuids, edited.placed_on)
    return _places(fleet, None, None, (node_id, gpu_uuids), edited, "")


def _on_that_node(fleet: snapshot.FleetSnapshot, node_id: str, uuids: Sequence[str], placed_on: str) -> Sequence[str]:
    """Drop GPUs of a node that was chosen before; on the model's own node a GPU that is gone stays."""
    machine = next((machine for machine in fleet.machines if machine.node_id == node_id), None)
    if machine is None or node_id == placed_on:
        return uuids
    there = {card.uuid for card in machine.cards}
    return tuple(uuid for uuid in uuids if uuid in there)


def best(workload: Workload) -> planner.Ranking:
    """Rank every node for `workload`."""
    fleet = snapshot.take()
    return _ranked(workload, fleet, shapes.find(workload.source, fleet.reports))


def _ranked(workload: Workload, fleet: snapshot.FleetSnapshot, shape: ModelShape) -> planner.Ranking:
    return planner.plan(candidates.plan_request(workload, shape), fleet.with_weights(workload.source))


def _places(
    fleet: snapshot.FleetSnapshot,
    ranking: planner.Ranking | None,
    fit: FitView | None,
    chosen: tuple[str, Sequence[str]],
    edited: EditedPlacement,
    missing: str,
) -> PlacementView:
    node_id, uuids = chosen
    members = [machine for machine in fleet.machines if machine.facts.lifecycle == "approved"]
    machine = next((machine for machine in members if machine.node_id == node_id), None)
    shown = [machine for machine in members if edited.placed_on in ("", machine.node_id)]
    return PlacementView(
        nodes=_nodes(shown, ranking, node_id, edited.placed_on),
        gpus=gpu_options(machine, node_id, uuids),
        fit=fit,
        missing=missing,
        candidates=ranking.candidates[:5] if ranking else (),
        rejections=ranking.rejections[:_MOST_REJECTIONS] if ranking else (),
        fixed=bool(edited.placed_on) or (edited.new and len(members) == 1),
    )


def _nodes(
    machines: Iterable[Machine], ranking: planner.Ranking | None, node_id: str, placed_on: str
) -> tuple[NodeOption, ...]:
    names = dict(Node.objects.approved().values_list("pk", "display_name"))
    fits = {choice.node_id: choice.verdict.words for choice in ranking.candidates} if ranking else {}
    rejected = {rejection.node_id: rejection for rejection in ranking.rejections} if ranking else {}
    found = []
    for machine in machines:
        words = [names.get(machine.node_id) or machine.node_id]
        rejection = rejected.get(machine.node_id) or planner.reject_node(machine)
        if rejection is not None:
            words.append(_SHORT.get(rejection.code, WORDS[FitState.DOES_NOT_FIT]))
        elif machine.node_id in fits:
            words.append(fits[machine.node_id])
        draining = rejection is not None and rejection.code == "node_draining"
        blocked = draining and machine.node_id not in (placed_on, node_id)
        found.append(NodeOption(machine.node_id, " · ".join(words), machine.node_id == node_id, blocked))
    return tuple(found)


def gpu_options(machine: Machine | None, node_id: str, chosen: Collection[str]) -> tuple[GpuOption, ...]:
    """Return the cards of a node as choices: those that cannot join a ticked one are disabled, those gone are kept."""
    known = machine.facts.capabilities if machine is not None else None
    if machine is None or (known is not None and known.memory_model == MemoryModel.UNIFIED and not chosen):
        return ()
    cards = machine.cards
    ticked = [card for card in cards if card.uuid in chosen]
    kinds = {card.kind for card in ticked}
    options = [_gpu(card, checked=card.uuid in chosen, kinds=kinds) for card in cards]
    there = {card.uuid for card in cards}
    options += [
        GpuOption(uuid, gone_gpu_label(node_id), uuid, checked=True, disabled=False, gone=True)
        for uuid in dict.fromkeys(chosen)
        if uuid not in there
    ]
    return tuple(options)


def _gpu(card: FleetCard, *, checked: bool, kinds: Collection[tuple[str, int | None]]) -> GpuOption:
    words = parts.gpu_words(card.capacity.label, card.name, card.memory)
    usable = card.capacity.usable
    free = parts.NOT_REPORTED if usable is None else f"{parts.size(usable)} free"
    reserve = f" after reserve of {parts.size(card.capacity.reserve)}" if card.capacity.reserve else ""
    others = f" · {parts.plural(card.models, 'model')} placed" if card.models else ""
    note = card.problem or f"{free}{reserve}{others}"
    other = bool(kinds) and card.kind not in kinds
    if other and not checked and not card.unusable:
        note = "Differs in model or memory from the selected GPUs, so they cannot be combined."
    return GpuOption(card.uuid, words, note, checked=checked, disabled=(other or card.unusable) and not checked)


def _fit(fit: fit_preview.FitPreview) -> FitView:
    problems = tuple((problem.code, problem.message) for problem in fit.problems)
    if any(code == "gpus_required" for code, _ in problems):
        # The fit on the processor does not matter for an engine that needs a GPU.
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
        age="The node did not report its free memory." if fit.age_seconds is None else "",
        speed="" if rate is None else f"about {rate:.1f} tokens/s on its CPU",
    )


def _line(line: FitLine) -> FitRow:
    room = line.capacity
    usable = room.usable
    label = room.label
    if line.need is None or usable is None:
        text = f"needs {parts.size(line.need)} of {parts.size(usable)}" if line.need is not None else "need unknown"
        bar = Bar(label, None, usable, text)
    else:
        shown = min(line.need, usable)
        short = line.state is FitState.DOES_NOT_FIT
        text = f"needs {parts.size(line.need)} of {parts.size(usable)}"
        bar = Bar(label, usable if short else shown, usable, text, judged=short)
    kept = [f"{parts.size(room.total)} total"] if room.total is not None else []
    kept += [f"{parts.size(room.reserve)} reserved"] if room.reserve else []
    kept += [f"{parts.size(room.promised)} reserved for starting models"] if room.promised else []
    return FitRow(label, bar, BADGES[line.state], " · ".join(kept))
