"""Limits of this process by its control groups, versions 1 and 2: its own group and each one above it.

A limit on any level holds for all below it. Inside a container the files of the host are not visible; there the mount
point itself is the container's group.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_SELF = Path("/proc/self")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_UNIFIED = ""
"""The name of the hierarchy of version 2, which has no controller in ``/proc/self/cgroup``."""


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy: the group that its mount point shows, and its controllers; none is version 2."""

    root: PurePosixPath
    point: Path
    controllers: frozenset[str]


def cpu_quota(proc: Path = _SELF) -> float | None:
    """Return the processors' time that this process may use, in processors; None without a limit."""
    found = [quota for folder in _levels("cpu", proc) if (quota := _quota(folder)) is not None]
    return min(found, default=None)


def memory_limit(proc: Path = _SELF) -> int | None:
    """Return the lowest limit of memory in bytes; None without one."""
    found = [limit for folder in _levels("memory", proc) if (limit := _limit(folder)) is not None]
    return min(found, default=None)


def memory_free(proc: Path = _SELF) -> int | None:
    """Return the bytes that may still be used on the tightest level; None without a limit.

    Files in the page cache count as free unless a process has them mapped: the kernel drops them when memory is needed.
    """
    found: list[int] = []
    for folder in _levels("memory", proc):
        limit = _limit(folder)
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            found.append(max(0, limit - max(0, used - _reclaimable(folder))))
    return min(found, default=None)


def _quota(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()
    if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
        return int(words[0]) / int(words[1])
    quota, period = _number(folder, "cpu.cfs_quota_us"), _number(folder, "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _limit(folder: Path) -> int | None:
    """Return the limit of one level: the hard one, or the one above which the kernel throttles."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    found = [number for name in names if (number := _number(folder, name)) is not None]
    return min(found, default=None)


def _reclaimable(folder: Path) -> int:
    rows = (line.split() for line in _text(folder / "memory.stat").splitlines())
    stat = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}
    # Version 1 counts the groups below under names of their own.
    prefix = "total_" if "total_inactive_file" in stat else ""
    mapped = stat.get(f"{prefix}mapped_file", stat.get("file_mapped", 0))
    return max(0, stat.get(f"{prefix}active_file", 0) + stat.get(f"{prefix}inactive_file", 0) - mapped)


def _levels(controller: str, proc: Path) -> Iterator[Path]:
    """Yield the folders of this process's groups, the innermost first, in every hierarchy with `controller`."""
    groups = _groups(proc)
    for mount in _mounts(proc):
        if mount.controllers and controller not in mount.controllers:
            continue
        group = groups.get(controller if mount.controllers else _UNIFIED)
        if group is None:
            continue
        below = group.relative_to(mount.root) if group.is_relative_to(mount.root) else group.relative_to("/")
        for folder in (mount.point / below, *(mount.point / below).parents):
            if folder.is_dir():
                yield folder
            if folder == mount.point:
                break


def _groups(proc: Path) -> dict[str, PurePosixPath]:
    """Return the group of this process by controller, as its namespace shows it."""
    found: dict[str, PurePosixPath] = {}
    for line in _text(proc / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        # A group outside of the namespace reads "/../..": its files cannot be seen, those of the mount point can.
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for name in names.split(","):
            found[name] = PurePosixPath("/", *parts)
    return found


def _mounts(proc: Path) -> Iterator[_Mount]:
    for line in _text(proc / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        root, point = (_ESCAPED.sub(lambda found: chr(int(found[1], 8)), field) for field in fields[3:5])
        controllers = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else frozenset()
        yield _Mount(PurePosixPath("/", root.replace("..", "")), Path(point), controllers)


def _number(folder: Path, *names: str) -> int | None:
    """Return the number in the first of the files; None for ``max``, ``-1`` and without one."""
    for name in names:
        text = _text(folder / name).strip()
        if text.isdecimal():
            return int(text)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
