"""View-models of the models pages. Every list costs a constant number of queries."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from agent.common.redaction import redact
from agent.wire.instances import EarlierRun
from mirbad.web import parts
from mirbad.web.parts import Badge
from models_app import queries
from models_app.fit import serve_plan
from models_app.models import ModelDefinition, Placement
from models_app.models.definition import ON_FAILURE
from models_app.pages.contexts import badges, replicas
from models_app.pages.contexts.replicas import ReplicaRow
from models_app.registry import restart_needed
from models_app.states import FAILED, READY, RUNNING, STOPPED, UNHEALTHY
from nodes.models import Node


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model in a list: desired and observed state."""

    id: str
    name: str
    names: tuple[str, ...]
    engine: str
    weights: str
    tags: tuple[str, ...]
    state: str
    badge: Badge
    desired: Badge | None
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
    desired_running: bool

    @property
    def renamed(self) -> bool:
        """Return whether clients use another name than the id."""
        return self.names != (self.id,)

    @property
    def may_start(self) -> bool:
        """Return whether the model can be started now."""
        return not self.held and any(replica.may_start for replica in self.replicas)

    @property
    def may_stop(self) -> bool:
        """Return whether the model can be stopped now."""
        return any(replica.may_stop for replica in self.replicas)

    @property
    def node_name(self) -> str:
        """Return the name of the first node; empty without one."""
        return self.nodes[0][1] if self.nodes else ""

    @property
    def in_replicas(self) -> bool:
        """Return whether the page lists the replicas."""
        return self.spread or any(replica.several for replica in self.replicas)

    @property
    def spread(self) -> bool:
        """Return whether the model is placed on more than one node."""
        return len(self.nodes) > 1


def models() -> tuple[ModelRow, ...]:
    """Return every model. Four queries for any number of models."""
    rows = list(queries.all_models())
    nodes = _nodes(rows)
    return tuple(row(model, nodes) for model in rows)


def one(model_id: str) -> ModelDefinition:
    """The definition with sources, placements and hold. Raises NotFound."""
    return queries.one_model(model_id)


def _nodes(rows: Iterable[ModelDefinition]) -> dict[str, Node]:
    node_ids = {placement.node_id_text for model in rows for placement in model.placements.all()}
    return {node.pk: node for node in Node.objects.filter(pk__in=node_ids).only(*_NODE_COLUMNS)}


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
    """Return the row of a model whose sources, placements and hold are prefetched."""
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
        badge=badges.of(shown.name, desired_running=running),
        desired=badges.WANTED[RUNNING if running else STOPPED] if placement else None,
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
        desired_running=running,
    )


def _name_of(node_id: str, nodes: dict[str, Node]) -> str:
    return nodes[node_id].name if node_id in nodes else node_id


def _gpus(placements: Iterable[Placement]) -> str:
    count = sum(len(placement.gpu_uuids) for placement in placements)
    return parts.plural(count, "GPU") if count else ""


def _memory(placements: Iterable[Placement]) -> int | None:
    """Return the memory of all engines; None while none reports it."""
    reported = [placement.observed_view.get("memoryBytes") for placement in placements]
    known = [value for value in reported if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class ModelDetail:
    """The page of a model."""

    row: ModelRow
    facts: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    gpu_uuids: tuple[str, ...]
    notice: str
    failure: str
    failure_code: str
    last_lines: tuple[str, ...]
    progress_text: str
    done_bytes: int | None
    total_bytes: int | None
    started_at: str
    start_seconds: float | None
    instance_id: str
    halted: str
    restart_at: datetime | None
    runs: tuple[tuple[int, str], ...]


def detail(model: ModelDefinition) -> ModelDetail:
    """Return the view-model of a definition from `queries.one_model`. One more query, for the node."""
    shown = row(model, _nodes([model]))
    placements = queries.placements_of(model)
    troubled = [one for one in placements if one.observed in (FAILED, UNHEALTHY)]
    # A failure is shown with its last lines: of several the first, and all of them in the list of replicas.
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
        notice=next(filter(None, map(queries.notice_of, placements)), "") if shown.serves else "",
        failure=placement.observed_reason if placement and failed else "",
        failure_code=str(view.get("reasonCode") or "") if failed else "",
        last_lines=tuple(redact(str(line)) for line in view.get("lastLines") or ()) if failed else (),
        progress_text=str(progress.get("text") or ""),
        done_bytes=progress.get("doneBytes"),
        total_bytes=progress.get("totalBytes"),
        started_at=str(view.get("startedAt") or ""),
        start_seconds=placement.start_seconds if placement else None,
        instance_id=str(placement.pk) if placement and view else "",
        halted=next((one.halted for one in placements if one.halted), ""),
        restart_at=min((one.restart_at for one in placements if one.restart_at), default=None),
        runs=_runs(view),
    )


def _runs(view: Mapping[str, Any]) -> tuple[tuple[int, str], ...]:
    """Return the earlier runs whose logs are kept: the number, and how each ended."""
    runs = (EarlierRun.model_validate(run) for run in view.get("earlierRuns") or ())
    return tuple((one.run, f"Run {one.run} before: {_end_of(one)}") for one in runs)


def _end_of(run: EarlierRun) -> str:
    code = "" if run.exit_code is None else f"exit code {run.exit_code}"
    at = (run.exited_at or "")[:16].replace("T", " ")
    return ", ".join(part for part in (run.exit_signal or code, f"{at} UTC" if at else "") if part) or "ended"


def _facts(model: ModelDefinition, shown: ModelRow) -> tuple[tuple[str, str], ...]:
    image = "@".join(part for part in (model.image, model.image_digest) if part)
    facts = [
        ("Served as", ", ".join(model.names)),
        ("Engine", shown.engine),
        ("Weights", shown.weights),
        ("Context", _context(model)),
        ("GPU budget", _budget(model.gpu_memory_budget_bytes)),
        ("Host budget", _budget(model.host_memory_budget_bytes)),
        ("If its engine ends", "restarted" if model.restart_policy == ON_FAILURE else "stays stopped"),
        ("Start automatically", "yes" if model.auto_start else "no"),
        ("Start within", parts.span(model.start_timeout_seconds)),
    ]
    if model.delivery == "container":
        facts.insert(2, ("Image", image or "node default"))
    return tuple(facts)


def _context(model: ModelDefinition) -> str:
    """Return the context of one request, and how many requests have as much at a time where that is stated."""
    plan = serve_plan(model.runtime, model.args, context_length=model.context_length)
    many = f"{plan.shares} requests at a time" if plan.shares > 1 else ""
    if plan.context_each is None:
        return f"engine default, split among {many}" if many else "engine default"
    return f"{plan.context_each} tokens each, {many}" if many else f"{plan.context_each} tokens"


def _budget(value: int | None) -> str:
    return "estimated" if value is None else parts.size(value)


@dataclass(frozen=True, slots=True)
class ModelNodeCell:
    """The models of one node, for the list of nodes."""

    node_id: str
    models: tuple[ModelRow, ...]

    @property
    def ready(self) -> int:
        """Return how many of them serve."""
        return sum(model.serves for model in self.models)


def node_cells() -> tuple[ModelNodeCell, ...]:
    """Return the models of every node that is not revoked, with one query more than the list of models."""
    by_node: dict[str, list[ModelRow]] = {node_id: [] for node_id in Node.objects.values_list("pk", flat=True)}
    for model in models():
        for node_id, _ in model.nodes:
            by_node.setdefault(node_id, []).append(on_node(model, node_id))
    return tuple(ModelNodeCell(node_id, tuple(rows)) for node_id, rows in by_node.items())


def of_node(node_id: str) -> tuple[ModelRow, ...]:
    """Return the models that are placed on one node."""
    return tuple(on_node(model, node_id) for model in models() if node_id in dict(model.nodes))


def on_node(model: ModelRow, node_id: str) -> ModelRow:
    """Return `model` as it is on one of its nodes; a model with one node is returned unchanged."""
    if not model.spread:
        return model
    for replica in model.replicas:
        for shard in replica.shards:
            if shard.node_id == node_id:
                reasons = (shard.reason,) if shard.reason else ()
                serves = model.serves and replica.state == READY
                return replace(model, badge=shard.badge, reasons=reasons, serves=serves)
    return model


def for_playground() -> tuple[ModelRow, ...]:
    """Return the models for the playground, serving ones first."""
    return tuple(sorted(models(), key=lambda model: (not model.serves, model.name)))
