"""The machine's memory."""

from pathlib import Path

import psutil
import pytest

from agent.telemetry.host import read_host

GIB = 2**30


def test_swap_and_huge_pages_are_not_memory_that_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text(
        "MemTotal:       125829120 kB\nMemFree:         1048576 kB\nMemAvailable:   31457280 kB\nBuffers: 0 kB\n"
        "Cached:          2097152 kB\nActive: 0 kB\nInactive: 0 kB\nShmem: 0 kB\nSlab: 0 kB\nSwapTotal: 16777216 kB\n"
        "SwapFree:       12582912 kB\nHugePages_Total:   32768\nHugePages_Free:    16384\nHugepagesize:  2048 kB\n"
        "Hugetlb:        67108864 kB\n"
    )
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(proc))
    monkeypatch.setattr("agent.telemetry.cgroups.memory_limit", lambda: None)
    monkeypatch.setattr("agent.telemetry.cgroups.memory_free", lambda: None)
    status = read_host(tmp_path)
    assert status.memory_total_bytes == 120 * GIB
    assert status.memory_available_bytes == 30 * GIB, "12 GiB of free swap and 32 GiB of free huge pages do not count"
    assert (status.swap_total_bytes, status.swap_used_bytes) == (16 * GIB, 4 * GIB)
    assert status.huge_pages_bytes == 64 * GIB
