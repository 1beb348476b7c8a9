"""Processes of this machine, as /proc shows them."""

from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessStat:
    """The fields of /proc/PID/stat that identify a process."""

    pid: int
    state: str
    session: int
    start_ticks: int


def read_stat(pid: int) -> ProcessStat | None:
    """Return the process, None when there is none of this id."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return ProcessStat(pid=pid, state=fields[0], session=int(fields[3]), start_ticks=int(fields[19]))


def read_environ(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty when it cannot be read."""
    try:
        data = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    lines = data.decode(errors="surrogateescape").split("\0")
    return dict(line.partition("=")[::2] for line in lines if "=" in line)


def living() -> list[ProcessStat]:
    """Return every process that is not a zombie."""
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]
    stats = [stat for pid in pids if (stat := read_stat(pid)) is not None]
    return [stat for stat in stats if stat.state not in "ZX"]
