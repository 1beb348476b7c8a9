"""View-models of operations. Every list costs a constant number of queries."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from jobs import queries
from jobs.kinds import ca_rotation, download, launch, move, revoke, rotate_cert, stop, takeover, unplace
from jobs.models import Operation, OperationEvent
from jobs.states import CANCELLED, FAILED, OPEN, SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.redact import redact
from mirbad.web import parts
from mirbad.web.parts import Badge
from models_app import states as model_states
from models_app.models import Placement
from nodes.models import Node
from nodes.states import (
    CA_AGENTS_ROTATING,
    CA_AGENTS_TRUSTING,
    CA_CLOSING,
    CA_MASTER_REISSUED,
    CA_ROLLING_BACK,
    CA_STARTED,
)

PAGE_SIZE = 50
TIMELINE_OPERATIONS = 8
TIMELINE_EVENTS = 60

_OUTCOMES: dict[str, Badge] = {
    OPEN: Badge("In progress", "busy", "hourglass"),
    SUCCEEDED: Badge("Done", "ok", "circle-check"),
    FAILED: Badge("Failed", "bad", "circle-x"),
    CANCELLED: Badge("Cancelled", "idle", "ban"),
}
_WORDS = {
    launch.NAME: "Start",
    stop.NAME: "Stop",
    takeover.NAME: "Takeover",
    takeover.CONTINUE: "Continued takeover",
    ca_rotation.NAME: "CA rotation",
    rotate_cert.NAME: "Certificate rotation",
    revoke.NAME: "Revoke",
    download.NAME: "Download of",
    move.NAME: "Move of",
    unplace.NAME: "Unplace",
}
_FLEET = "of the fleet"
_STAGE_WORDS = {
    launch.CHECKING: "Check the node",
    launch.DOWNLOADING: "Download the weights",
    launch.STARTING: "Start the engine",
    launch.WAITING: "Load the model",
    launch.STOPPING: "Stop the engine",
    launch.CANCELLING: "Stop the engine",
    takeover.PROBING: "Ask the nodes",
    takeover.STORING: "Store the epoch",
    takeover.CLAIMING: "Claim the nodes",
    CA_STARTED: "Make the new CA",
    CA_AGENTS_TRUSTING: "Nodes trust both",
    CA_MASTER_REISSUED: "Show the new certificate",
    CA_AGENTS_ROTATING: "Nodes get certificates",
    CA_CLOSING: "Nodes drop the old CA",
    CA_ROLLING_BACK: "Go back to the old CA",
    rotate_cert.REQUESTING: "Make a key on the node",
    rotate_cert.SETTLING: "Accept it",
    rotate_cert.INSTALLING: "Give the certificate",
    rotate_cert.VERIFYING: "See it in use",
    rotate_cert.ABORTING: "Take it back",
    revoke.REVOKING: "Revoke the keys",
    move.STARTING_TARGET: "Start it there",
    move.TARGET_READY: "See it answer",
    move.PLACEMENT_COMMITTED: "Send requests there",
    move.DRAINING_SOURCE: "Finish old requests",
    move.STOPPING_SOURCE: "Stop it here",
    move.SOURCE_STOPPED: "Give the place up",
    move.UNDOING: "Put it back",
}
_IN_ORDER = {
    takeover.NAME: (takeover.PROBING, takeover.STORING, takeover.CLAIMING),
    takeover.CONTINUE: (takeover.PROBING, takeover.STORING, takeover.CLAIMING),
    ca_rotation.NAME: (CA_STARTED, CA_AGENTS_TRUSTING, CA_MASTER_REISSUED, CA_AGENTS_ROTATING, CA_CLOSING),
    rotate_cert.NAME: (rotate_cert.REQUESTING, rotate_cert.SETTLING, rotate_cert.INSTALLING, rotate_cert.VERIFYING),
    revoke.NAME: (revoke.STOPPING, revoke.REVOKING),
    download.NAME: (download.CHECKING, download.DOWNLOADING),
    unplace.NAME: (unplace.STOPPING,),
}
_READY = "Ready"


@dataclass(frozen=True, slots=True)
class StageMark:
    """One stage in the row of stages: done, now, failed or to come."""

    words: str
    mark: str
    icon: str


@dataclass(frozen=True, slots=True)
class OperationRow:
    """An operation at a glance."""

    id: str
    title: str
    kind: str
    target: str
    model_id: str
    node_id: str
    badge: Badge
    stages: tuple[StageMark, ...]
    stage_words: str
    progress_text: str
    done_bytes: int | None
    total_bytes: int | None
    waits_for: str
    attempt: int
    actor: str
    created_at: datetime
    stage_since: datetime | None
    finished_at: datetime | None
    duration: str
    error: str
    error_code: str
    lines: tuple[str, ...]
    open: bool
    cancelling: bool

    @property
    def measured(self) -> bool:
        """Whether the progress is known in bytes."""
        return self.done_bytes is not None and bool(self.total_bytes)


def row(operation: Operation) -> OperationRow:
    """The row of one operation; runs no query."""
    now = clock.now()
    is_open = operation.finished_at is None
    restart = operation.kind == launch.NAME and bool(operation.input.get("restart"))
    title = "Restart" if restart else _WORDS.get(operation.kind, operation.kind.replace("_", " ").capitalize())
    error = operation.error or {}
    progress = operation.progress or {}
    cancelling = is_open and operation.cancel_requested_at is not None
    badge = Badge("Ending", "busy", "hourglass") if cancelling else _OUTCOMES[operation.outcome]
    return OperationRow(
        id=operation.pk,
        title=title,
        kind=operation.kind,
        target=str(operation.input.get("spec", {}).get("repository", ""))
        or operation.model_id_text
        or operation.node_id_text
        or (_FLEET if operation.kind in (takeover.NAME, ca_rotation.NAME) else operation.target_id),
        model_id=operation.model_id_text,
        node_id=operation.node_id_text,
        badge=badge,
        stages=_stages(operation, restart=restart),
        stage_words=_STAGE_WORDS.get(operation.stage, operation.stage),
        progress_text=redact(str(progress.get("text") or "")),
        done_bytes=progress.get("doneBytes"),
        total_bytes=progress.get("totalBytes"),
        waits_for=_waits_for(operation, now) if is_open else "",
        attempt=operation.attempt,
        actor=operation.actor,
        created_at=operation.created_at,
        stage_since=operation.stage_since,
        finished_at=operation.finished_at,
        duration=parts.span((operation.finished_at or now) - operation.created_at),
        error=redact(str(error.get("detail") or "")),
        error_code=str(error.get("code") or ""),
        lines=tuple(redact(str(line)) for line in error.get("lines") or ()),
        open=is_open,
        cancelling=cancelling,
    )


def _stages(operation: Operation, *, restart: bool) -> tuple[StageMark, ...]:
    if operation.kind == launch.NAME:
        names = [launch.CHECKING, launch.STARTING, launch.WAITING]
        if operation.stage == launch.DOWNLOADING or "download" in operation.state:
            names.insert(0, launch.DOWNLOADING)
        if restart:
            names.insert(0, launch.STOPPING)
        if operation.stage == launch.CANCELLING:
            names = [launch.CANCELLING]
        words = [_STAGE_WORDS[name] for name in names] + ([_READY] if operation.stage != launch.CANCELLING else [])
    elif (known := _order(operation)) and operation.stage in (*known, "done"):
        names = list(known)
        words = [*(_STAGE_WORDS[name] for name in names), "Done"]
    else:
        names = [operation.stage]
        words = [_STAGE_WORDS.get(operation.stage, operation.stage), "Done"]
    at = names.index(operation.stage) if operation.stage in names else 0
    return tuple(_mark(word, index, at, operation.outcome) for index, word in enumerate(words))


def _order(operation: Operation) -> tuple[str, ...]:
    if operation.kind == move.NAME:
        return move.shown_stages(operation.input)
    return _IN_ORDER.get(operation.kind, ())


def _mark(words: str, index: int, at: int, outcome: str) -> StageMark:
    if outcome == SUCCEEDED or index < at:
        return StageMark(words, "done", "circle-check")
    if index > at:
        return StageMark(words, "ahead", "circle-dashed")
    if outcome == FAILED:
        return StageMark(words, "failed", "circle-x")
    if outcome == CANCELLED:
        return StageMark(words, "ahead", "ban")
    return StageMark(words, "now", "loader")


def _waits_for(operation: Operation, now: datetime) -> str:
    if operation.lease_expires_at is not None and operation.lease_expires_at > now:
        return "A worker does this stage now."
    if operation.next_run_at > now:
        return f"It looks again {parts.ago(operation.next_run_at, now)}."
    return "It waits for a free worker."


def find(state: str, kind: str, before: str) -> tuple[tuple[OperationRow, ...], str]:
    """A page of operations, newest first, and where the next one begins ("" at the end). One query."""
    found: QuerySet[Operation] = Operation.objects.order_by("-id")
    if state == "open":
        found = found.filter(finished_at__isnull=True)
    elif state in (SUCCEEDED, FAILED, CANCELLED):
        found = found.filter(outcome=state)
    if kind:
        found = found.filter(kind=kind)
    if before:
        found = found.filter(pk__lt=before)
    rows = list(found[: PAGE_SIZE + 1])
    following = rows[PAGE_SIZE - 1].pk if len(rows) > PAGE_SIZE else ""
    return tuple(row(operation) for operation in rows[:PAGE_SIZE]), following


def unfinished() -> tuple[OperationRow, ...]:
    """What happens now, the newest first. One query."""
    return tuple(row(operation) for operation in queries.unfinished().order_by("-id")[:PAGE_SIZE])


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
        tone = _OUTCOMES[operation.outcome].tone
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
    open: OperationRow | None
    failed: OperationRow | None


def of_model(model_id: str) -> ModelOperations:
    """Two queries. `failed` is None when the model's own state tells the same failure."""
    newest = Operation.objects.filter(model_id_text=model_id).order_by("-id").first()
    if newest is None:
        return ModelOperations(model_id, None, None)
    if newest.finished_at is None:
        return ModelOperations(model_id, row(newest), None)
    told = Placement.objects.filter(model_id=model_id, observed=model_states.FAILED).exists()
    return ModelOperations(model_id, None, row(newest) if newest.outcome == FAILED and not told else None)


def of_node(node_id: str) -> tuple[OperationRow, ...]:
    """What happens to a node and its models now, the newest first. One query."""
    found = queries.unfinished().filter(node_id_text=node_id).order_by("-id")
    return tuple(row(operation) for operation in found[:PAGE_SIZE])


@dataclass(frozen=True, slots=True)
class NodeCell:
    """The open operations of one node, for the list of nodes."""

    node_id: str
    operations: tuple[OperationRow, ...]


def node_cells() -> tuple[NodeCell, ...]:
    """The open operations of every node, so that a cell whose last one ended is emptied. Two queries."""
    by_node: dict[str, list[OperationRow]] = {node_id: [] for node_id in Node.objects.values_list("pk", flat=True)}
    for operation in queries.unfinished().filter(node_id_text__in=by_node).order_by("-id"):
        by_node[operation.node_id_text].append(row(operation))
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
