"""Operations under kills: every kind at every point; many at once, the database restarted; a drain under load.

The table has a line for each kind of operation: for each fault the points at which it fell, what was lost (operations
that never ended) and what was wrong (an engine twice, missing, or without a place; a hold, an end or a count of effects
that is not as it should be).
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.bench import services
from tests.e2e.fleet import ROOT
from tests.figures.figure import Figure, exactly
from tests.jobs.kills.names import NAMES

_KILLS = "tests/jobs/kills/test_kills.py::test_nothing_is_lost_and_nothing_runs_twice"
_STORM = "tests/jobs/kills/storm.py"
_DRAIN = "tests/jobs/kills/drain.py"


def measure() -> Iterator[Figure]:
    """One line a kind, then the sums, the storm and the drain."""
    kills = lost = wrong = points = 0
    for name in NAMES:
        told = _run(f"{_KILLS}[{name}]")
        table = told.get("table", {})
        row = [f"{fault} {one['points']}/{one['lost']}/{one['wrong']}" for fault, one in table.items()]
        kills += table.get("killed", {}).get("points", 0)
        points += sum(one["points"] for one in table.values())
        lost += sum(one["lost"] for one in table.values())
        wrong += sum(one["wrong"] for one in table.values())
        for line in told.get("wrong", []):
            print(f"  {line}", flush=True)
        yield Figure(
            f"{name} (points/lost/wrong)",
            "; ".join(row) or "not measured",
            "0 lost, 0 wrong",
            bool(row) and told["ended"] == 0,
        )
    yield Figure("kill points over all kinds", str(kills), "200 or more", kills >= 200)
    yield Figure("points of all faults", str(points), "500 or more", points >= 500)
    yield exactly("operations lost", lost, 0)
    yield exactly("wrong effects", wrong, 0)
    yield from _storm(_run_storm())
    yield from _drain(_run(_DRAIN))


def _storm(told: dict[str, Any]) -> Iterator[Figure]:
    asked = told.get("operations", 0)
    name = "operations with random kills of workers and restarts of the database"
    value = f"{told.get('finished', 0)} of {asked} finished once, {told.get('kills', 0)} kills, "
    value += f"{told.get('restarts', 0)} restarts, {told.get('seconds', 0)} s"
    right = told.get("finished") == asked >= 200 and told.get("restarts", 0) >= 2 and told["ended"] == 0
    yield Figure(name, value, "200 of 200, 2 restarts", right)
    yield exactly("wrong effects among them", told.get("wrong", "not measured"), 0)


def _drain(told: dict[str, Any]) -> Iterator[Figure]:
    sent, failed = told.get("sent", 0), told.get("failed", "not measured")
    value = f"{sent} sent ({told.get('streams', 0)} streams), {failed} failed, {told.get('seconds', 0)} s"
    right = failed == 0 and sent > 100 and told["ended"] == 0
    yield Figure("drain of a node with three models under load: requests", value, "0 failed", right)


def _run_storm() -> dict[str, Any]:
    """On a PostgreSQL of its own, which is restarted whenever the storm asks for it."""
    try:
        server = services.Postgres()
    except services.Missing as error:
        print(f"  {error}", flush=True)
        return {"ended": 1}
    over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="mirbad-storm-") as control:

        def restart_on_request() -> None:
            while not over.wait(0.2):
                if (wish := Path(control) / "restart").exists():
                    server.stop()
                    server.start()
                    wish.unlink()

        watcher = threading.Thread(target=restart_on_request, daemon=True)
        try:
            server.start()
            watcher.start()
            also = {"MIRBAD_TEST_DATABASE_URL": server.url, "MIRBAD_TEST_KILLS_CONTROL": control}
            return _run(_STORM, also)
        finally:
            over.set()
            watcher.join(40)
            server.end()


def _run(test: str, also: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        path = Path(folder) / "report"
        environ = {**os.environ, **also, "MIRBAD_TEST_KILLS": "1", "MIRBAD_TEST_KILLS_REPORT": str(path)}
        command = [sys.executable, "-m", "pytest", "-q", "--timeout", "3000", test]
        ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, check=False, timeout=3600)
        told: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return {**told, "ended": ended.returncode}


def main() -> int:
    """Print the figures; 1 when one falls short."""
    figures = list(measure())
    for figure in figures:
        print(figure.line(), flush=True)
    return int(not all(figure.ok for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
