"""View-models of the models pages. Every list costs a constant number of queries."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mirbad.kernel import clock
from mirbad.kernel.redact import redact
from mirbad.web import parts
from mirbad.web.parts import Badge
from models_app import keys, queries
from models_app.models import ApiKey, ModelDefinition, Placement
from models_app.pages import badges, replicas
from models_app.pages.replicas import ReplicaRow
from models_app.registry import restart_needed
from models_app.states import FAILED, READY, RUNNING, STOPPED, UNHEALTHY
from nodes import queries as node_queries
from nodes.models import Node


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model at a glance: what is wanted, what is seen."""

    id: str
    name: str
    names: tuple[str, ...]
    engine: str
    weights: str
    tags: tuple[str, ...]
    state: str
    badge: Badge
    wanted: Badge | None
    reasons: tuple[str, ...]
    node_id: str
    nodes: tuple[tuple[str, str], ...]
    replicas: tuple[ReplicaRow, ...]
    gpus: str
    memory: str
    serves: bool
    restart_needed: bool
    held: str
    auto_start: bool
    observed_at: datetime | None
    placed: bool
    wanted_running: bool

    @property
    def renamed(self) -> bool:
        """Whether programs know it by other names than its id."""
        return self.names != (self.id,)

    @property
    def may_start(self) -> bool:
        """Whether a start makes sense now."""
        return not self.held and any(replica.may_start for replica in self.replicas)

    @property
    def may_stop(self) -> bool:
        """Whether there is anything to stop."""
        return any(replica.may_stop for replica in self.replicas)

    @property
    def node_name(self) -> str:
        """The name of the node that stands for all; empty when there is none."""
        return self.nodes[0][1] if self.nodes else ""

    @property
    def in_replicas(self) -> bool:
        """Whether its replicas are worth a list of their own."""
        return self.spread or any(replica.several for replica in self.replicas)

    @property
    def spread(self) -> bool:
        """Whether it stands on more than one node."""
        return len(self.nodes) > 1


def models() -> tuple[ModelRow, ...]:
    """Every model. Four queries, however many models."""
    rows = list(queries.all_models())
    nodes = _nodes(rows)
    return tuple(row(model, nodes) for model in rows)


def one(model_id: str) -> ModelDefinition:
    """The definition with sources, placements and hold. Raises NotFound."""
    return queries.one_model(model_id)


def _nodes(rows: Iterable[ModelDefinition]) -> dict[str, Node]:
    wanted = {placement.node_id_text for model in rows for placement in model.placements.all()}
    return {node.pk: node for node in Node.objects.filter(pk__in=wanted).only(*_NODE_COLUMNS)}


_NODE_COLUMNS = (
    "id",
    "display_name",
    "lifecycle",
    "default_image",
    "default_image_digest",
    "default_llama_image",
    "default_llama_image_digest",
)


def row(model: ModelDefinition, nodes: dict[str, Node]) -> ModelRow:
    """The row of a model whose sources, placements and hold are prefetched."""
    placements = queries.placements_of(model)
    placement = placements[0] if placements else None
    shown = queries.shown_model_state(model)
    running = any(one.desired == RUNNING and one.routed for one in placements)
    source = next(iter(model.sources.all()), None)
    hold = getattr(model, "hold", None)
    return ModelRow(
        id=model.pk,
        name=model.name,
        names=model.names,
        engine=f"{model.runtime} · {model.delivery}",
        weights="/".join(part for part in (source.folder, source.file) if part) if source else "none",
        tags=tuple(model.tags),
        state=shown.name,
        badge=badges.of(shown.name, wanted_running=running),
        wanted=badges.WANTED[RUNNING if running else STOPPED] if placement else None,
        reasons=shown.reasons,
        node_id=placement.node_id_text if placement else "",
        nodes=tuple((one.node_id_text, _name_of(one.node_id_text, nodes)) for one in placements),
        replicas=replicas.rows(model, nodes),
        gpus=_gpus(placements),
        memory=parts.size(_memory(placements)),
        serves=shown.serves,
        restart_needed=any(restart_needed(model, one, nodes.get(one.node_id_text)) for one in placements),
        held=hold.words if hold else "",
        auto_start=model.auto_start,
        observed_at=placement.observed_at if placement else None,
        placed=placement is not None,
        wanted_running=running,
    )


def _name_of(node_id: str, nodes: dict[str, Node]) -> str:
    return nodes[node_id].name if node_id in nodes else node_id


def _gpus(placements: Iterable[Placement]) -> str:
    count = sum(len(placement.gpu_uuids) for placement in placements)
    return parts.plural(count, "GPU") if count else ""


def _memory(placements: Iterable[Placement]) -> int | None:
    """What its engines hold together; None while none of them reports it."""
    told = [placement.observed_view.get("memoryBytes") for placement in placements]
    known = [value for value in told if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class ModelDetail:
    """Everything that the page of a model shows of it."""

    row: ModelRow
    facts: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    gpu_uuids: tuple[str, ...]
    failure: str
    failure_code: str
    last_lines: tuple[str, ...]
    progress_text: str
    done_bytes: int | None
    total_bytes: int | None
    started_at: str
    start_seconds: float | None
    instance_id: str


def detail(model: ModelDefinition) -> ModelDetail:
    """The view-model of a definition that came from `one`. One more query, for the node."""
    shown = row(model, _nodes([model]))
    placements = queries.placements_of(model)
    troubled = [one for one in placements if one.observed in (FAILED, UNHEALTHY)]
    # What failed is shown with its last words; of several the first, all of them are in the list of replicas.
    placement = next(iter(troubled or placements), None)
    view: dict[str, Any] = placement.observed_view if placement else {}
    progress = view.get("progress") or {}
    failed = shown.state in (FAILED, UNHEALTHY)
    return ModelDetail(
        row=shown,
        facts=_facts(model, shown),
        arguments=tuple(redact(argument) for argument in model.args),
        environment=tuple((name, redact(f"{name}={value}").partition("=")[2]) for name, value in model.env.items())
        + tuple((name, "••••••••") for name in model.secret_env_names),
        gpu_uuids=tuple(placement.gpu_uuids) if placement else (),
        failure=placement.observed_reason if placement and failed else "",
        failure_code=str(view.get("reasonCode") or "") if failed else "",
        last_lines=tuple(redact(str(line)) for line in view.get("lastLines") or ()) if failed else (),
        progress_text=str(progress.get("text") or ""),
        done_bytes=progress.get("doneBytes"),
        total_bytes=progress.get("totalBytes"),
        started_at=str(view.get("startedAt") or ""),
        start_seconds=placement.start_seconds if placement else None,
        instance_id=str(placement.pk) if placement and view else "",
    )


def _facts(model: ModelDefinition, shown: ModelRow) -> tuple[tuple[str, str], ...]:
    image = "@".join(part for part in (model.image, model.image_digest) if part)
    facts = [
        ("Served as", ", ".join(model.names)),
        ("Engine", shown.engine),
        ("Weights", shown.weights),
        ("Context", f"{model.context_length} tokens" if model.context_length else "the engine's own"),
        ("GPU budget", _budget(model.gpu_memory_budget_bytes)),
        ("Host budget", _budget(model.host_memory_budget_bytes)),
        ("Starts by itself", "yes" if model.auto_start else "no"),
        ("Start within", parts.span(model.start_timeout_seconds)),
    ]
    if model.delivery == "container":
        facts.insert(2, ("Image", image or "the node's default"))
    return tuple(facts)


def _budget(value: int | None) -> str:
    return "estimated by the agent" if value is None else parts.size(value)


@dataclass(frozen=True, slots=True)
class NodeCell:
    """What a node runs, for the list of nodes."""

    node_id: str
    models: tuple[ModelRow, ...]

    @property
    def ready(self) -> int:
        """How many of them serve."""
        return sum(model.serves for model in self.models)


def node_cells() -> tuple[NodeCell, ...]:
    """The models of every node that is in use, in as many queries as the list of models and one more."""
    by_node: dict[str, list[ModelRow]] = {node_id: [] for node_id in Node.objects.values_list("pk", flat=True)}
    for model in models():
        for node_id, _ in model.nodes:
            by_node.setdefault(node_id, []).append(on_node(model, node_id))
    return tuple(NodeCell(node_id, tuple(rows)) for node_id, rows in by_node.items())


def of_node(node_id: str) -> tuple[ModelRow, ...]:
    """The models that are placed on one node."""
    return tuple(on_node(model, node_id) for model in models() if node_id in dict(model.nodes))


def on_node(model: ModelRow, node_id: str) -> ModelRow:
    """`model` as it is on one of its nodes: a model that stands on one alone is as it is."""
    if not model.spread:
        return model
    for replica in model.replicas:
        for shard in replica.shards:
            if shard.node_id == node_id:
                reasons = (shard.reason,) if shard.reason else ()
                serves = model.serves and replica.state == READY
                return replace(model, badge=shard.badge, reasons=reasons, serves=serves)
    return model


@dataclass(frozen=True, slots=True)
class FolderChoice:
    """A folder that a node reported, for the picker."""

    name: str
    words: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """What one node offers to a model: folders, GPUs, engines. `known` is False before it reported."""

    id: str
    known: bool
    folders: tuple[FolderChoice, ...]
    gpus: tuple[tuple[str, str], ...]
    engines: tuple[tuple[str, bool, str], ...]
    models_root: str

    @property
    def names(self) -> tuple[str, ...]:
        """The folders by name."""
        return tuple(folder.name for folder in self.folders)


def node_choice(node_id: str) -> NodeChoice | None:
    """The offer of one node, None when there is no such node."""
    node = Node.objects.filter(pk=node_id).first()
    if node is None:
        return None
    found = node_queries.capabilities(node)
    if found is None:
        return NodeChoice(node_id, False, (), (), (), "")
    return NodeChoice(
        id=node_id,
        known=True,
        folders=tuple(
            FolderChoice(
                folder.name,
                f"{folder.name} ({parts.plural(len(folder.files), 'file')}, {parts.size(folder.total_bytes)})",
                tuple(file.path for file in folder.files if file.path.endswith(".gguf")),
            )
            for folder in found.folders
        ),
        gpus=tuple((gpu.uuid, _gpu_words(gpu.index, gpu.name, gpu.memory_bytes)) for gpu in found.gpus),
        engines=tuple(
            (f"{item.runtime} · {item.delivery}", item.available, item.problem or item.version or "")
            for item in found.runtimes
        ),
        models_root=found.models_root,
    )


def _gpu_words(index: int | None, name: str | None, memory: int | None) -> str:
    label = "GPU" if index is None else f"GPU {index}"
    return f"{label} · {name or 'name not reported'} · {parts.size(memory)}"


def placeable_nodes() -> list[tuple[str, str]]:
    """Approved nodes as choices."""
    return [(node.pk, node.name) for node in Node.objects.approved().only("id", "display_name")]


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key of ``/v1`` as a list shows it."""

    id: int
    name: str
    prefix: str
    models: tuple[str, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    limits: tuple[str, ...]
    previous_until: datetime | None
    badge: Badge
    live: bool


def api_keys(*, include_revoked: bool = False) -> tuple[KeyRow, ...]:
    """The keys, newest first. One query."""
    now = clock.now()
    return tuple(_key(key, now) for key in keys.listed(include_revoked=include_revoked))


def _key(key: ApiKey, now: datetime) -> KeyRow:
    if key.revoked_at is not None:
        badge = Badge("Revoked", "idle", "ban")
    elif key.expires_at is not None and key.expires_at <= now:
        badge = Badge("Expired", "idle", "clock")
    else:
        badge = Badge("Works", "ok", "circle-check")
    return KeyRow(
        id=key.pk,
        name=key.name,
        prefix=key.prefix,
        models=tuple(key.allowed_models),
        created_at=key.created_at,
        created_by=key.created_by,
        expires_at=key.expires_at,
        last_used_at=key.last_used_at,
        limits=_limits(key),
        previous_until=key.previous_until if key.previous_until is not None and key.previous_until > now else None,
        badge=badge,
        live=badge.tone == "ok",
    )


def _limits(key: ApiKey) -> tuple[str, ...]:
    words = (
        (key.requests_per_minute, "requests/min"),
        (key.tokens_per_minute, "tokens/min"),
        (key.max_parallel, "at a time"),
    )
    return tuple(f"{value} {unit}" for value, unit in words if value is not None)


def askable() -> tuple[ModelRow, ...]:
    """Models for the playground, those that serve first."""
    return tuple(sorted(models(), key=lambda model: (not model.serves, model.name)))
