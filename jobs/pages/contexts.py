"""View-models of operations. Every list costs a constant number of queries."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet

from agent.wire.errors import AgentCode
from jobs import queries
from jobs.models import Operation, OperationEvent
from jobs.pages.rows import JOBS, OUTCOMES, OperationRow, row
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel.redact import redact
from mirbad.web import parts
from models_app import states as model_states
from models_app.models import Placement
from nodes import fencing
from nodes.models import Node

__all__ = ["OperationRow", "row"]

PAGE_SIZE = 50
DRAWER_ROWS = 20
DRAWER_RECENT = 6
HISTORY_ROWS = 25
TIMELINE_OPERATIONS = 8
TIMELINE_EVENTS = 60


@dataclass(frozen=True, slots=True)
class Filter:
    """Which operations are asked for; empty is all. `before` is the id after which a page begins."""

    state: str = ""
    kind: str = ""
    node_id: str = ""
    model_id: str = ""
    before: str = ""

    @property
    def narrowed(self) -> bool:
        """Whether anything but the page is chosen."""
        return bool(self.state or self.kind or self.node_id or self.model_id)

    def query(self, **other: str) -> str:
        """The query string of this choice, with `other` in place of what stands."""
        names = {"state": self.state, "kind": self.kind, "node": self.node_id, "model": self.model_id, **other}
        return urlencode({name: value for name, value in names.items() if value})


def find(wanted: Filter) -> tuple[tuple[OperationRow, ...], str]:
    """A page of operations, newest first, and where the next one begins ("" at the end). Two queries."""
    found: QuerySet[Operation] = Operation.objects.order_by("-id")
    if wanted.state == "open":
        found = found.filter(finished_at__isnull=True)
    elif wanted.state in (SUCCEEDED, FAILED, CANCELLED):
        found = found.filter(outcome=wanted.state)
    if wanted.kind:
        found = found.filter(kind=wanted.kind)
    if wanted.node_id:
        found = found.filter(queries.about_node(wanted.node_id))
    if wanted.model_id:
        found = found.filter(model_id_text=wanted.model_id)
    if wanted.before:
        found = found.filter(pk__lt=wanted.before)
    rows = list(found[: PAGE_SIZE + 1])
    following = rows[PAGE_SIZE - 1].pk if len(rows) > PAGE_SIZE else ""
    return _rows(rows[:PAGE_SIZE]), following


def _rows(operations: Iterable[Operation]) -> tuple[OperationRow, ...]:
    fenced = fencing.is_fenced()
    return tuple(row(operation, fenced=fenced) for operation in operations)


@dataclass(frozen=True, slots=True)
class Activity:
    """What the drawer on every page shows: what happens now, and what ended last."""

    open: tuple[OperationRow, ...]
    count: int
    recent: tuple[OperationRow, ...]

    @property
    def words(self) -> str:
        """For a screen reader."""
        return (
            f"{parts.plural(self.count, 'operation', 'operations')} in progress"
            if self.count
            else "Nothing in progress"
        )


def activity() -> Activity:
    """Four queries."""
    return Activity(
        open=_rows(queries.unfinished().order_by("-id")[:DRAWER_ROWS]),
        count=queries.unfinished().count(),
        recent=recent(DRAWER_RECENT),
    )


def unfinished() -> tuple[OperationRow, ...]:
    """What happens now, the newest first. Two queries."""
    return _rows(queries.unfinished().order_by("-id")[:PAGE_SIZE])


def recent(limit: int) -> tuple[OperationRow, ...]:
    """What ended last. One query."""
    ended = Operation.objects.filter(finished_at__isnull=False).order_by("-finished_at")
    return tuple(row(operation) for operation in ended[:limit])


@dataclass(frozen=True, slots=True)
class Happened:
    """One line of a timeline."""

    time: datetime
    stage: str
    text: str
    tone: str
    operation_id: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class OperationDetail:
    """An operation with everything that happened to it."""

    row: OperationRow
    events: tuple[Happened, ...]
    facts: tuple[tuple[str, Any], ...]


def detail(operation_id: str) -> OperationDetail:
    """Two queries. Raises NotFound."""
    operation = queries.one_operation(operation_id)
    shown = row(operation)
    events = tuple(_happened(event) for event in operation.events.all())
    return OperationDetail(
        row=shown,
        events=events,
        facts=(
            ("Operation", operation.pk),
            ("Asked by", operation.actor),
            ("Stage", shown.stage_words),
            ("Tries of this stage", operation.attempt),
        ),
    )


def _happened(event: OperationEvent, operation: Operation | None = None) -> Happened:
    tone = ""
    if operation is not None and operation.finished_at is not None and event.time >= operation.finished_at:
        tone = OUTCOMES[operation.outcome].tone
    return Happened(
        time=event.time,
        stage=event.stage,
        text=redact(event.text),
        tone=tone,
        operation_id=operation.pk if operation else "",
        title=row(operation).title if operation else "",
    )


@dataclass(frozen=True, slots=True)
class ModelOperations:
    """What happens to a model now, or the failure that ended the last thing."""

    model_id: str
    open: tuple[OperationRow, ...]
    failed: OperationRow | None


def of_model(model_id: str) -> ModelOperations:
    """Two queries. `failed` is None when the model's own state tells the same failure."""
    if happening := _rows(queries.unfinished().filter(model_id_text=model_id).order_by("id")[:PAGE_SIZE]):
        return ModelOperations(model_id, happening, None)
    newest = Operation.objects.filter(model_id_text=model_id).order_by("-id").first()
    if newest is None:
        return ModelOperations(model_id, (), None)
    # A start that was refused for memory made no engine: what the model's state tells is of an earlier one.
    refused = (newest.error or {}).get("code") == AgentCode.ADMISSION_REFUSED
    told = not refused and Placement.objects.filter(model_id=model_id, observed=model_states.FAILED).exists()
    return ModelOperations(model_id, (), row(newest) if newest.outcome == FAILED and not told else None)


def of_node(node_id: str) -> tuple[OperationRow, ...]:
    """What happens to a node and its models now, the newest first. Two queries."""
    return _rows(queries.unfinished().filter(queries.about_node(node_id)).order_by("-id")[:PAGE_SIZE])


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """The operations of one node: those that are open, and those that ended last."""

    node_id: str
    open: tuple[OperationRow, ...]
    ended: tuple[OperationRow, ...]
    more: bool


def history_of_node(node_id: str) -> NodeHistory:
    """Three queries."""
    ended = Operation.objects.filter(queries.about_node(node_id), finished_at__isnull=False).order_by("-finished_at")
    rows = list(ended[: HISTORY_ROWS + 1])
    return NodeHistory(node_id, of_node(node_id), _rows(rows[:HISTORY_ROWS]), len(rows) > HISTORY_ROWS)


@dataclass(frozen=True, slots=True)
class NodeCell:
    """The open operations of one node, for the list of nodes; `jobs` are those that stand beside its state."""

    node_id: str
    operations: tuple[OperationRow, ...]

    @property
    def jobs(self) -> tuple[OperationRow, ...]:
        """A job, or the node's evacuation."""
        return tuple(operation for operation in self.operations if operation.kind in JOBS)


def node_cells() -> tuple[NodeCell, ...]:
    """The open operations of every node, so that a cell whose last one ended is emptied. Two queries."""
    by_node: dict[str, list[OperationRow]] = {node_id: [] for node_id in Node.objects.values_list("pk", flat=True)}
    for operation in queries.unfinished().order_by("-id"):
        shown = row(operation)
        for node_id in {operation.node_id_text, str(operation.input.get("sourceNode") or "")} & by_node.keys():
            by_node[node_id].append(shown)
    return tuple(NodeCell(node_id, tuple(rows)) for node_id, rows in by_node.items())


def last_failures(model_ids: tuple[str, ...]) -> dict[str, OperationRow]:
    """The newest operation of each model whose newest operation failed. One query."""
    newest = queries.last_by_model(model_ids)
    return {model_id: row(operation) for model_id, operation in newest.items() if operation.outcome == FAILED}


def timeline(model_id: str) -> tuple[Happened, ...]:
    """The events of a model's last operations, newest first. Two queries."""
    operations = {
        operation.pk: operation
        for operation in Operation.objects.filter(model_id_text=model_id).order_by("-id")[:TIMELINE_OPERATIONS]
    }
    events = OperationEvent.objects.filter(operation_id__in=list(operations)).order_by("-id")[:TIMELINE_EVENTS]
    shown = [_happened(event, operations[event.operation_id]) for event in events]
    # The name of an operation stands once, at the newest of its lines.
    before = ["", *(line.operation_id for line in shown)]
    return tuple(
        replace(line, title="") if line.operation_id == previous else line
        for line, previous in zip(shown, before, strict=False)
    )
