"""The fleet as values for the planner, read with a constant number of queries."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.common import budget
from agent.common.gpu_label import gpu_label
from agent.wire.capability import Capabilities, GpuCapability, Runtime
from models_app.artifacts import shapes
from models_app.artifacts.defaults import default_image
from models_app.fit.verdict import Capacity
from models_app.models import Placement
from models_app.placement import feasible
from models_app.placement.fleet import FleetCard, Machine
from models_app.states import READY, RUNNING, UNHEALTHY
from nodes import queries as node_queries
from nodes.models import Gpu, Node
from nodes.states import FENCED, INCOMPATIBLE, ONLINE, REVOKED

_COLUMNS = (
    "id", "uid", "lifecycle", "draining", "reachability", "reachability_reason", "memory_reserve_bytes", "host",
    "boot_id", "capabilities_seq", "default_image", "default_image_digest", "default_llama_image",
    "default_llama_image_digest",
)  # fmt: skip

_kept: dict[str, tuple[tuple[object, ...], Capabilities | None]] = {}
"""Parsed reports by node, each with the marks of its version: reports are large and change seldom."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The nodes that are not revoked, with their reports of weights."""

    machines: tuple[Machine, ...]
    reports: tuple[shapes.NodeReport, ...]

    def with_weights(self, source: shapes.ShapeSource | None) -> tuple[Machine, ...]:
        """Return the machines, with those marked that have the weights of `source`."""
        holders = shapes.holders(source, self.reports)
        return tuple(
            replace(machine, holds_weights=source is None or machine.node_id in holders) for machine in self.machines
        )


def take(node_ids: Iterable[str] | None = None, *, without: str = "") -> FleetSnapshot:
    """Read all nodes, or those of `node_ids`. At most four queries.

    The memory promised to the model `without`, if it is starting, is left out: it is judged itself.
    """
    rows = Node.objects.exclude(lifecycle=REVOKED).only(*_COLUMNS)
    if node_ids is not None:
        rows = rows.filter(pk__in=list(node_ids))
    nodes = list(rows)
    capabilities = capabilities_of(nodes, keep=node_ids is None)
    ids = [node.pk for node in nodes]
    cards: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in Gpu.objects.filter(present=True, **({} if node_ids is None else {"node_id__in": ids})):
        cards[gpu.node_id].append(gpu)
    loads = _loads(ids if node_ids is not None else None, without)
    machines = tuple(
        machine(node, capabilities[node.pk], cards[node.pk], loads.get(node.pk) or NodeLoad(), node.host)
        for node in nodes
    )
    reports = tuple(shapes.NodeReport(node.pk, capabilities[node.pk], node.reachability == ONLINE) for node in nodes)
    return FleetSnapshot(machines, reports)


@dataclass
class NodeLoad:
    """The load of a node: models in total and by card, and the memory promised to models that are starting."""

    models: int = 0
    host_bytes: int = 0
    by_card: Counter[str] = None  # type: ignore[assignment]
    promised: Counter[str] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.by_card = Counter() if self.by_card is None else self.by_card
        self.promised = Counter() if self.promised is None else self.promised


def _loads(node_ids: list[str] | None, without: str) -> dict[str, NodeLoad]:
    rows = Placement.objects.all() if node_ids is None else Placement.objects.filter(node_id_text__in=node_ids)
    found: dict[str, NodeLoad] = defaultdict(NodeLoad)
    columns = ("model_id", "node_id_text", "gpu_uuids", "desired", "observed", "promised")
    budgets = ("model__gpu_memory_budget_bytes", "model__host_memory_budget_bytes")
    for model_id, node_id, uuids, desired, observed, promised, on_gpus, on_host in rows.values_list(*columns, *budgets):
        load = found[node_id]
        load.models += 1
        load.by_card.update(uuids)
        # The memory of a running model is no longer free; that of a starting model still is, so it counts as promised.
        if desired == RUNNING and observed not in (READY, UNHEALTHY) and model_id != without:
            load.host_bytes += promised.get("", on_host or 0)
            for uuid in uuids:
                load.promised[uuid] += promised.get(uuid, budget.share(on_gpus, len(uuids)) or 0)
    return found


def capabilities_of(nodes: Iterable[Node], *, keep: bool) -> dict[str, Capabilities | None]:
    """Return the last report of each node, whose `capabilities` may be deferred. One query for changed ones."""
    marks = {node.pk: (node.uid, node.boot_id, node.capabilities_seq) for node in nodes}
    known = {pk: _kept[pk][1] for pk, mark in marks.items() if keep and pk in _kept and _kept[pk][0] == mark}
    lacking = [pk for pk in marks if pk not in known]
    for node in Node.objects.filter(pk__in=lacking).only("id", "capabilities") if lacking else ():
        known[node.pk] = node_queries.capabilities(node)
        if keep:
            _kept[node.pk] = (marks[node.pk], known[node.pk])
    return {pk: known.get(pk) for pk in marks}


def machine(
    node: Node, known: Capabilities | None, gpus: Iterable[Gpu], load: NodeLoad, host: Mapping[str, Any]
) -> Machine:
    """Return one node as the planner sees it; `host` is its `HostStatus` as on the wire."""
    total = _whole(host, "memoryTotalBytes")
    owner = known.memory_reserve_bytes if known is not None else None
    unavailable, code = _unavailable(node)
    reported = {gpu.uuid: gpu for gpu in known.gpus} if known is not None else {}
    return Machine(
        facts=feasible.NodeFacts(node.pk, node.lifecycle, node.draining, known),
        host=Capacity(
            label="Host memory",
            total=total,
            free=_whole(host, "memoryAvailableBytes"),
            reserve=budget.host_reserve(total, node.memory_reserve_bytes, owner),
            promised=load.host_bytes,
        ),
        cards=tuple(_card(gpu, load, reported.get(gpu.uuid)) for gpu in _sorted(gpus)),
        models=load.models,
        unavailable=unavailable,
        unavailable_code=code,
        has_gpu_with_shared_memory=known is not None and any(gpu.shares_host_memory for gpu in known.gpus),
        bytes_per_second=_whole(host, "memoryBandwidthBytesPerSecond"),
        core_bytes_per_second=_whole(host, "coreBandwidthBytesPerSecond"),
        engine_threads=_whole(host, "engineThreads"),
        images={runtime: default_image(node, runtime) for runtime in Runtime},
    )


def _sorted(gpus: Iterable[Gpu]) -> list[Gpu]:
    return sorted(gpus, key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.uuid))


def _card(gpu: Gpu, load: NodeLoad, reported: GpuCapability | None) -> FleetCard:
    total = _whole(gpu.seen, "totalBytes")
    total = gpu.memory_bytes if total is None else total
    used = _whole(gpu.seen, "usedBytes")
    lost = "The GPU is lost." if gpu.seen.get("lost") else ""
    problem = (reported.problem if reported is not None else None) or str(gpu.seen.get("problem") or "")
    return FleetCard(
        capacity=Capacity(
            label=gpu_label(gpu.index, gpu.uuid),
            uuid=gpu.uuid,
            total=total,
            free=None if total is None or used is None else total - used,
            reserve=gpu.reserve_bytes or 0,
            promised=load.promised.get(gpu.uuid, 0),
        ),
        name=gpu.name,
        memory=gpu.memory_bytes,
        models=load.by_card.get(gpu.uuid, 0),
        problem=problem or lost,
        unusable=bool(lost or gpu.seen.get("problemCode") or (reported is not None and not reported.is_usable)),
    )


def _whole(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _unavailable(node: Node) -> tuple[str, str]:
    """Return the reason for which the node does not serve, and its code; both empty when it does."""
    if node.reachability == ONLINE:
        return "", ""
    why = f" {node.reachability_reason}" if node.reachability_reason else ""
    if node.reachability == INCOMPATIBLE:
        return f"Node {node.pk!r} is incompatible.{why}", "node_incompatible"
    if node.reachability == FENCED:
        return f"Node {node.pk!r} obeys another master and waits for a takeover.{why}", "node_pending_takeover"
    return f"Node {node.pk!r} is offline.{why}", "node_offline"
