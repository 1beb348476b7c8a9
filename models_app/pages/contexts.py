"""View-models of the models pages. Every list costs a constant number of queries."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.wire.instances import LogSlice
from mirbad.kernel import clock
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.redact import redact
from mirbad.web import parts
from mirbad.web.parts import Badge
from models_app import keys, queries
from models_app.models import ApiKey, ModelDefinition, Placement
from models_app.registry import config_hash
from models_app.states import FAILED, READY, RUNNING, STARTING, STOPPED, STOPPING, UNHEALTHY, UNKNOWN
from nodes import queries as node_queries
from nodes.link import client
from nodes.models import Node

LOG_TAIL = 300

_BADGES: dict[str, Badge] = {
    READY: Badge("Ready", "ok", "circle-check", "It answers requests"),
    STARTING: Badge("Starting", "busy", "hourglass"),
    STOPPING: Badge("Stopping", "busy", "hourglass"),
    UNHEALTHY: Badge("Unhealthy", "warn", "triangle-alert", "It runs but does not answer its health check"),
    FAILED: Badge("Failed", "bad", "circle-x"),
    STOPPED: Badge("Stopped", "idle", "circle-stop"),
    UNKNOWN: Badge("Not reported", "unknown", "circle-help", "Its node does not report now"),
    queries.UNPLACED: Badge("Unplaced", "idle", "circle-dashed", "It stands on no node"),
}
_WANTED = {
    RUNNING: Badge("Running", "ok", "circle-play", "What was asked for"),
    STOPPED: Badge("Stopped", "idle", "circle-stop", "What was asked for"),
}
_AWAITED = Badge("Waiting to start", "busy", "hourglass", "It should run and does not yet")


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
    node_name: str
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
        return self.placed and self.state not in (READY, STARTING, UNHEALTHY) and not self.held

    @property
    def may_stop(self) -> bool:
        """Whether there is anything to stop."""
        return self.placed and (self.wanted_running or self.state in (READY, STARTING, UNHEALTHY, UNKNOWN))


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
    placement = queries.placement_of(model)
    shown = queries.shown_state(placement)
    node = nodes.get(placement.node_id_text) if placement else None
    source = next(iter(model.sources.all()), None)
    hold = getattr(model, "hold", None)
    badge = _BADGES[shown.name]
    if placement and shown.name == STOPPED and placement.desired == RUNNING:
        badge = _AWAITED
    view = placement.observed_view if placement else {}
    return ModelRow(
        id=model.pk,
        name=model.name,
        names=model.names,
        engine=f"{model.runtime} · {model.delivery}",
        weights="/".join(part for part in (source.folder, source.file) if part) if source else "none",
        tags=tuple(model.tags),
        state=shown.name,
        badge=badge,
        wanted=_WANTED[placement.desired] if placement else None,
        reasons=shown.reasons,
        node_id=placement.node_id_text if placement else "",
        node_name=node.name if node else (placement.node_id_text if placement else ""),
        gpus=parts.plural(len(placement.gpu_uuids), "GPU") if placement and placement.gpu_uuids else "",
        memory=parts.size(view.get("memoryBytes")),
        serves=shown.serves,
        restart_needed=_restart_needed(model, placement, node),
        held=hold.words if hold else "",
        auto_start=model.auto_start,
        observed_at=placement.observed_at if placement else None,
        placed=placement is not None,
        wanted_running=placement is not None and placement.desired == RUNNING,
    )


def _restart_needed(model: ModelDefinition, placement: Placement | None, node: Node | None) -> bool:
    if placement is None or node is None or placement.observed not in (READY, STARTING, UNHEALTHY):
        return False
    running = placement.observed_config_hash
    return bool(running) and running != config_hash(model, placement, node)


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
    placement = queries.placement_of(model)
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
        if model.node_id:
            by_node.setdefault(model.node_id, []).append(model)
    return tuple(NodeCell(node_id, tuple(rows)) for node_id, rows in by_node.items())


def of_node(node_id: str) -> tuple[ModelRow, ...]:
    """The models that are placed on one node."""
    return tuple(model for model in models() if model.node_id == node_id)


@dataclass(frozen=True, slots=True)
class Log:
    """The last lines of an engine, or why they cannot be shown."""

    lines: tuple[str, ...]
    problem: str
    truncated: bool


def log(model: ModelDefinition) -> Log:
    """Asks the agent for the end of the engine's log. Never raises for a node that is away."""
    placement = queries.placement_of(model)
    if placement is None or not placement.observed_view:
        return Log((), "Nothing has run here yet. The log begins with the first start.", truncated=False)
    try:
        # A node that is known to be away is not waited for.
        node_queries.require_serving(placement.node_id_text)
        path = f"instances/{placement.pk}/log?tail={LOG_TAIL}"
        found = client.call(placement.node_id_text, "GET", path, answer=LogSlice, timeout_seconds=4.0)
    except MirbadError as error:
        return Log((), error.detail, truncated=False)
    return Log(tuple(redact(line) for line in found.lines), "", found.truncated)


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
