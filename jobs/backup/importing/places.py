"""The place of a model of a backup on one machine of this fleet, with equal GPUs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.wire.capability import MemoryModel, Runtime
from jobs.backup.records import ModelRecord
from mirbad.kernel.sizes import size
from models_app.placement import feasible
from models_app.placement.fleet import FleetCard, Machine


@dataclass(frozen=True, slots=True)
class FoundPlace:
    """A node and its GPUs, or the `problem` that keeps the model from it. `note` says what was chosen."""

    node_id: str
    gpu_uuids: tuple[str, ...] = ()
    note: str = ""
    problem: str = ""


def equal_cards(machine: Machine, count: int) -> tuple[FleetCard, ...]:
    """Return `count` cards of one kind: the largest, the lowest indices first; empty when there are not as many.

    Cards with a problem do not count, and cards whose memory is unknown are equal to no other.
    """
    order = {card.uuid: at for at, card in enumerate(machine.cards)}
    kinds = [cards for (_, memory), cards in machine.kinds.items() if len(cards) >= count and (memory or count == 1)]
    if not kinds:
        return ()
    return min(kinds, key=lambda cards: (-(cards[0].memory or 0), order[cards[0].uuid]))[:count]


def find(model: ModelRecord, gpu_uuids: tuple[str, ...], machine: Machine, *, same: bool) -> FoundPlace:
    """Return the place on `machine` of a placement that had `gpu_uuids`; `same` is whether that was its machine."""
    facts = machine.facts
    known = facts.capabilities
    if known is None or feasible.node_problem(facts.node_id, facts):
        return judged(model, machine, (), "")
    if known.memory_model == MemoryModel.UNIFIED:
        return judged(model, machine, (), "")
    on_cpu = not gpu_uuids and model.runtime != Runtime.VLLM
    if same and (gpu_uuids or on_cpu) and _are_there(gpu_uuids, machine):
        return judged(model, machine, gpu_uuids, "")
    count = max(1, len(gpu_uuids))
    cards = equal_cards(machine, count)
    if not cards:
        equal = f"{count} equal GPUs" if count > 1 else "a GPU"
        return FoundPlace(facts.node_id, problem=f"Node {facts.node_id!r} does not have {equal} without a problem.")
    each = " each" if len(cards) > 1 else ""
    memory = f", {size(cards[0].memory)}{each}" if cards[0].memory else ""
    labels = ", ".join(card.capacity.label for card in cards)
    note = f"It gets {labels} of node {facts.node_id}{memory}. Change the GPUs in the editor if you want others."
    return judged(model, machine, tuple(card.uuid for card in cards), note)


def judged(model: ModelRecord, machine: Machine, gpu_uuids: tuple[str, ...], note: str) -> FoundPlace:
    """Return the place if every rule of a placement allows it, else the first problem."""
    request = feasible.PlacementRequest(model.runtime, model.delivery, gpu_uuids)
    found = feasible.problems(request, machine.node_id, machine.facts)
    return FoundPlace(machine.node_id, gpu_uuids, note, found[0].message if found else "")


def _are_there(gpu_uuids: tuple[str, ...], machine: Machine) -> bool:
    cards: Mapping[str, FleetCard] = {card.uuid: card for card in machine.cards}
    return all(uuid in cards and not cards[uuid].unusable for uuid in gpu_uuids)
