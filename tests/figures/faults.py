"""The table of faults: each with its kind, the inputs that tests try over the kind, and how many answers were right.

The numbers are those of this run: the tests run here, and a plugin counts (`tests.figures.counting`).
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.figures.counting import REPORT
from tests.figures.faults_kinds import KINDS, Kind
from tests.figures.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
_NO_TESTS = 5
_LONG = "e2e or faults or browser or container"


def measure() -> Iterator[Figure]:
    """Run the tests of all kinds, print the table, and yield one figure a kind."""
    lines = _run()
    rows = [(kind, *_count(kind, lines)) for kind in KINDS]
    print(_table(rows), flush=True)
    for kind, tried, right, missing in rows:
        value = f"{right} right of {tried}" + (f"; not run here: {missing} tests" if missing else "")
        yield Figure(f"{kind.fault}: {kind.kind}".replace(",", ""), value, "all right", 0 < tried == right)


def _run() -> list[dict[str, object]]:
    """Return a line a test."""
    tests = dict.fromkeys(test for kind in KINDS for test in kind.tests)
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        report = Path(folder) / "counts"
        report.touch()
        environ = {**os.environ, REPORT: str(report)}
        for marked in (f"not ({_LONG})", _LONG):  # apart, as in suites
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "tests.figures.counting"]
            command += ["-m", marked, *tests]
            done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
            if done.returncode not in (0, _NO_TESTS):
                print(done.stdout[-6000:] + done.stderr[-2000:], flush=True)
        return [json.loads(line) for line in report.read_text().splitlines()]


def _count(kind: Kind, lines: list[dict[str, object]]) -> tuple[int, int, int]:
    """Return the inputs tried, the right answers, and the tests that were skipped."""
    own = [line for line in lines if kind.has(str(line["test"]))]
    tried, right = (sum(int(str(line[name])) for line in own) for name in ("tried", "right"))
    return tried, right, sum(line["outcome"] == "skipped" for line in own)


def _table(rows: list[tuple[Kind, int, int, int]]) -> str:
    heads = ("fault", "kind", "inputs", "right")
    cells = [heads, *((kind.fault, kind.kind, str(tried), str(right)) for kind, tried, right, _ in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(2)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>7}  {row[3]:>7}" for row in cells]
    total = [sum(row[column] for row in rows) for column in (1, 2)]
    lines.append(f"{'all':<{widths[0]}}  {'':<{widths[1]}}  {total[0]:>7}  {total[1]:>7}")
    return "\n".join(lines)
