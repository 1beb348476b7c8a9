"""View-models of operations. Every list costs a constant number of queries."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet

from agent.common.redaction import redact
from agent.wire.errors import AgentCode
from jobs import queries
from jobs.models import Operation, OperationEvent
from jobs.pages.contexts.rows import OUTCOMES, OperationRow, row
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.web import parts
from models_app import exits
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
TIMELINE_EXITS = 20


@dataclass(frozen=True, slots=True)
class OperationFilter:
    """A selection of operations; empty is all. `before` is the id after which a page begins."""

    state: str = ""
    kind: str = ""
    node_id: str = ""
    model_id: str = ""
    before: str = ""

    @property
    def narrowed(self) -> bool:
        """True when the list is narrowed by anything but its page."""
        return bool(self.state or self.kind or self.node_id or self.model_id)

    def query(self, **other: str) -> str:
        """Return the query string of this selection, with `other` in place of its values."""
        names = {"state": self.state, "kind": self.kind, "node": self.node_id, "model": self.model_id, **other}
        return urlencode({name: value for name, value in names.items() if value})


def find(chosen: OperationFilter) -> tuple[tuple[OperationRow, ...], str]:
    """Return a page of operations, newest first, and the start of the next one ("" at the end). Two queries."""
    found: QuerySet[Operation] = Operation.objects.order_by("-id")
    if chosen.state == "open":
        found = found.filter(finished_at__isnull=True)
    elif chosen.state in (SUCCEEDED, FAILED, CANCELLED):
        found = found.filter(outcome=chosen.state)
    if chosen.kind:
        found = found.filter(kind=chosen.kind)
    if chosen.node_id:
        found = found.filter(queries.about_node(chosen.node_id))
    if chosen.model_id:
        found = found.filter(model_id_text=chosen.model_id)
    if chosen.before:
        found = found.filter(pk__lt=chosen.before)
    rows = list(found[: PAGE_SIZE + 1])
    following = rows[PAGE_SIZE - 1].pk if len(rows) > PAGE_SIZE else ""
    return _rows(rows[:PAGE_SIZE]), following


def _rows(operations: Iterable[Operation]) -> tuple[OperationRow, ...]:
    fenced = fencing.is_fenced()
    return tuple(row(operation, fenced=fenced) for operation in operations)


@dataclass(frozen=True, slots=True)
class Activity:
    """The drawer on every page: open operations, and those that ended last."""

    open: tuple[OperationRow, ...]
    count: int
    recent: tuple[OperationRow, ...]

    @property
    def words(self) -> str:
        """The count, for a screen reader."""
        return (
            f"{parts.plural(self.count, 'operation', 'operations')} in progress"
            if self.count
            else "Nothing in progress"
        )


def cancelling_text(operation_id: str) -> str:
    """Return what a cancellation of an operation does, as a sentence; "" for an unknown one. One query."""
    found = Operation.objects.filter(pk=operation_id).first()
    return row(found).cancelling_text if found is not None else ""


def activity() -> Activity:
    """Return the values of the drawer. Four queries."""
    return Activity(
        open=_rows(queries.unfinished().order_by("-id")[:DRAWER_ROWS]),
        count=queries.unfinished().count(),
        recent=recent(DRAWER_RECENT),
    )


def unfinished() -> tuple[OperationRow, ...]:
    """Return the open operations, newest first. Two queries."""
    return _rows(queries.unfinished().order_by("-id")[:PAGE_SIZE])


def recent(limit: int) -> tuple[OperationRow, ...]:
    """Return the operations that ended last. One query."""
    ended = Operation.objects.filter(finished_at__isnull=False).order_by("-finished_at", "-pk")
    return tuple(row(operation) for operation in ended[:limit])


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One line of a timeline."""

    time: datetime
    stage: str
    text: str
    tone: str
    operation_id: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class OperationDetail:
    """An operation with its timeline."""

    row: OperationRow
    events: tuple[TimelineLine, ...]
    facts: tuple[tuple[str, Any], ...]


def detail(operation_id: str) -> OperationDetail:
    """Return an operation with its timeline. Two queries. Raises NotFound."""
    operation = queries.one_operation(operation_id)
    shown = row(operation)
    events = tuple(_line(event) for event in operation.events.all())
    return OperationDetail(
        row=shown,
        events=events,
        facts=(
            ("Operation", operation.pk),
            ("Started by", shown.actor),
            ("Session or address", operation.actor),
            ("Stage", shown.stage_words),
            ("Failed attempts of this stage", operation.attempt),
        ),
    )


def _line(event: OperationEvent, operation: Operation | None = None) -> TimelineLine:
    tone = ""
    if operation is not None and operation.finished_at is not None and event.time >= operation.finished_at:
        tone = OUTCOMES[operation.outcome].tone
    return TimelineLine(
        time=event.time,
        stage=event.stage,
        text=redact(event.text),
        tone=tone,
        operation_id=operation.pk if operation else "",
        title=row(operation).title if operation else "",
    )


def _end_line(end: exits.DescribedExit) -> TimelineLine:
    lost = end.row.code in exits.LOST
    return TimelineLine(
        time=end.at,
        stage="",
        text=" ".join(part for part in (end.row.reason, end.requests, end.repeated) if part),
        tone="warn" if lost else "bad",
        title=f"Engine {'lost' if lost else 'ended'} on {end.row.node_id_text}",
    )


@dataclass(frozen=True, slots=True)
class ModelOperations:
    """The open operations of a model, or the failure of the last one."""

    model_id: str
    open: tuple[OperationRow, ...]
    failed: OperationRow | None


def of_model(model_id: str) -> ModelOperations:
    """Return the operations of a model. Two queries. `failed` is None when the model's own state shows that failure."""
    if happening := _rows(queries.unfinished().filter(model_id_text=model_id).order_by("id")[:PAGE_SIZE]):
        return ModelOperations(model_id, happening, None)
    newest = Operation.objects.filter(model_id_text=model_id).order_by("-id").first()
    if newest is None:
        return ModelOperations(model_id, (), None)
    # A start that was refused for memory has no engine: a failure in the model's state is of an earlier one.
    refused = (newest.error or {}).get("code") == AgentCode.ADMISSION_REFUSED
    is_shown = not refused and Placement.objects.filter(model_id=model_id, observed=model_states.FAILED).exists()
    return ModelOperations(model_id, (), row(newest) if newest.outcome == FAILED and not is_shown else None)


def of_node(node_id: str) -> tuple[OperationRow, ...]:
    """Return the open operations of a node and its models, newest first. Two queries."""
    return _rows(queries.unfinished().filter(queries.about_node(node_id)).order_by("-id")[:PAGE_SIZE])


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """The operations of one node: those that are open, and those that ended last."""

    node_id: str
    open: tuple[OperationRow, ...]
    ended: tuple[OperationRow, ...]
    more: bool


def history_of_node(node_id: str) -> NodeHistory:
    """Return the operations of one node. Three queries."""
    ended = Operation.objects.filter(queries.about_node(node_id), finished_at__isnull=False).order_by(
        "-finished_at", "-pk"
    )
    rows = list(ended[: HISTORY_ROWS + 1])
    return NodeHistory(node_id, of_node(node_id), _rows(rows[:HISTORY_ROWS]), len(rows) > HISTORY_ROWS)


@dataclass(frozen=True, slots=True)
class OperationNodeCell:
    """The open operations of one node, for the list of nodes; `jobs` are shown beside its state."""

    node_id: str
    operations: tuple[OperationRow, ...]

    @property
    def jobs(self) -> tuple[OperationRow, ...]:
        """The operations with a chip, like an evacuation."""
        return tuple(operation for operation in self.operations if operation.chip)


def node_cells() -> tuple[OperationNodeCell, ...]:
    """Return the open operations of every node, also of those without, so that their cells are emptied. Two queries."""
    by_node: dict[str, list[OperationRow]] = {node_id: [] for node_id in Node.objects.values_list("pk", flat=True)}
    for operation in queries.unfinished().order_by("-id"):
        shown = row(operation)
        for node_id in shown.node_ids & by_node.keys():
            by_node[node_id].append(shown)
    return tuple(OperationNodeCell(node_id, tuple(rows)) for node_id, rows in by_node.items())


def last_failures(model_ids: tuple[str, ...]) -> dict[str, OperationRow]:
    """Return the newest operation of each model, if it failed. One query."""
    newest = queries.last_by_model(model_ids)
    return {model_id: row(operation) for model_id, operation in newest.items() if operation.outcome == FAILED}


def timeline(model_id: str) -> tuple[TimelineLine, ...]:
    """Return the events of a model's last operations and the ends of its engines, newest first. Five queries."""
    operations = {
        operation.pk: operation
        for operation in Operation.objects.filter(model_id_text=model_id).order_by("-id")[:TIMELINE_OPERATIONS]
    }
    events = OperationEvent.objects.filter(operation_id__in=list(operations)).order_by("-id")[:TIMELINE_EVENTS]
    shown = [_line(event, operations[event.operation_id]) for event in events]
    oldest = shown[-1].time if len(shown) == TIMELINE_EVENTS else None
    ends = [_end_line(end) for end in exits.of_model(model_id, TIMELINE_EXITS) if oldest is None or end.at >= oldest]
    shown = sorted([*shown, *ends], key=lambda line: line.time, reverse=True)
    # The title of an operation is shown once, at the newest of its lines. The end of an engine is no operation.
    before = ["", *(line.operation_id for line in shown)]
    return tuple(
        replace(line, title="") if line.operation_id and line.operation_id == previous else line
        for line, previous in zip(shown, before, strict=False)
    )
