"""A fleet of simulated agents under one watcher and one web process, on SQLite and on PostgreSQL + Redis.

``MIRBAD_TEST_FLEET_NODES`` (1000), ``_SECONDS`` (60, how long the steady state is watched) and ``_DATABASES``
(``sqlite postgresql``) make it shorter.
"""

import contextlib
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import services
from tests.bench.simfleet.master import Process, SimMaster, wait_until
from tests.figures.figure import Figure, exactly, under

FRESH_SECONDS = 15.0
_WORKED = {"Online", "Degraded"}
_PROCESSES = 4
_SILENT_SHARE = 10
_COUNT = """
from django.test import Client
from django.db import connection
from django.test.utils import CaptureQueriesContext
from nodes.models import Node
def count(limit):
    with CaptureQueriesContext(connection) as seen:
        answer = Client(headers={"host": "127.0.0.1", "authorization": "Bearer TOKEN"}).get(f"/api/nodes?limit={limit}")
    assert len(answer.json()["items"]) == min(limit, Node.objects.count())
    return len(seen)
count(1)
print(json.dumps([count(1), count(100), count(1000)]))
"""


@dataclass
class _Seen:
    """What was read of the steady state."""

    ages: list[float] = field(default_factory=list)
    offline: int = 0
    page_ms: list[float] = field(default_factory=list)
    all_ms: list[float] = field(default_factory=list)


def measure() -> Iterator[Figure]:
    """One run a database."""
    wanted = os.environ.get("MIRBAD_TEST_FLEET_DATABASES", "sqlite postgresql").split()
    if "sqlite" in wanted:
        with services.redis() as redis:
            yield from _fleet("SQLite", "", redis)
    if "postgresql" in wanted:
        with services.postgres() as database, services.redis() as redis:
            yield from _fleet("PostgreSQL", database, redis)


def _fleet(name: str, database: str, redis: str) -> Iterator[Figure]:
    count = int(os.environ.get("MIRBAD_TEST_FLEET_NODES", "1000"))
    fast = Path("/dev/shm")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mirbad-figure-")))
        agents = Path(tempfile.mkdtemp(prefix="mirbad-sim-", dir=fast if fast.is_dir() else None))
        stack.callback(shutil.rmtree, agents, ignore_errors=True)
        master = SimMaster(folder, database_url=database, redis_url=redis)
        stack.callback(master.close)
        master.make(count, count // 5, agents)
        yield from _measured(f"{count} nodes on {name}", master, count)


def _measured(name: str, master: SimMaster, count: int) -> Iterator[Figure]:
    stopped, killed, others = _processes(master, count)
    master.web()
    began = time.monotonic()
    watcher = master.watcher()
    wait_until(lambda: _states(master).get("worked", 0) == count, f"{name}: all online", 300, every=1.0)
    ramp, ramp_cpu = time.monotonic() - began, watcher.cpu_seconds
    yield under(f"{name}: start of the watcher to all online", ramp, 60, "s")
    yield under(f"{name}: CPU of the watcher for that", ramp_cpu / count * 1000, 50, "ms a node")
    yield from _steady(name, master, watcher)
    yield from _silent(name, master, stopped, killed, count)
    yield _queries(name, master)
    locked = master.logs().lower().count("database is locked")
    yield exactly(f"{name}: database is locked", locked, 0)
    yield exactly(f"{name}: tracebacks of the master", _tracebacks(master), 0)
    for process in others:
        process.end()


def _processes(master: SimMaster, count: int) -> tuple[Process, Process, list[Process]]:
    half = max(1, count // _SILENT_SHARE // 2)
    members = list(master.members)
    stopped, killed, rest = members[:half], members[half : 2 * half], members[2 * half :]
    others = [master.agents(f"agents-{n}", rest[n::_PROCESSES]) for n in range(_PROCESSES)]
    return master.agents("agents-stopped", stopped), master.agents("agents-killed", killed), others


def _tracebacks(master: SimMaster) -> int:
    names = ("watcher.out", "web.out")
    texts = [(master.folder / name).read_text(errors="replace") for name in names]
    texts += [path.read_text(errors="replace") for path in (master.data / "logs").glob("*.log*")]
    return sum(text.count("Traceback") for text in texts)


def _items(master: SimMaster) -> list[dict[str, object]]:
    items: list[dict[str, object]] = []
    while True:
        page = master.api(f"nodes?limit=1000&offset={len(items)}")
        items += page["items"]
        if page["next"] is None:
            return items


def _states(master: SimMaster) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in _items(master):
        state = "worked" if item["state"] in _WORKED else str(item["state"])
        found[state] = found.get(state, 0) + 1
    return found


def _steady(name: str, master: SimMaster, watcher: Process) -> Iterator[Figure]:
    seconds = float(os.environ.get("MIRBAD_TEST_FLEET_SECONDS", "60"))
    seen = _Seen()
    time.sleep(5)
    began, cpu, writes = time.monotonic(), watcher.cpu_seconds, master.writes()
    while time.monotonic() - began < seconds:
        _look(master, seen)
        time.sleep(1.0)
    past = time.monotonic() - began
    used, written = watcher.cpu_seconds - cpu, master.writes() - writes
    kind = "rows" if master.database_url else "transactions"
    yield under(f"{name}: oldest state seen in {past:.0f} s", max(seen.ages), FRESH_SECONDS, "s")
    yield exactly(f"{name}: nodes that read offline meanwhile", seen.offline, 0)
    yield under(f"{name}: CPU of the watcher", used / past * 100, 75, "% of a core")
    yield under(f"{name}: memory of the watcher", watcher.memory_mib, 600, "MiB")
    yield under(f"{name}: database writes, {kind} a second", written / past, 1500 if master.database_url else 20, "/s")
    yield under(f"{name}: /api/nodes p95 (page of 100)", _p95(seen.page_ms), 150, "ms")
    yield under(f"{name}: /api/nodes p95 (all nodes in one page)", _p95(seen.all_ms), 1000, "ms")
    load = os.getloadavg()[0]
    yield Figure(
        f"{name}: load of this machine meanwhile", f"{load:.1f} on {os.cpu_count()} cores", "for reading", True
    )


def _look(master: SimMaster, seen: _Seen) -> None:
    began = time.monotonic()
    items = _items(master)
    seen.all_ms.append((time.monotonic() - began) * 1000)
    now = datetime.now(UTC)
    for item in items:
        seen.ages.append((now - datetime.fromisoformat(str(item["lastSeenAt"]))).total_seconds())
        seen.offline += item["state"] not in _WORKED
    for offset in range(0, max(1, len(items) - 99), 250):
        began = time.monotonic()
        master.api(f"nodes?offset={offset}")
        seen.page_ms.append((time.monotonic() - began) * 1000)


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _silent(name: str, master: SimMaster, stopped: Process, killed: Process, count: int) -> Iterator[Figure]:
    """A tenth goes silent: half of them as machines that hang, half as agents that were killed; then all come back."""
    quiet = sum(1 for member in master.members[: 2 * max(1, count // _SILENT_SHARE // 2)] if member)
    stopped.send(signal.SIGSTOP)
    killed.send(signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: _states(master).get("Offline", 0) >= quiet, f"{name}: {quiet} offline", 120, every=0.5)
    yield under(f"{name}: {quiet} silent nodes, all offline after", time.monotonic() - began, 18, "s")
    states = _states(master)
    yield exactly(f"{name}: nodes offline then", states.get("Offline", 0), quiet)
    stopped.send(signal.SIGCONT)
    master.agents("agents-killed-again", master.members[quiet // 2 : quiet])
    began = time.monotonic()
    wait_until(lambda: _states(master).get("worked", 0) == count, f"{name}: all back", 120, every=0.5)
    yield under(f"{name}: back online after", time.monotonic() - began, 15, "s")


def _queries(name: str, master: SimMaster) -> Figure:
    counts = master.inside(_COUNT.replace("TOKEN", master.token))
    value = " ".join(map(str, counts))
    return Figure(f"{name}: statements of /api/nodes for 1; 100; 1000 rows", value, "equal", len(set(counts)) == 1)
