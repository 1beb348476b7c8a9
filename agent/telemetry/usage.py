"""Whose memory it is: processes on GPUs belong to engines by container, session, mark or descent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.wire.instances import LIVE_STATES, InstanceView
from agent.wire.status import GpuModelUse, GpuProcess, GpuStatus

PROC = Path("/proc")
_DEEPEST = 64


@dataclass(frozen=True)
class _Running:
    """What a process is to the system."""

    parent: int
    session: int
    name: str


def attribute(statuses: Sequence[GpuStatus], views: Iterable[InstanceView], proc: Path = PROC) -> tuple[GpuStatus, ...]:
    """`statuses` with the engine of each process, and the memory of each model on each GPU. Blocking for a moment.

    Memory is measured by processes where it can be read; else it is split evenly, which the values say.
    """
    engines = [view for view in views if view.state in LIVE_STATES]
    named = [_named(status, engines, proc) for status in statuses]
    measured = {status.uuid: _measured(status) for status in named}
    return tuple(
        status.model_copy(update={"models": _of_card(status, engines, measured, proc)}) if engines else status
        for status in named
    )


def _named(status: GpuStatus, engines: Sequence[InstanceView], proc: Path) -> GpuStatus:
    if not status.processes:
        return status
    found = tuple(_with_owner(process, engines, proc) for process in status.processes)
    return status.model_copy(update={"processes": found})


def _with_owner(process: GpuProcess, engines: Sequence[InstanceView], proc: Path) -> GpuProcess:
    running = _read(process.pid, proc)
    name = process.name or (running.name if running else "")
    owner = _owner(process.pid, engines, proc) if running else None
    return process.model_copy(update={"name": name[:64], "instance_id": owner or ""})


def _owner(pid: int, engines: Sequence[InstanceView], proc: Path) -> str | None:
    """The engine that `pid` belongs to: a process that it started at any remove is its own."""
    groups = _text(proc / str(pid) / "cgroup")
    leaders = {view.pid: view.instance_id for view in engines if view.pid is not None}
    for view in engines:
        if view.container_id and view.container_id in groups:
            return view.instance_id
    at = pid
    for _ in range(_DEEPEST):
        if at in leaders:
            return leaders[at]
        running = _read(at, proc)
        if running is None:
            return None
        if running.session in leaders:
            return leaders[running.session]
        if running.parent <= 1:
            return None
        at = running.parent
    return None


def _read(pid: int, proc: Path) -> _Running | None:
    text = _text(proc / str(pid) / "stat")
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 4:
        return None
    return _Running(parent=int(fields[1]), session=int(fields[3]), name=head.partition("(")[2])


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _measured(status: GpuStatus) -> Mapping[str, int | None]:
    """Bytes of each engine on this card by its processes; None for one that is there and tells no number."""
    found: dict[str, int | None] = {}
    for process in status.processes or ():
        if not process.instance_id:
            continue
        before = found.get(process.instance_id, 0)
        known = before is not None and process.used_bytes is not None
        found[process.instance_id] = before + process.used_bytes if known else None  # type: ignore[operator]
    return found


def _of_card(
    status: GpuStatus, engines: Sequence[InstanceView], measured: Mapping[str, Mapping[str, int | None]], proc: Path
) -> tuple[GpuModelUse, ...]:
    here = measured[status.uuid]
    anywhere = {instance_id for found in measured.values() for instance_id in found}
    closed = status.processes is None
    hidden = any(not one.instance_id and not (proc / str(one.pid)).exists() for one in status.processes or ())
    uses = []
    unmeasured = []
    for view in engines:
        used = here.get(view.instance_id)
        placed = status.uuid in view.gpu_uuids
        if used is not None:
            uses.append(_use(view, used, measured=True))
        elif view.instance_id in here or (placed and (closed or (hidden and view.instance_id not in anywhere))):
            unmeasured.append(view)
    if not unmeasured:
        return tuple(uses)
    rest = _rest(status, here)
    share = None if rest is None else rest // len(unmeasured)
    return (*uses, *(_use(view, share, measured=False) for view in unmeasured))


def _rest(status: GpuStatus, here: Mapping[str, int | None]) -> int | None:
    """What is used on the card and is nobody's by measure. Processes that cannot be seen may be an engine's."""
    if status.used_bytes is None:
        return None
    others = sum(one.used_bytes or 0 for one in status.processes or () if not one.instance_id and one.name)
    return max(0, status.used_bytes - others - sum(used or 0 for used in here.values()))


def _use(view: InstanceView, used: int | None, *, measured: bool) -> GpuModelUse:
    return GpuModelUse(instance_id=view.instance_id, model_id=view.model_id[:64], used_bytes=used, measured=measured)
