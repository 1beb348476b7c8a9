"""``python -m agent.telemetry.bandwidth``: memory bandwidth of this machine, of all cores and of one alone.

A token on a CPU reads every active weight once, so this rate determines the estimated speed there. It is measured in a
process of its own with the lowest priority, over a buffer that is larger than any cache and takes a small part of the
free memory; without enough free memory nothing is measured.
"""

import ctypes
import json
import mmap
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from agent.telemetry import cgroups
from agent.telemetry.cores import usable_cpus

_CPUS = Path("/sys/devices/system/cpu")
_MEMINFO = Path("/proc/meminfo")
_UNKNOWN_CACHE = 32 * 2**20
"""Used where the kernel does not report the cache: more than most machines have."""

_CACHES = 8
_SHARE = 4
_PASSES = 4
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class BandwidthRates:
    """Bytes per second: of all cores together, and of one alone."""

    machine: int
    core: int


def last_cache_bytes(cpus: Path = _CPUS) -> int:
    """Return the size of all last-level caches, each counted once however many cores share it."""
    found: dict[tuple[int, str], int] = {}
    for cache in cpus.glob("cpu[0-9]*/cache/index*"):
        try:
            if (cache / "type").read_text().strip() == "Instruction":
                continue
            level = int((cache / "level").read_text())
            shared = (cache / "shared_cpu_list").read_text().strip()
            text = (cache / "size").read_text().strip()
            found[level, shared] = int(text.rstrip("KMG")) * _UNITS.get(text[-1:], 1)
        except (OSError, ValueError):
            continue
    if not found:
        return _UNKNOWN_CACHE
    last = max(level for level, _ in found)
    return sum(size for (level, _), size in found.items() if level == last)


def buffer_bytes(cache: int, free: int | None) -> int | None:
    """Return the smallest buffer that measures memory and not the cache; None when it needs too much free memory."""
    size = max(_CACHES * cache, 64 * 2**20)
    return size if free is not None and size <= free // _SHARE else None


def free_bytes(meminfo: Path = _MEMINFO) -> int | None:
    """Return the memory that can be used without swapping; None when unknown."""
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def measure(size: int, cores: int) -> BandwidthRates:
    """Return the best of a few passes over `size` bytes."""
    libc = ctypes.CDLL(None)
    libc.memchr.restype = ctypes.c_void_p
    libc.memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    with mmap.mmap(-1, size) as buffer:
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        # Written first: pages that were never touched are all the same page of zeros.
        ctypes.memset(address, 0xA5, size)
        machine = max(_pass(libc, address, size, cores) for _ in range(_PASSES))
        core = machine if cores == 1 else max(_pass(libc, address, size, 1) for _ in range(_PASSES))
    return BandwidthRates(max(machine, core), core)


def _pass(libc: ctypes.CDLL, address: int, size: int, threads: int) -> int:
    """Search for a byte that does not occur, each thread in its own share; libc is called without Python's lock."""
    share = size // threads
    ready = threading.Barrier(threads + 1)

    def read(number: int) -> None:
        ready.wait()
        libc.memchr(address + number * share, 0, share)

    with ThreadPoolExecutor(max_workers=threads) as pool:
        running = [pool.submit(read, number) for number in range(threads)]
        ready.wait()
        begin = time.perf_counter()
        for one in running:
            one.result()
        seconds = time.perf_counter() - begin
    return round(share * threads / max(seconds, 1e-9))


def main() -> int:
    """Print the rates as JSON; exit code 3 when there is too little free memory."""
    os.nice(19)
    with suppress(OSError):
        # Out of memory, the system kills this process first.
        Path("/proc/self/oom_score_adj").write_text("1000")
    free = [known for known in (free_bytes(), cgroups.memory_free()) if known is not None]
    size = buffer_bytes(last_cache_bytes(), min(free, default=None))
    if size is None:
        return 3
    rates = measure(size, usable_cpus())
    sys.stdout.write(json.dumps(asdict(rates)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
