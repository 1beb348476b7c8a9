"""The row of one operation: its title, its stages in order, its status. Runs no query."""

from dataclasses import dataclass
from datetime import datetime

from agent.common.redaction import redact
from jobs import kinds, status_text
from jobs.base import AnyKind, AnyStep
from jobs.models import Operation
from jobs.states import CANCELLED, FAILED, OPEN, SUCCEEDED
from mirbad.kernel import clock
from mirbad.web import parts
from mirbad.web.parts import Badge

OUTCOMES: dict[str, Badge] = {
    OPEN: Badge("In progress", "busy", "hourglass"),
    SUCCEEDED: Badge("Done", "ok", "circle-check"),
    FAILED: Badge("Failed", "bad", "circle-x"),
    CANCELLED: Badge("Cancelled", "idle", "ban"),
}
_ENDING = Badge("Cancelling", "busy", "hourglass")
_PAUSED = Badge("Paused", "warn", "circle-pause")


def names_of_kinds() -> tuple[tuple[str, str], ...]:
    """Return every kind with its title, ordered by title."""
    return tuple(sorted(((kind.name, kind.title) for kind in kinds.KINDS.values()), key=lambda pair: pair[1]))


@dataclass(frozen=True, slots=True)
class StageMark:
    """One stage in the row of stages: done, now, failed or ahead."""

    words: str
    mark: str
    icon: str


@dataclass(frozen=True, slots=True)
class OperationRow:
    """An operation at a glance."""

    id: str
    title: str
    kind: str
    kind_title: str
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
    where: str
    stage_age: str
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
    paused: bool
    may_cancel: bool
    cancelling_text: str
    """The effect of a cancellation."""

    chip: bool
    """Shown beside the state of its node."""
    node_ids: frozenset[str]
    """The nodes that it concerns."""

    @property
    def measured(self) -> bool:
        """True when the progress is known in bytes."""
        return self.done_bytes is not None and bool(self.total_bytes)


def row(operation: Operation, *, fenced: bool = False) -> OperationRow:
    """Return the row of one operation; `fenced`: this master is fenced."""
    now = clock.now()
    is_open = operation.finished_at is None
    known = kinds.read(operation)
    error = operation.error or {}
    progress = operation.progress or {}
    cancelling = is_open and operation.cancel_requested_at is not None
    paused = is_open and bool(progress.get("paused"))
    badge = _ENDING if cancelling else _PAUSED if paused else OUTCOMES[operation.outcome]
    title, subject, where = _texts(operation, known)
    return OperationRow(
        id=operation.pk,
        title=title,
        kind=operation.kind,
        kind_title=known[0].title if known is not None else title,
        target=subject,
        model_id=operation.model_id_text,
        node_id=operation.node_id_text,
        badge=badge,
        stages=_stages(operation, known),
        stage_words=_stage_words(operation.stage, known),
        progress_text=redact(str(progress.get("text") or "")),
        done_bytes=progress.get("doneBytes"),
        total_bytes=progress.get("totalBytes"),
        waits_for=status_text.waits_for(operation, now, fenced=fenced),
        where=where,
        stage_age=parts.span((operation.finished_at or now) - (operation.stage_since or operation.created_at)),
        attempt=operation.attempt,
        actor=requested_by(operation),
        created_at=operation.created_at,
        stage_since=operation.stage_since,
        finished_at=operation.finished_at,
        duration=parts.span((operation.finished_at or now) - operation.created_at),
        error=redact(str(error.get("detail") or "")),
        error_code=str(error.get("code") or ""),
        lines=tuple(redact(str(line)) for line in error.get("lines") or ()),
        open=is_open,
        cancelling=cancelling,
        paused=paused,
        may_cancel=not status_text.why_no_cancel(operation),
        cancelling_text=known[0].display.cancelling if known is not None else "",
        chip=known is not None and known[0].display.chip,
        node_ids=frozenset(known[0].display.node_ids(known[1]) if known else (operation.node_id_text,)),
    )


def requested_by(operation: Operation) -> str:
    """Return the person with the role, or the actor where there is no person."""
    return f"{operation.person} ({operation.role})" if operation.person else operation.actor


Known = tuple[AnyKind, AnyStep] | None
"""Kind and data of an operation; None for one of another version."""


def _texts(operation: Operation, known: Known) -> tuple[str, str, str]:
    """Return title, subject and place."""
    if known is None:
        subject = operation.model_id_text or operation.node_id_text or operation.target_id
        return _humanized(operation.kind), subject, ""
    kind, step = known
    return kind.heading(step), kind.display.subject(step), kind.display.where(step)


def _stage_words(name: str, known: Known) -> str:
    if known is None or name not in {stage.name for stage in known[0].stages}:
        return _humanized(name)
    return known[0].stage(name).words_for(known[1])


def _humanized(name: str) -> str:
    return name.replace("-", " ").replace("_", " ").capitalize()


def _stages(operation: Operation, known: Known) -> tuple[StageMark, ...]:
    """Return the stages that the operation passes, and its end; when it goes back, that stage alone."""
    path = known[0].path(known[1]) if known is not None else ()
    last = known[0].display.last if known is not None else "Done"
    at = _position(operation.stage, known, path)
    if at is None:
        return (_mark(_stage_words(operation.stage, known), 0, 0, operation.outcome),)
    words = [*(_stage_words(name, known) for name in path), last]
    return tuple(_mark(word, index, at, operation.outcome) for index, word in enumerate(words))


def _position(stage: str, known: Known, path: tuple[str, ...]) -> int | None:
    """Return where an operation at `stage` is in `path`; None for a stage of the way back.

    A stage that this operation only passes through, like the commit of a move without a source, is shown as the next
    one of the path.
    """
    if stage in path:
        return path.index(stage)
    if stage == "done":
        return len(path)
    if known is None or not path:
        return None
    names = [one.name for one in known[0].stages if not one.aside]
    if stage not in names:
        return None
    following = names[names.index(stage) :]
    return next((path.index(name) for name in following if name in path), 0)


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
