"""The preview of a start: the fit of a model on one node, by numbers of the node that are at most 5 seconds old."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from agent.common import budget
from agent.common.gpu_label import gone_gpu_label
from agent.wire.capability import Runtime
from agent.wire.instances import MemoryEstimate
from agent.wire.status import NodeStatus
from mirbad.kernel.errors import MirbadError
from models_app.artifacts import shapes
from models_app.fit import Estimate, ModelShape, estimate, speed
from models_app.fit.verdict import Capacity, FitState, FitVerdict, judge
from models_app.models import ModelDefinition, Placement
from models_app.placement import candidates, feasible, planner, snapshot
from models_app.placement.fleet import Machine
from models_app.placement.workload import Workload, of_model
from models_app.states import FAILED, STOPPED
from nodes import queries, telemetry
from nodes.link import client
from nodes.models import Node
from nodes.states import ONLINE

_ASK_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class FitPreview:
    """The preview. `age_seconds` is the age of the numbers, None without any; `problems` are of the placement."""

    node_id: str
    gpu_uuids: tuple[str, ...]
    verdict: FitVerdict
    estimate: Estimate
    shape: ModelShape
    age_seconds: float | None
    problems: tuple[feasible.Problem, ...] = ()
    tokens_per_second: float | None = None

    @property
    def state(self) -> FitState:
        """Return the state of the fit."""
        return self.verdict.state

    @property
    def is_slow(self) -> bool:
        """Return whether a reply will take minutes on the processor."""
        return speed.is_slow(self.tokens_per_second)

    @property
    def questions(self) -> tuple[str, ...]:
        """Return the warnings that a person confirms before a start."""
        found = list(self.verdict.reasons[:2]) if self.state is FitState.DOES_NOT_FIT else []
        seconds = speed.reply_seconds(self.tokens_per_second)
        if self.is_slow and seconds is not None:
            found.append(
                f"On the CPU of node {self.node_id!r} the model generates about {self.tokens_per_second:.1f} tokens/s: "
                f"a reply of {speed.REPLY_TOKENS} takes about {seconds / 60:.0f} minutes."
            )
        return tuple(found)


def on_node(workload: Workload, node_id: str, gpu_uuids: Sequence[str] | None = (), *, ask: bool = True) -> FitPreview:
    """Preview `workload` on the node's `gpu_uuids`; an empty list is its host, None the GPUs that it would get there.

    Memory that the model itself holds there now counts as free. Raises NotFound, NodeRevoked.
    """
    fleet = snapshot.take([node_id], without=workload.model_id)
    if not fleet.machines:
        queries.require_known(node_id)
    machine, age = _now(fleet.machines[0], ask=ask)
    machine = _without_itself(machine, workload.model_id)
    reports = snapshot.take().reports if not shapes.holders(workload.source, fleet.reports) else fleet.reports
    shape = shapes.find(workload.source, reports, first=node_id, ask=ask)
    if gpu_uuids is None:
        gpu_uuids = _own_place(workload, machine, shape)
    return judged(workload, machine, gpu_uuids, shape, age)


def _own_place(workload: Workload, machine: Machine, shape: ModelShape) -> Sequence[str]:
    """Return the GPUs that the model has there, or those that it would get."""
    placement = Placement.objects.filter(model_id=workload.model_id, node_id_text=machine.node_id).first()
    if placement is not None:
        return tuple(placement.gpu_uuids)
    return planner.cards_for(candidates.plan_request(workload, shape), machine)


def before_start(
    model: ModelDefinition, *, replica: UUID | None = None, restart: bool = False
) -> tuple[FitPreview, ...]:
    """Return the previews of a stored model's placements that need a confirmation before a start; usually none.

    `replica` limits them to one replica. A `restart` concerns placements that run, too: their memory counts as free.
    A placement whose fit is unknown needs none, nor does a shard, which is a part of the model.
    """
    if model.runtime == Runtime.SIM:
        return ()
    workload = of_model(model)
    found = []
    for placement in model.placements.all():
        asked = restart or placement.observed in (STOPPED, FAILED)
        if placement.shards == 1 and asked and replica in (None, placement.replica):
            try:
                fit = on_node(workload, placement.node_id_text, placement.gpu_uuids)
            except MirbadError:
                continue
            found += [fit] if fit.questions else []
    return tuple(found)


def memory_of(placement: Placement, node: Node, *, ask: bool = False) -> MemoryEstimate | None:
    """Return the memory that an engine of `placement` will take, for the node's admission of its start.

    None leaves the estimate to the node, which knows the size of the weights alone. Without `ask` no node and no hub is
    called: facts that were read before are used. A shard takes its part of a model that all GPUs of a replica share.
    """
    model = placement.model
    if model.runtime == Runtime.SIM:
        return None
    workload, gpus = of_model(model), len(placement.gpu_uuids)
    known = queries.capabilities(node)
    if known is None:
        return None
    reports = [shapes.NodeReport(node.pk, known, node.reachability == ONLINE)]
    shape = shapes.find(workload.source, reports, first=node.pk, ask=ask)
    shares = not gpus and any(gpu.shares_host_memory for gpu in known.gpus)
    if placement.shards > 1:
        return _of_shard(shape, workload, gpus, placement.shards, shares=shares)
    need = estimate(shape, workload.plan.on(gpus, shares_memory=shares))
    return MemoryEstimate(
        host_bytes=need.host_bytes,
        gpu_bytes=need.gpu_bytes,
        gpu_least_bytes=need.least_bytes,
        fraction=need.claim,
    )


def _of_shard(shape: ModelShape, workload: Workload, gpus: int, shards: int, *, shares: bool) -> MemoryEstimate:
    need = estimate(shape, workload.plan.on(max(1, gpus) * shards))
    if not gpus:
        host = budget.on_shared_memory(None, need.gpu_bytes) if shares else None
        return MemoryEstimate(host_bytes=host, fraction=need.claim if shares else None)
    host = estimate(shape, workload.plan.on(gpus)).host_bytes
    return MemoryEstimate(host_bytes=host, gpu_bytes=need.gpu_bytes, fraction=need.claim)


def promise_of(memory: MemoryEstimate | None, gpu_uuids: Sequence[str], node: Node) -> dict[str, int]:
    """Return the bytes that a start takes by GPU UUID, and under "" of the host; unknown parts are left out."""
    if memory is None:
        return {}
    known = queries.capabilities(node)
    totals = {gpu.uuid: gpu.memory_bytes for gpu in known.gpus} if known is not None else {}
    found = {uuid: budget.required(memory.gpu_bytes, memory.fraction, totals.get(uuid)) for uuid in gpu_uuids}
    total = node.host.get("memoryTotalBytes") if isinstance(node.host, dict) else None
    found[""] = budget.required(memory.host_bytes, None if gpu_uuids else memory.fraction, total)
    return {part: taken for part, taken in found.items() if taken is not None}


def judged(
    workload: Workload, machine: Machine, gpu_uuids: Sequence[str], shape: ModelShape, age: float | None
) -> FitPreview:
    """Return the preview from values."""
    uuids = tuple(dict.fromkeys(gpu_uuids))
    shares = machine.has_gpu_with_shared_memory and not uuids and workload.runtime != Runtime.SIM
    need = estimate(shape, workload.plan.on(len(uuids), shares_memory=shares))
    capacities = {card.uuid: card.capacity for card in machine.cards}
    gpus = [capacities.get(uuid) or Capacity(gone_gpu_label(machine.node_id), uuid) for uuid in uuids]
    request = feasible.PlacementRequest(workload.runtime, workload.delivery, tuple(gpu_uuids), already_placed=True)
    rate = None
    if not uuids and not shares and workload.runtime != Runtime.SIM:
        rate = speed.tokens_per_second(need.active_bytes, machine.rate(workload.plan))
    return FitPreview(
        node_id=machine.node_id,
        gpu_uuids=uuids,
        verdict=judge(need, gpus, machine.host),
        estimate=need,
        shape=shape,
        age_seconds=age,
        problems=feasible.problems(request, machine.node_id, machine.facts),
        tokens_per_second=rate,
    )


def _now(machine: Machine, *, ask: bool) -> tuple[Machine, float | None]:
    """Return the machine with current numbers, or without any when the node cannot be called."""
    node_id = machine.node_id
    known = telemetry.latest([node_id]).get(node_id)
    if known is not None and known.fresh:
        gpus = {uuid: status.to_wire() for uuid, status in known.gpus.items()}
        return _observed(machine, known.host.to_wire(), gpus), known.age_seconds
    if ask and not machine.unavailable:
        try:
            status = client.call(node_id, "GET", "status", answer=NodeStatus, timeout_seconds=_ASK_SECONDS)
        except MirbadError:
            return _observed(machine, {}, {}), None
        return _observed(machine, status.host.to_wire(), {gpu.uuid: gpu.to_wire() for gpu in status.gpus}), 0.0
    return _observed(machine, {}, {}), None


def _observed(machine: Machine, host: Mapping[str, Any], gpus: Mapping[str, Mapping[str, Any]]) -> Machine:
    cards = []
    for card in machine.cards:
        status = gpus.get(card.uuid, {})
        total, used = status.get("totalBytes") or card.capacity.total, status.get("usedBytes")
        free = None if total is None or used is None else total - used
        cards.append(replace(card, capacity=replace(card.capacity, total=total, free=free)))
    total = host.get("memoryTotalBytes") or machine.host.total
    capacity = replace(machine.host, total=total, free=host.get("memoryAvailableBytes"))
    return replace(
        machine,
        cards=tuple(cards),
        host=capacity,
        bytes_per_second=host.get("memoryBandwidthBytesPerSecond") or machine.bytes_per_second,
        core_bytes_per_second=host.get("coreBandwidthBytesPerSecond") or machine.core_bytes_per_second,
        engine_threads=host.get("engineThreads") or machine.engine_threads,
    )


def _without_itself(machine: Machine, model_id: str) -> Machine:
    """Count the memory that the model itself holds there now as free."""
    placement = Placement.objects.filter(model_id=model_id, node_id_text=machine.node_id).first()
    held = (placement.observed_view or {}).get("memoryBytes") if placement is not None else None
    if placement is None or not isinstance(held, int) or placement.observed not in ("ready", "unhealthy", "starting"):
        return machine
    own = own_bytes(machine.node_id, model_id)
    cards = tuple(
        replace(card, capacity=replace(card.capacity, free=card.capacity.free + own[card.uuid]))
        if card.capacity.free is not None and card.uuid in own
        else card
        for card in machine.cards
    )
    free = machine.host.free
    return replace(machine, cards=cards, host=replace(machine.host, free=None if free is None else free + held))


def own_bytes(node_id: str, model_id: str) -> dict[str, int]:
    """Return the bytes that a model uses on each GPU of a node, as far as measured or split."""
    known = telemetry.latest([node_id]).get(node_id)
    found: dict[str, int] = {}
    for uuid, status in known.gpus.items() if known is not None else ():
        for use in status.models:
            if use.model_id == model_id and use.used_bytes is not None:
                found[uuid] = found.get(uuid, 0) + use.used_bytes
    return found
