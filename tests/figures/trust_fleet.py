"""A fleet of simulated agents under one watcher and one web process, on SQLite and on PostgreSQL + Redis.

``MIRBAD_TEST_FLEET_NODES`` (1000), ``_SECONDS`` (60, how long the steady state is watched) and ``_DATABASES``
(``sqlite postgresql``) make it shorter.
"""

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import services
from tests.bench.simfleet.fleet import WORKED, SimFleet, agents_folder
from tests.bench.simfleet.master import Process, SimMaster
from tests.figures.figure import Figure, exactly, under
from tests.waiting import pause, until

FRESH_SECONDS = 15.0
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
    """Readings of the steady state."""

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
    with contextlib.ExitStack() as stack:
        agents = stack.enter_context(agents_folder())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mirbad-figure-")))
        master = SimMaster(folder, database_url=database, redis_url=redis)
        stack.callback(master.close)
        yield from _measured(f"{count} nodes on {name}", SimFleet(master, count, agents))


def _measured(name: str, fleet: SimFleet) -> Iterator[Figure]:
    master = fleet.master
    web = master.web()
    began = time.monotonic()
    watcher = fleet.watch()
    fleet.wait_for_all(600)
    ramp, ramp_cpu = time.monotonic() - began, watcher.cpu_seconds
    yield under(f"{name}: start of the watcher to all online", ramp, 60, "s")
    yield under(f"{name}: CPU of the watcher for that", ramp_cpu / fleet.count * 1000, 50, "ms a node")
    yield from _steady(name, fleet, watcher)
    yield _page_cost(name, master, web)
    yield from _silent(name, fleet)
    yield _queries(name, master)
    yield exactly(f"{name}: database is locked", master.logs().lower().count("database is locked"), 0)
    found = [line.replace(", ", "; ") for line in fleet.tracebacks()]
    yield Figure(f"{name}: tracebacks of the master", " ".join([str(len(found)), *sorted(set(found))]), "0", not found)


def _steady(name: str, fleet: SimFleet, watcher: Process) -> Iterator[Figure]:
    master, seen = fleet.master, _Seen()
    seconds = float(os.environ.get("MIRBAD_TEST_FLEET_SECONDS", "60"))
    pause(5)
    began, cpu, writes = time.monotonic(), watcher.cpu_seconds, master.writes()
    while time.monotonic() - began < seconds:
        _look(fleet, seen)
        pause(1.0)
    past = time.monotonic() - began
    used, written = watcher.cpu_seconds - cpu, master.writes() - writes
    kind, most = ("rows", 1500) if master.database_url else ("transactions", 20)
    yield under(f"{name}: oldest state seen in {past:.0f} s", max(seen.ages), FRESH_SECONDS, "s")
    yield exactly(f"{name}: nodes that read offline meanwhile", seen.offline, 0)
    yield under(f"{name}: CPU of the watcher", used / past * 100, 75, "% of a core")
    yield under(f"{name}: memory of the watcher", watcher.memory_mib, 600, "MiB")
    yield under(f"{name}: database writes; {kind} a second", written / past, most, "/s")
    yield under(f"{name}: /api/nodes p95 (page of 100)", _p95(seen.page_ms), 150, "ms")
    yield under(f"{name}: /api/nodes p95 (all nodes in one page)", _p95(seen.all_ms), 1000, "ms")
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    yield Figure(f"{name}: load of this machine meanwhile", load, "for reading", True)


def _look(fleet: SimFleet, seen: _Seen) -> None:
    began = time.monotonic()
    items = fleet.items()
    seen.all_ms.append((time.monotonic() - began) * 1000)
    now = datetime.now(UTC)
    for item in items:
        seen.ages.append((now - datetime.fromisoformat(str(item["lastSeenAt"]))).total_seconds())
        seen.offline += item["state"] not in WORKED
    for offset in range(0, max(1, len(items) - 99), 250):
        began = time.monotonic()
        fleet.master.api(f"nodes?offset={offset}")
        seen.page_ms.append((time.monotonic() - began) * 1000)


def _page_cost(name: str, master: SimMaster, web: Process) -> Figure:
    """Measure the CPU time of a page, whatever else this machine is doing."""
    began, before = time.monotonic(), web.cpu_seconds
    pause(5)
    idle = (web.cpu_seconds - before) / (time.monotonic() - began)
    pages, began, before = 30, time.monotonic(), web.cpu_seconds
    for _ in range(pages):
        master.api("nodes")
    used = web.cpu_seconds - before - idle * (time.monotonic() - began)
    return under(f"{name}: CPU of the web process for /api/nodes", used / pages * 1000, 100, "ms")


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _silent(name: str, fleet: SimFleet) -> Iterator[Figure]:
    """A tenth goes silent: half of them as machines that hang, half as agents that were killed; then all come back."""
    fleet.fall_silent()
    began = time.monotonic()
    until(lambda: fleet.states().get("Offline", 0) >= fleet.silent, f"{name}: offline", 120, every=0.5)
    yield under(f"{name}: {fleet.silent} silent nodes; all offline after", time.monotonic() - began, 18, "s")
    yield exactly(f"{name}: nodes offline then", fleet.states().get("Offline", 0), fleet.silent)
    fleet.come_back()
    began = time.monotonic()
    fleet.wait_for_all(120)
    yield under(f"{name}: back online after", time.monotonic() - began, 15, "s")


def _queries(name: str, master: SimMaster) -> Figure:
    counts = master.inside(_COUNT.replace("TOKEN", master.token))
    value = " ".join(map(str, counts))
    return Figure(f"{name}: statements of /api/nodes for 1; 100; 1000 rows", value, "equal", len(set(counts)) == 1)
