"""Whether a model fits on one node now, by what the node says within 5 seconds: the preview of a start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.wire.capability import Runtime
from agent.wire.status import NodeStatus
from mirbad.kernel.errors import MirbadError
from models_app.artifacts import shapes
from models_app.fit import Estimate, ModelShape, estimate, speed
from models_app.fit.verdict import Room, State, Verdict, judge
from models_app.models import ModelDefinition, Placement
from models_app.placement import feasible, planner, planning, reconcile, snapshot
from models_app.placement.fleet import Machine
from models_app.placement.wanted import Wanted, of_model
from models_app.states import FAILED, STOPPED
from nodes import queries, telemetry
from nodes.link import client
from nodes.models import Node

_ASK_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Fit:
    """The preview. `age_seconds` is of the numbers, None when the node told none; `problems` are of the place."""

    node_id: str
    gpu_uuids: tuple[str, ...]
    verdict: Verdict
    estimate: Estimate
    shape: ModelShape
    age_seconds: float | None
    problems: tuple[feasible.Problem, ...] = ()
    tokens_per_second: float | None = None

    @property
    def state(self) -> State:
        """How well it fits."""
        return self.verdict.state

    @property
    def is_slow(self) -> bool:
        """Whether a reply will take minutes on the processor."""
        return speed.is_slow(self.tokens_per_second)

    @property
    def questions(self) -> tuple[str, ...]:
        """What a person should be asked before a start."""
        found = list(self.verdict.reasons[:2]) if self.state is State.DOES_NOT_FIT else []
        seconds = speed.reply_seconds(self.tokens_per_second)
        if self.is_slow and seconds is not None:
            found.append(
                f"On the processor of node {self.node_id!r} it writes about {self.tokens_per_second:.1f} tokens a "
                f"second: a reply of {speed.REPLY_TOKENS} takes about {seconds / 60:.0f} minutes."
            )
        return tuple(found)


def on_node(wanted: Wanted, node_id: str, gpu_uuids: Sequence[str] | None = (), *, ask: bool = True) -> Fit:
    """Whether `wanted` fits on the node's `gpu_uuids`, or with an empty list on its host; None: where it would go.

    Memory that the model itself has there now counts as free. Raises NotFound, NodeRevoked.
    """
    fleet = snapshot.take([node_id])
    if not fleet.machines:
        queries.require_known(node_id)
    machine, age = _now(fleet.machines[0], ask=ask)
    machine = _without_itself(machine, wanted.model_id)
    keepers = snapshot.take().keepers if not shapes.holders(wanted.source, fleet.keepers) else fleet.keepers
    shape = shapes.find(wanted.source, keepers, first=node_id, ask=ask)
    if gpu_uuids is None:
        gpu_uuids = _own_place(wanted, machine, shape)
    return judged(wanted, machine, gpu_uuids, shape, age)


def _own_place(wanted: Wanted, machine: Machine, shape: ModelShape) -> Sequence[str]:
    """The GPUs that the model has there, or those that it would get."""
    standing = Placement.objects.filter(model_id=wanted.model_id, node_id_text=machine.node_id).first()
    if standing is not None:
        return tuple(standing.gpu_uuids)
    return planner.cards_for(planning.wish_of(wanted, shape), machine)


def before_start(model: ModelDefinition) -> tuple[Fit, ...]:
    """The previews of a stored model's places about which a person is asked before it starts; most often none.

    A place whose fit is not known asks nothing, and so does a shard, which is a part of the model.
    """
    if model.runtime == Runtime.SIM:
        return ()
    wanted = of_model(model)
    found = []
    for placement in model.placements.all():
        if placement.shards == 1 and placement.observed in (STOPPED, FAILED):
            try:
                fit = on_node(wanted, placement.node_id_text, placement.gpu_uuids)
            except MirbadError:
                continue
            found += [fit] if fit.questions else []
    return tuple(found)


def host_bytes(model: ModelDefinition, node: Node, gpus: int) -> int | None:
    """What a start of `model` on the node's processor will take, by its budget or by what is known of its weights.

    None leaves it to the node, which counts the weights alone. Nobody is asked.
    """
    stated: int | None = model.host_memory_budget_bytes
    if stated is not None or gpus or model.runtime == Runtime.SIM or model.gpu_memory_budget_bytes is not None:
        return stated
    known = reconcile.capabilities_of(node)
    if known is None or any(gpu.shares_host_memory for gpu in known.gpus):
        return None
    wanted = of_model(model)
    shape = shapes.find(wanted.source, [shapes.Keeper(node.pk, known, False)], ask=False)
    return estimate(shape, wanted.plan.on(0)).host_bytes


def judged(wanted: Wanted, machine: Machine, gpu_uuids: Sequence[str], shape: ModelShape, age: float | None) -> Fit:
    """The preview from values."""
    uuids = tuple(dict.fromkeys(gpu_uuids))
    shares = machine.has_gpu_with_shared_memory and not uuids and wanted.runtime != Runtime.SIM
    need = estimate(shape, wanted.plan.on(len(uuids), shares_memory=shares))
    rooms = {card.uuid: card.room for card in machine.cards}
    gpus = [rooms.get(uuid) or Room(f"GPU — · no longer on {machine.node_id}", uuid) for uuid in uuids]
    wish = feasible.Wish(wanted.runtime, wanted.delivery, tuple(gpu_uuids), standing=True)
    rate = None
    if not uuids and not shares and wanted.runtime != Runtime.SIM:
        rate = speed.tokens_per_second(need.active_bytes, machine.bytes_per_second)
    return Fit(
        node_id=machine.node_id,
        gpu_uuids=uuids,
        verdict=judge(need, gpus, machine.host),
        estimate=need,
        shape=shape,
        age_seconds=age,
        problems=feasible.problems(wish, machine.node_id, machine.facts),
        tokens_per_second=rate,
    )


def _now(machine: Machine, *, ask: bool) -> tuple[Machine, float | None]:
    """The machine with numbers of now; with none when it cannot be asked."""
    node_id = machine.node_id
    known = telemetry.latest([node_id]).get(node_id)
    if known is not None and known.fresh:
        gpus = {uuid: status.to_wire() for uuid, status in known.gpus.items()}
        return _seen(machine, known.host.to_wire(), gpus), known.age_seconds
    if ask and not machine.away:
        try:
            status = client.call(node_id, "GET", "status", answer=NodeStatus, timeout_seconds=_ASK_SECONDS)
        except MirbadError:
            return _seen(machine, {}, {}), None
        return _seen(machine, status.host.to_wire(), {gpu.uuid: gpu.to_wire() for gpu in status.gpus}), 0.0
    return _seen(machine, {}, {}), None


def _seen(machine: Machine, host: Mapping[str, Any], gpus: Mapping[str, Mapping[str, Any]]) -> Machine:
    cards = []
    for card in machine.cards:
        seen = gpus.get(card.uuid, {})
        total, used = seen.get("totalBytes") or card.room.total, seen.get("usedBytes")
        free = None if total is None or used is None else total - used
        cards.append(replace(card, room=replace(card.room, total=total, free=free)))
    total = host.get("memoryTotalBytes") or machine.host.total
    room = replace(machine.host, total=total, free=host.get("memoryAvailableBytes"))
    rate = host.get("memoryBandwidthBytesPerSecond") or machine.bytes_per_second
    return replace(machine, cards=tuple(cards), host=room, bytes_per_second=rate)


def _without_itself(machine: Machine, model_id: str) -> Machine:
    """What the model has there now is free for its own restart."""
    placement = Placement.objects.filter(model_id=model_id, node_id_text=machine.node_id).first()
    held = (placement.observed_view or {}).get("memoryBytes") if placement is not None else None
    if placement is None or not isinstance(held, int) or placement.observed not in ("ready", "unhealthy", "starting"):
        return machine
    own = own_bytes(machine.node_id, model_id)
    cards = tuple(
        replace(card, room=replace(card.room, free=card.room.free + own[card.uuid]))
        if card.room.free is not None and card.uuid in own
        else card
        for card in machine.cards
    )
    free = machine.host.free
    return replace(machine, cards=cards, host=replace(machine.host, free=None if free is None else free + held))


def own_bytes(node_id: str, model_id: str) -> dict[str, int]:
    """What a model uses on each GPU of a node, as far as that was measured or split."""
    known = telemetry.latest([node_id]).get(node_id)
    found: dict[str, int] = {}
    for uuid, status in known.gpus.items() if known is not None else ():
        for use in status.models:
            if use.model_id == model_id and use.used_bytes is not None:
                found[uuid] = found.get(uuid, 0) + use.used_bytes
    return found
