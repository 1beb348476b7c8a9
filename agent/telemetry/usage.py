"""GPU memory by engine: a process belongs to an engine by container, session, mark or descent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.wire.instances import LIVE_STATES, InstanceView
from agent.wire.status import GpuModelUse, GpuProcess, GpuStatus

PROC = Path("/proc")
_DEEPEST = 64


@dataclass(frozen=True)
class _ProcessInfo:
    """A process as /proc reports it."""

    parent: int
    session: int
    name: str


def attribute(statuses: Sequence[GpuStatus], views: Iterable[InstanceView], proc: Path = PROC) -> tuple[GpuStatus, ...]:
    """Return `statuses` with the engine of each process, and the memory of each model on each GPU. Blocks briefly.

    Memory is measured by process where that is possible; else it is split evenly, and `measured` is false.
    """
    engines = [view for view in views if view.state in LIVE_STATES]
    named = [_named(status, engines, proc) for status in statuses]
    measured = {status.uuid: _measured(status) for status in named}
    return tuple(
        status.model_copy(update={"models": _of_card(status, engines, measured, proc)}) if engines else status
        for status in named
    )


def unused(statuses: Sequence[GpuStatus], claims: Mapping[str, Sequence[str]], proc: Path = PROC) -> frozenset[str]:
    """Return those engines, by instance id, that have no process on any of the GPUs that they were given.

    `statuses` are attributed. An engine is left out where that is unknown: a GPU whose processes are not listed, or
    not all of them, or one with a process that this agent cannot look at.
    """
    by_uuid = {status.uuid: status for status in statuses}
    present = {process.instance_id for status in statuses for process in status.processes or ()}
    found = set()
    for instance_id, uuids in claims.items():
        cards = [by_uuid.get(uuid) for uuid in uuids]
        if cards and instance_id not in present and all(_is_listed(card, proc) for card in cards):
            found.add(instance_id)
    return frozenset(found)


def _is_listed(status: GpuStatus | None, proc: Path) -> bool:
    """Return whether every process on the card is known, with its engine or as one of no engine."""
    if status is None or status.lost or status.problem or status.age_seconds is not None or status.processes is None:
        return False
    if status.process_count is not None and status.process_count > len(status.processes):
        return False
    return not any(not one.instance_id and _is_hidden(one.pid, proc) for one in status.processes)


def _is_hidden(pid: int, proc: Path) -> bool:
    """Return whether the process cannot be assigned to any engine: it, or its control group, is out of sight."""
    groups = _text(proc / str(pid) / "cgroup").split()
    return not groups or all(group.rpartition(":")[2] == "/" for group in groups)


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
    """Return the engine that `pid` belongs to: a descendant of an engine belongs to it."""
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


def _read(pid: int, proc: Path) -> _ProcessInfo | None:
    text = _text(proc / str(pid) / "stat")
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 4:
        return None
    return _ProcessInfo(parent=int(fields[1]), session=int(fields[3]), name=head.partition("(")[2])


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _measured(status: GpuStatus) -> Mapping[str, int | None]:
    """Return the bytes of each engine on this card by its processes; None where a process reports no number."""
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
    """Return the memory in use on the card that no process accounts for. It may be of processes we cannot read."""
    if status.used_bytes is None:
        return None
    others = sum(one.used_bytes or 0 for one in status.processes or () if not one.instance_id and one.name)
    return max(0, status.used_bytes - others - sum(used or 0 for used in here.values()))


def _use(view: InstanceView, used: int | None, *, measured: bool) -> GpuModelUse:
    return GpuModelUse(instance_id=view.instance_id, model_id=view.model_id[:64], used_bytes=used, measured=measured)
