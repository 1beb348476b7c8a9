"""The fleet as values for the planner, read with a number of statements that does not grow with it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.wire import budget
from agent.wire.capability import Capabilities, Runtime
from models_app.artifacts import shapes
from models_app.artifacts.defaults import default_image
from models_app.fit.verdict import Room
from models_app.models import Placement
from models_app.placement import feasible, reconcile
from models_app.placement.fleet import Card, Machine
from models_app.states import READY, RUNNING, UNHEALTHY
from nodes.models import Gpu, Node
from nodes.states import FENCED, INCOMPATIBLE, ONLINE, REVOKED

_COLUMNS = (
    "id", "uid", "lifecycle", "draining", "reachability", "reachability_reason", "memory_reserve_bytes", "host",
    "boot_id", "capabilities_seq", "default_image", "default_image_digest", "default_llama_image",
    "default_llama_image_digest",
)  # fmt: skip

_kept: dict[str, tuple[tuple[object, ...], Capabilities | None]] = {}
"""Reports that were read, by node, with what tells that they are the present ones: they are large and change seldom."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes that are not revoked, and who may have weights."""

    machines: tuple[Machine, ...]
    keepers: tuple[shapes.Keeper, ...]

    def with_weights(self, source: shapes.Source | None) -> tuple[Machine, ...]:
        """The machines, with those marked that have the weights of `source`."""
        holders = shapes.holders(source, self.keepers)
        return tuple(
            replace(machine, holds_weights=source is None or machine.node_id in holders) for machine in self.machines
        )


def take(node_ids: Iterable[str] | None = None) -> Fleet:
    """All nodes, or those of `node_ids`. Four statements at most."""
    rows = Node.objects.exclude(lifecycle=REVOKED).only(*_COLUMNS)
    if node_ids is not None:
        rows = rows.filter(pk__in=list(node_ids))
    nodes = list(rows)
    reports = capabilities_of(nodes, keep=node_ids is None)
    wanted = [node.pk for node in nodes]
    cards: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in Gpu.objects.filter(present=True, **({} if node_ids is None else {"node_id__in": wanted})):
        cards[gpu.node_id].append(gpu)
    loads = _loads(wanted if node_ids is not None else None)
    machines = tuple(
        machine(node, reports[node.pk], cards[node.pk], loads.get(node.pk) or Load(), node.host) for node in nodes
    )
    keepers = tuple(shapes.Keeper(node.pk, reports[node.pk], node.reachability == ONLINE) for node in nodes)
    return Fleet(machines, keepers)


@dataclass
class Load:
    """What stands on a node: how many models, on which cards, and what those that are to start were promised."""

    models: int = 0
    host_bytes: int = 0
    by_card: Counter[str] = None  # type: ignore[assignment]
    promised: Counter[str] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.by_card = Counter() if self.by_card is None else self.by_card
        self.promised = Counter() if self.promised is None else self.promised


def _loads(node_ids: list[str] | None) -> dict[str, Load]:
    rows = Placement.objects.all() if node_ids is None else Placement.objects.filter(node_id_text__in=node_ids)
    found: dict[str, Load] = defaultdict(Load)
    columns = ("node_id_text", "gpu_uuids", "desired", "observed")
    budgets = ("model__gpu_memory_budget_bytes", "model__host_memory_budget_bytes")
    for node_id, uuids, desired, observed, on_gpus, on_host in rows.values_list(*columns, *budgets):
        load = found[node_id]
        load.models += 1
        load.by_card.update(uuids)
        # What runs is seen in what is free; what is to start is not yet.
        if desired == RUNNING and observed not in (READY, UNHEALTHY):
            load.host_bytes += on_host or 0
            for uuid in uuids:
                load.promised[uuid] += budget.share(on_gpus, len(uuids)) or 0
    return found


def capabilities_of(nodes: Iterable[Node], *, keep: bool) -> dict[str, Capabilities | None]:
    """The last report of each of `nodes`, whose `capabilities` may be deferred; one statement for what changed."""
    marks = {node.pk: (node.uid, node.boot_id, node.capabilities_seq) for node in nodes}
    known = {pk: _kept[pk][1] for pk, mark in marks.items() if keep and pk in _kept and _kept[pk][0] == mark}
    lacking = [pk for pk in marks if pk not in known]
    for node in Node.objects.filter(pk__in=lacking).only("id", "capabilities") if lacking else ():
        known[node.pk] = reconcile.capabilities_of(node)
        if keep:
            _kept[node.pk] = (marks[node.pk], known[node.pk])
    return {pk: known.get(pk) for pk in marks}


def machine(
    node: Node, known: Capabilities | None, gpus: Iterable[Gpu], load: Load, host: Mapping[str, Any]
) -> Machine:
    """One node as the planner sees it; `host` is its `HostStatus` as on the wire."""
    total = _whole(host, "memoryTotalBytes")
    owner = known.memory_reserve_bytes if known is not None else None
    away, code = _away(node)
    troubled = {gpu.uuid: gpu.problem for gpu in known.gpus if gpu.problem} if known is not None else {}
    return Machine(
        facts=feasible.NodeFacts(node.pk, node.lifecycle, node.draining, known),
        host=Room(
            label="host memory",
            total=total,
            free=_whole(host, "memoryAvailableBytes"),
            reserve=budget.host_reserve(total, node.memory_reserve_bytes, owner),
            promised=load.host_bytes,
        ),
        cards=tuple(_card(gpu, at, load, troubled.get(gpu.uuid) or "") for at, gpu in enumerate(_sorted(gpus))),
        models=load.models,
        away=away,
        away_code=code,
        has_gpu_with_shared_memory=known is not None and any(gpu.shares_host_memory for gpu in known.gpus),
        bytes_per_second=_whole(host, "memoryBandwidthBytesPerSecond"),
        images={runtime: default_image(node, runtime) for runtime in Runtime},
    )


def _sorted(gpus: Iterable[Gpu]) -> list[Gpu]:
    return sorted(gpus, key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.uuid))


def _card(gpu: Gpu, at: int, load: Load, problem: str) -> Card:
    total = _whole(gpu.seen, "totalBytes")
    total = gpu.memory_bytes if total is None else total
    used = _whole(gpu.seen, "usedBytes")
    lost = "The card is lost." if gpu.seen.get("lost") else ""
    return Card(
        room=Room(
            label=f"GPU {at if gpu.index is None else gpu.index}",
            uuid=gpu.uuid,
            total=total,
            free=None if total is None or used is None else total - used,
            reserve=gpu.reserve_bytes or 0,
            promised=load.promised.get(gpu.uuid, 0),
        ),
        name=gpu.name,
        memory=gpu.memory_bytes,
        models=load.by_card.get(gpu.uuid, 0),
        problem=lost or problem or str(gpu.seen.get("problem") or ""),
    )


def _whole(seen: Mapping[str, Any], name: str) -> int | None:
    value = seen.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _away(node: Node) -> tuple[str, str]:
    """Why the node does not serve, and the code of that; empty when it does."""
    if node.reachability == ONLINE:
        return "", ""
    why = f" {node.reachability_reason}" if node.reachability_reason else ""
    if node.reachability == INCOMPATIBLE:
        return f"Node {node.pk!r} cannot be worked with.{why}", "node_incompatible"
    if node.reachability == FENCED:
        return f"Node {node.pk!r} obeys another master; it waits for a takeover.{why}", "node_pending_takeover"
    return f"Node {node.pk!r} is offline.{why}", "node_offline"
