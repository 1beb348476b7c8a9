"""Memory, processor and disk of this machine."""

import asyncio
import os
from pathlib import Path

import psutil

from agent.telemetry.bandwidth import Rates
from agent.wire.status import HostStatus


def available_memory_bytes() -> int | None:
    """Memory that can be used without swapping, within the limit of the agent's own cgroup; None when unknown."""
    try:
        free = int(psutil.virtual_memory().available)
    except (OSError, psutil.Error, RuntimeError):
        return None
    limit = _cgroup_free()
    return free if limit is None else min(free, limit)


def total_memory_bytes() -> int | None:
    """Memory of the machine, or of the agent's cgroup when that has less; None when unknown."""
    try:
        total = int(psutil.virtual_memory().total)
    except (OSError, psutil.Error, RuntimeError):
        return None
    limit = _cgroup_number("memory.max")
    return total if limit is None else min(total, limit)


def _cgroup_number(name: str) -> int | None:
    """A number of the cgroup (version 2) that is this process's root; "max" and version 1 are None."""
    try:
        text = (Path("/sys/fs/cgroup") / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _cgroup_free() -> int | None:
    limit, used = _cgroup_number("memory.max"), _cgroup_number("memory.current")
    if limit is None or used is None:
        return None
    return max(0, limit - used)


def read_host(disk: Path, rates: Rates | None = None) -> HostStatus:
    """The machine now; the processor's share is since the last call. Blocking for a moment only."""
    try:
        cpu: float | None = psutil.cpu_percent(interval=None)
    except (OSError, psutil.Error):
        cpu = None
    try:
        load: float | None = os.getloadavg()[0]
    except OSError:
        load = None
    free, total = _disk(disk)
    swap_total, swap_used = _swap()
    return HostStatus(
        memory_total_bytes=total_memory_bytes(),
        memory_available_bytes=available_memory_bytes(),
        cpu_percent=cpu,
        load_1m=load,
        disk_free_bytes=free,
        disk_total_bytes=total,
        swap_total_bytes=swap_total,
        swap_used_bytes=swap_used,
        huge_pages_bytes=_huge_pages(),
        memory_bandwidth_bytes_per_second=rates.machine if rates else None,
        core_bandwidth_bytes_per_second=rates.core if rates else None,
    )


def _swap() -> tuple[int | None, int | None]:
    """Total and used bytes of swap, which is told and never counted as memory."""
    found = _meminfo()
    total, free = found.get("SwapTotal"), found.get("SwapFree")
    return total, None if total is None or free is None else max(0, total - free)


def _huge_pages() -> int | None:
    """Bytes set aside as huge pages: part of the total, and available to nobody else."""
    return _meminfo().get("Hugetlb")


def _meminfo() -> dict[str, int]:
    """The kernel's figures that have a unit, in bytes."""
    try:
        lines = (Path(psutil.PROCFS_PATH) / "meminfo").read_text().splitlines()
    except OSError:
        return {}
    rows = (line.replace(":", " ").split() for line in lines)
    return {row[0]: int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB" and row[1].isdecimal()}


def _disk(path: Path) -> tuple[int | None, int | None]:
    """Free and total bytes of the file system that holds `path` or its nearest parent that exists."""
    for place in (path, *path.parents):
        try:
            usage = psutil.disk_usage(str(place))
        except OSError:
            continue
        return usage.free, usage.total
    return None, None


async def host_status(disk: Path = Path("/"), rates: Rates | None = None) -> HostStatus:
    """`read_host` beside the event loop. `disk` is the folder whose file system counts (the models root)."""
    return await asyncio.to_thread(read_host, disk, rates)
