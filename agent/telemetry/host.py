"""Memory, processor and disk of this machine."""

import asyncio
import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from agent import patience
from agent.telemetry import cgroups
from agent.telemetry.bandwidth import BandwidthRates
from agent.wire.status import HostStatus

_DISK_SECONDS = 1.5


def available_memory_bytes() -> int | None:
    """Return the memory usable without swapping, within the agent's own control groups; None when unknown."""
    try:
        free = int(psutil.virtual_memory().available)
    except (OSError, psutil.Error, RuntimeError):
        return None
    limit = cgroups.memory_free()
    return free if limit is None else min(free, limit)


def total_memory_bytes() -> int | None:
    """Return the memory of the machine, or of the agent's control groups when one allows less; None when unknown."""
    try:
        total = int(psutil.virtual_memory().total)
    except (OSError, psutil.Error, RuntimeError):
        return None
    limit = cgroups.memory_limit()
    return total if limit is None else min(total, limit)


def read_host(
    disk: Path, rates: BandwidthRates | None = None, engine_threads: Callable[[], int] | None = None
) -> HostStatus:
    """Return the machine's status; CPU usage is since the last call. Blocks for a moment only."""
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
        engine_threads=engine_threads() if engine_threads else None,
    )


def _swap() -> tuple[int | None, int | None]:
    """Return total and used bytes of swap, which is reported and never counted as memory."""
    found = _meminfo()
    total, free = found.get("SwapTotal"), found.get("SwapFree")
    return total, None if total is None or free is None else max(0, total - free)


def _huge_pages() -> int | None:
    """Return the bytes of reserved huge pages: part of the total, and not available to others."""
    return _meminfo().get("Hugetlb")


def _meminfo() -> dict[str, int]:
    """Return the kernel's values that have a unit, in bytes."""
    try:
        lines = (Path(psutil.PROCFS_PATH) / "meminfo").read_text().splitlines()
    except OSError:
        return {}
    rows = (line.replace(":", " ").split() for line in lines)
    return {row[0]: int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB" and row[1].isdecimal()}


def _disk(path: Path) -> tuple[int | None, int | None]:
    """Return free and total bytes of the file system of `path`, or of its nearest parent that exists.

    Unknown when the file system fails or does not answer: that of a parent is another one.
    """
    for place in (path, *path.parents):
        try:
            usage = patience.within(_DISK_SECONDS, f"disk of {place}", partial(psutil.disk_usage, str(place)))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                continue
            return None, None
        return usage.free, usage.total
    return None, None


async def host_status(
    disk: Path = Path("/"), rates: BandwidthRates | None = None, engine_threads: Callable[[], int] | None = None
) -> HostStatus:
    """Run `read_host` off the event loop. `disk` is a folder of the measured file system (the models root)."""
    return await asyncio.to_thread(read_host, disk, rates, engine_threads)
