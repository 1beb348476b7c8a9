"""The state of the whole master at one moment, for a person in a shell and for scripts."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mirbad.kernel import disk
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Unavailable
from mirbad.tasking import heartbeat
from mirbad.up import folder
from mirbad.up.supervisor import Control, NotResponding
from models_app.models import Placement
from models_app.states import READY, RUNNING
from nodes import queries
from nodes.models import Node


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process. `seconds` since its start or its last heartbeat, None when unknown."""

    name: str
    state: str
    pid: int | None
    seconds: float | None
    well: bool


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node with its shown state and the reasons for it."""

    id: str
    state: str
    draining: bool
    address: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One placement: its desired and its observed state."""

    id: str
    node: str
    desired: str
    observed: str
    reason: str


@dataclass(frozen=True, slots=True)
class MasterState:
    """The output of `manage.py status`."""

    running: bool
    url: str
    pid: int | None
    started_at: str | None
    processes: tuple[ProcessStatus, ...]
    nodes: tuple[NodeLine, ...]
    models: tuple[ModelLine, ...]
    disk: str = ""
    """The reason why the data folder cannot be written, as a sentence; empty when it can."""

    def needs_attention(self) -> bool:
        """Return whether something needs a person."""
        return (
            not self.running
            or bool(self.disk)
            or any(not process.well for process in self.processes)
            or any(node.state not in {"Online", "Revoked"} for node in self.nodes)
            or any(model.desired == RUNNING and model.observed != READY for model in self.models)
        )

    def as_json(self) -> dict[str, Any]:
        """Return JSON values in camelCase."""
        head = {"running": self.running, "url": self.url, "pid": self.pid, "startedAt": self.started_at}
        head["disk"] = self.disk or None
        rows = {name: [asdict(row) for row in getattr(self, name)] for name in ("processes", "nodes", "models")}
        return {**head, **rows, "needsAttention": self.needs_attention()}

    def as_words(self) -> Iterable[str]:
        """Yield lines for a person."""
        if self.running:
            yield f"Mirbad is running at {self.url} (process {self.pid}, since {self.started_at})."
        else:
            yield f"Mirbad is not running on {settings().data}. Start it with make up."
        if self.disk:
            yield self.disk
        yield from _table("Processes", [_process_words(row) for row in self.processes])
        yield from _table("Nodes", [_node_words(row) for row in self.nodes])
        yield from _table("Models", [_model_words(row) for row in self.models])


def read() -> MasterState:
    """Read all states. Raises Django's OperationalError or ProgrammingError when there is no usable database."""
    data = settings().data
    running = folder.is_running(data)
    facts = folder.read_facts(data) if running else None
    return MasterState(
        running=running,
        url=facts.web_url if facts else "",
        pid=facts.pid if facts else None,
        started_at=facts.started_at if facts else None,
        processes=_processes(facts),
        nodes=tuple(_nodes()),
        models=tuple(_models()),
        disk=disk.unwritable_reason(data, f"the data folder {data}"),
    )


def _processes(facts: folder.RunFacts | None) -> tuple[ProcessStatus, ...]:
    if facts is None:
        return _by_heartbeat() if settings().redis_url else ()
    try:
        with Control(Path(facts.runtime_dir) / "supervisord.sock") as control:
            states = control.states().values()
    except NotResponding as error:
        return (ProcessStatus("supervisord", f"not responding: {error}", None, None, False),)
    return tuple(ProcessStatus(s.name, s.state.lower(), s.pid, s.seconds, s.state == "RUNNING") for s in states)


def _by_heartbeat() -> tuple[ProcessStatus, ...]:
    """Return the processes by their heartbeats alone: they may run on other hosts."""
    try:
        alive = heartbeat.alive()
    except Unavailable as error:
        return (ProcessStatus("broker", error.detail, None, None, False),)
    return tuple(
        ProcessStatus(name, "alive" if name in alive else "no heartbeat", None, alive.get(name), name in alive)
        for name in heartbeat.PROCESSES
    )


def _nodes() -> Iterable[NodeLine]:
    for node in Node.objects.prefetch_related("conditions"):
        shown = queries.shown_state(node, list(node.conditions.all()))
        reasons = tuple(str(reason) for reason in shown.reasons)
        yield NodeLine(node.id, shown.name, shown.draining, f"{node.address}:{node.port}", reasons)


def _models() -> Iterable[ModelLine]:
    for row in Placement.objects.order_by("model_id", "node_id_text"):
        yield ModelLine(row.model_id, row.node_id_text, row.desired, row.observed, row.observed_reason)


def _process_words(row: ProcessStatus) -> tuple[str, ...]:
    pid = f"process {row.pid}" if row.pid else ""
    return (row.name, row.state, pid, f"for {_duration(row.seconds)}" if row.seconds is not None else "")


def _node_words(row: NodeLine) -> tuple[str, ...]:
    return (row.id, row.state + (", draining" if row.draining else ""), row.address, "; ".join(row.reasons))


def _model_words(row: ModelLine) -> tuple[str, ...]:
    return (row.id, f"on {row.node}", f"desired {row.desired}, actual {row.observed}", row.reason)


def _table(title: str, rows: list[tuple[str, ...]]) -> Iterable[str]:
    yield ""
    yield title
    if not rows:
        yield "  none"
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
