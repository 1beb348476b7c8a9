"""Processors that this process may use: by its affinity and by the quotas of its control groups."""

import os
from pathlib import Path

from agent.telemetry import cgroups

_CPUS = Path("/sys/devices/system/cpu")
_PROC = Path("/proc/self")


def usable_cpus(proc: Path = _PROC) -> int:
    """Return the logical processors that may be used at a time, at least one."""
    return _within_quota(len(_allowed()), proc)


def usable_cores(cpus: Path = _CPUS, proc: Path = _PROC) -> int:
    """Return the cores that may be used at a time, at least one; threads of one core count once."""
    allowed = _allowed()
    cores = {_siblings(cpus, number) or str(number) for number in allowed}
    return _within_quota(len(cores), proc)


def _allowed() -> set[int]:
    try:
        return set(os.sched_getaffinity(0)) or {0}
    except OSError:
        return set(range(os.cpu_count() or 1))


def _within_quota(count: int, proc: Path) -> int:
    quota = cgroups.cpu_quota(proc)
    return max(1, count if quota is None else min(count, int(quota)))


def _siblings(cpus: Path, number: int) -> str:
    """Return the processors of one core as the kernel lists them; empty when it does not."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        try:
            return (cpus / f"cpu{number}" / "topology" / name).read_text().strip()
        except OSError:
            continue
    return ""
