"""How one operation is shown: its title, its stages in order, what it waits for. Runs no query."""

from dataclasses import dataclass
from datetime import datetime

from jobs import telling
from jobs.kinds import (
    ca_rotation,
    download,
    evacuate,
    image_pull,
    launch,
    move,
    revoke,
    rotate_cert,
    stop,
    sweep,
    takeover,
    unplace,
)
from jobs.models import Operation
from jobs.states import CANCELLED, FAILED, OPEN, SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.redact import redact
from mirbad.web import parts
from mirbad.web.parts import Badge
from nodes.states import (
    CA_AGENTS_ROTATING,
    CA_AGENTS_TRUSTING,
    CA_CLOSING,
    CA_MASTER_REISSUED,
    CA_ROLLING_BACK,
    CA_STARTED,
)

OUTCOMES: dict[str, Badge] = {
    OPEN: Badge("In progress", "busy", "hourglass"),
    SUCCEEDED: Badge("Done", "ok", "circle-check"),
    FAILED: Badge("Failed", "bad", "circle-x"),
    CANCELLED: Badge("Cancelled", "idle", "ban"),
}
_ENDING = Badge("Ending", "busy", "hourglass")
_PAUSED = Badge("Paused", "warn", "circle-pause")
_WORDS = {
    launch.NAME: "Start",
    stop.NAME: "Stop",
    takeover.NAME: "Takeover",
    takeover.CONTINUE: "Continued takeover",
    ca_rotation.NAME: "CA rotation",
    rotate_cert.NAME: "Certificate rotation",
    revoke.NAME: "Revoke",
    download.NAME: "Download of",
    move.NAME: "Move",
    unplace.NAME: "Unplace",
    evacuate.NAME: "Evacuation of",
    image_pull.NAME: "Image pull",
    sweep.NAME: "Stop what is left of",
}

JOBS = frozenset({"benchmark", "tuning", evacuate.NAME})
"""Kinds of which a node does one at a time, for a chip beside its state."""

_FLEET = "of the fleet"
_STAGE_WORDS = {
    launch.CHECKING: "Check the node",
    launch.DOWNLOADING: "Download the weights",
    image_pull.PULLING: "Pull the image",
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
    move.STARTING_TARGET: "Start it on {node}",
    move.TARGET_READY: "Ready on {node}",
    move.PLACEMENT_COMMITTED: "Switch to {node}",
    move.DRAINING_SOURCE: "Let {source} finish",
    move.STOPPING_SOURCE: "Stop it on {source}",
    move.SOURCE_STOPPED: "Stopped on {source}",
    move.UNDOING: "Put everything back",
    evacuate.MOVING: "Move the models off",
}
_IN_ORDER = {
    takeover.NAME: (takeover.PROBING, takeover.STORING, takeover.CLAIMING),
    takeover.CONTINUE: (takeover.PROBING, takeover.STORING, takeover.CLAIMING),
    ca_rotation.NAME: (CA_STARTED, CA_AGENTS_TRUSTING, CA_MASTER_REISSUED, CA_AGENTS_ROTATING, CA_CLOSING),
    rotate_cert.NAME: (rotate_cert.REQUESTING, rotate_cert.SETTLING, rotate_cert.INSTALLING, rotate_cert.VERIFYING),
    revoke.NAME: (revoke.STOPPING, revoke.REVOKING),
    download.NAME: (download.CHECKING, download.DOWNLOADING),
    image_pull.NAME: (image_pull.CHECKING, image_pull.PULLING),
}
_READY = "Ready"


def title_of(kind: str) -> str:
    """What pages call a kind of operation."""
    return _WORDS.get(kind, kind.replace("-", " ").replace("_", " ").capitalize())


def names_of_kinds() -> tuple[tuple[str, str], ...]:
    """Every kind with a name for a choice, in the order of the names."""
    return tuple(sorted(((kind, title_of(kind).removesuffix(" of")) for kind in _WORDS), key=lambda pair: pair[1]))


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

    @property
    def job_words(self) -> str:
        """For a chip beside the node's state."""
        return self.title.removesuffix(" of") if self.kind == evacuate.NAME else f"{self.title} {self.model_id}".strip()

    @property
    def measured(self) -> bool:
        """Whether the progress is known in bytes."""
        return self.done_bytes is not None and bool(self.total_bytes)


def row(operation: Operation, *, fenced: bool = False) -> OperationRow:
    """The row of one operation; `fenced` says that this master may command no node."""
    now = clock.now()
    is_open = operation.finished_at is None
    restart = operation.kind == launch.NAME and bool(operation.input.get("restart"))
    title = "Restart" if restart else title_of(operation.kind)
    error = operation.error or {}
    progress = operation.progress or {}
    cancelling = is_open and operation.cancel_requested_at is not None
    paused = is_open and bool(progress.get("paused"))
    badge = _ENDING if cancelling else _PAUSED if paused else OUTCOMES[operation.outcome]
    return OperationRow(
        id=operation.pk,
        title=title,
        kind=operation.kind,
        target=str(operation.input.get("spec", {}).get("repository", "") or operation.input.get("reference", ""))
        or operation.model_id_text
        or operation.node_id_text
        or (_FLEET if operation.kind in (takeover.NAME, ca_rotation.NAME) else operation.target_id),
        model_id=operation.model_id_text,
        node_id=operation.node_id_text,
        badge=badge,
        stages=_stages(operation, restart=restart),
        stage_words=_stage(operation, operation.stage),
        progress_text=redact(str(progress.get("text") or "")),
        done_bytes=progress.get("doneBytes"),
        total_bytes=progress.get("totalBytes"),
        waits_for=telling.waits_for(operation, now, fenced=fenced),
        where=_where(operation),
        stage_age=parts.span((operation.finished_at or now) - (operation.stage_since or operation.created_at)),
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
        paused=paused,
        may_cancel=not telling.why_no_cancel(operation),
    )


def _where(operation: Operation) -> str:
    source = str(operation.input.get("sourceNode") or "")
    if operation.kind == move.NAME:
        return f"from {source} to {operation.node_id_text}" if source else f"to {operation.node_id_text}"
    about_node = operation.target_kind == "node" and not operation.model_id_text
    return f"on {operation.node_id_text}" if operation.node_id_text and not about_node else ""


def _stage(operation: Operation, name: str) -> str:
    words = _STAGE_WORDS.get(name, name.replace("-", " ").capitalize())
    source = str(operation.input.get("sourceNode") or "its node")
    return words.format(node=operation.node_id_text, source=source) if "{" in words else words


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
    elif operation.stage in (*_in_order(operation), "done") and _in_order(operation):
        names = list(_in_order(operation))
        words = [*(_stage(operation, name) for name in names), "Done"]
    else:
        names = [operation.stage]
        words = [_stage(operation, operation.stage), "Done"]
    at = names.index(operation.stage) if operation.stage in names else 0
    return tuple(_mark(word, index, at, operation.outcome) for index, word in enumerate(words))


def _in_order(operation: Operation) -> tuple[str, ...]:
    if operation.kind == move.NAME:
        return move.IN_ORDER.get(str(operation.input.get("mode")), ())
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
