"""Memory bandwidth: measured in the background without being in anybody's way, and the best is kept."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from agent.telemetry import bandwidth, meter
from agent.telemetry.bandwidth import BandwidthRates, buffer_bytes, last_cache_bytes
from agent.telemetry.host import read_host
from agent.telemetry.meter import BandwidthMeter
from tests.waiting import until_async

MIB = 2**20
GIB = 2**30


def says(text: str, code: int = 0) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code})")


def cache(folder: Path, cpu: int, index: int, *, level: int, size: str, shared: str, kind: str = "Unified") -> None:
    place = folder / f"cpu{cpu}" / "cache" / f"index{index}"
    place.mkdir(parents=True)
    for name, value in (("level", level), ("size", size), ("shared_cpu_list", shared), ("type", kind)):
        (place / name).write_text(f"{value}\n")


def test_the_buffer_is_eight_times_the_last_cache_and_a_quarter_of_free_memory_at_most() -> None:
    assert buffer_bytes(64 * MIB, 4 * GIB) == 512 * MIB
    assert buffer_bytes(64 * MIB, 2 * GIB) == 512 * MIB
    assert buffer_bytes(64 * MIB, 2 * GIB - 1) is None
    assert buffer_bytes(MIB, GIB) == 64 * MIB
    assert buffer_bytes(MIB, None) is None, "where free memory is not known nothing is taken of it"


def test_caches_that_cores_share_count_once_and_those_of_each_socket_add_up(tmp_path: Path) -> None:
    for cpu in range(4):
        cache(tmp_path, cpu, 0, level=1, size="48K", shared=str(cpu), kind="Data")
        cache(tmp_path, cpu, 1, level=1, size="900M", shared=str(cpu), kind="Instruction")
        cache(tmp_path, cpu, 3, level=3, size="32768K", shared="0-1" if cpu < 2 else "2-3")
    assert last_cache_bytes(tmp_path) == 64 * MIB
    assert last_cache_bytes(tmp_path / "nowhere") == 32 * MIB


def test_a_measurement_tells_rates_that_a_machine_can_have() -> None:
    rates = bandwidth.measure(64 * MIB, len(os.sched_getaffinity(0)))
    assert 10**8 < rates.core <= rates.machine < 10**13


async def test_the_best_is_kept_over_measurements_and_restarts(tmp_path: Path) -> None:
    for machine, core in ((40, 20), (30, 25), (50, 10)):
        await BandwidthMeter(tmp_path, says(json.dumps({"machine": machine, "core": core}))).measure()
    assert BandwidthMeter(tmp_path).best == BandwidthRates(50, 25)


async def test_rates_of_another_machine_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await BandwidthMeter(tmp_path, says('{"machine": 40, "core": 20}')).measure()
    monkeypatch.setattr(meter, "_machine", lambda: "another")
    assert BandwidthMeter(tmp_path).best is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"of": 1}', '{"machine": 0, "core": 0}'])
def test_a_file_that_says_nothing_is_no_measurement(tmp_path: Path, content: str) -> None:
    (tmp_path / "bandwidth.json").write_text(content)
    assert BandwidthMeter(tmp_path).best is None


@pytest.mark.parametrize(
    ("output", "code"),
    [("", 3), ("", -9), ("nonsense", 0), ("[]", 0), ('{"machine": 0, "core": 0}', 0), ('{"machine": 1, "core": 9}', 0)],
)
async def test_a_measurement_that_fails_leaves_what_is_known(tmp_path: Path, output: str, code: int) -> None:
    known = BandwidthMeter(tmp_path, says('{"machine": 40, "core": 20}'))
    await known.measure()
    known._command = says(output, code)
    await known.measure()
    assert known.best == BandwidthRates(40, 20)


async def test_a_measurement_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "_LIMIT_SECONDS", 0.3)
    begin = time.monotonic()
    await BandwidthMeter(tmp_path, (sys.executable, "-c", "import signal; signal.pause()")).measure()
    assert time.monotonic() - begin < 10


async def test_an_agent_that_ends_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = f"import os, signal, pathlib; pathlib.Path({str(mark)!r}).write_text(str(os.getpid())); signal.pause()"
    running = asyncio.create_task(BandwidthMeter(tmp_path, (sys.executable, "-c", code)).measure())
    await until_async(lambda: mark.exists() and mark.read_text(), "the measurement to start")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not psutil.pid_exists(int(mark.read_text()))


def test_a_host_tells_its_rates_once_they_are_known(tmp_path: Path) -> None:
    assert read_host(tmp_path).memory_bandwidth_bytes_per_second is None
    reported = read_host(tmp_path, BandwidthRates(50, 25))
    assert (reported.memory_bandwidth_bytes_per_second, reported.core_bandwidth_bytes_per_second) == (50, 25)
