"""`make test`: every suite, on SQLite and on PostgreSQL + Redis. ``python -m tests [NAME]`` runs one of them.

The last line is the sum over all suites in pytest's own form. What a machine cannot run is skipped with its reason;
with ``CI=true`` such a skip fails the run.
"""

import contextlib
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import services

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "tests" / ".cache"
_LONG = "e2e or faults or browser or container"
# No part of the machine is wanting in these: a test that speaks of one database runs on that one's turn, some faults do
# not exist for root, and some inputs never reach the gateway behind one of its doors.
_EXPECTED_SKIPS = (
    "only on SQLite",
    "only on PostgreSQL",
    "root reads every file",
    "root may delete in any folder",
    "uvicorn's own server takes them",
    "the streams of the other door",
)


@dataclass(frozen=True)
class Suite:
    """Some tests on one kind of database."""

    name: str
    marked: str
    parallel: int = 0
    postgres: bool = False


SUITES = (
    Suite("unit-and-app", f"not ({_LONG})", parallel=2),
    Suite("postgres", f"not ({_LONG}) and not unit", parallel=2, postgres=True),
    Suite("e2e", "e2e or container", parallel=2),
    Suite("faults", "faults", parallel=2),
    Suite("browser", "browser", parallel=2),
)


@dataclass
class Totals:
    """What all suites came to."""

    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)

    def add(self, report: Path) -> None:
        """Count one junit report."""
        for case in ET.parse(report).iter("testcase"):
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed += 1
            elif skip is not None:
                self.skipped.append(f"{case.get('classname')}::{case.get('name')}: {skip.get('message', '')}")
            else:
                self.passed += 1

    def unexpected_skips(self) -> list[str]:
        """Skips that mean a missing part of this machine."""
        return [line for line in self.skipped if not any(words in line for words in _EXPECTED_SKIPS)]


def run(suite: Suite, totals: Totals) -> int:
    """Run one suite; pytest's exit code, 0 when it holds no test."""
    report = REPORTS / f"{suite.name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-m", suite.marked, f"--junitxml={report}", "-q"]
    command += ["-n", str(suite.parallel), "--dist", "loadfile"] if suite.parallel else []
    environ = {**os.environ}
    with contextlib.ExitStack() as stack:
        if suite.postgres:
            try:
                environ["MIRBAD_TEST_DATABASE_URL"] = stack.enter_context(services.postgres())
                environ["MIRBAD_TEST_REDIS_URL"] = stack.enter_context(services.redis())
            except services.Missing as missing:
                print(f"\n=== {suite.name}: skipped, {missing}", flush=True)
                totals.skipped.append(f"suite {suite.name}: {missing}")
                return 0
        print(f"\n=== {suite.name}", flush=True)
        code = subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode
    if report.exists():
        totals.add(report)
    return 0 if code == 5 else code


def main(wanted: list[str]) -> int:
    """Run the suites in `wanted`, all when it is empty. 0 when every one passed."""
    unknown = set(wanted) - {suite.name for suite in SUITES}
    if unknown:
        print(f"there is no suite {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in SUITES)}")
        return 2
    REPORTS.mkdir(parents=True, exist_ok=True)
    started, totals = time.monotonic(), Totals()
    codes = {suite.name: run(suite, totals) for suite in SUITES if not wanted or suite.name in wanted}
    missing = totals.unexpected_skips()
    strict = os.environ.get("CI") == "true" and missing
    if missing:
        print(f"\n{'FAILED' if strict else 'Skipped'} for want of a part of this machine:")
        print("\n".join(f"  {line}" for line in missing))
    broken = [name for name, code in codes.items() if code]
    if broken:
        print(f"\nSuites that failed: {', '.join(broken)}")
    words = [f"{totals.failed} failed"] if totals.failed else []
    words += [f"{totals.passed} passed"] + ([f"{len(totals.skipped)} skipped"] if totals.skipped else [])
    print(f"\n===== {', '.join(words)} in {time.monotonic() - started:.2f}s =====")
    return 1 if broken or strict or not totals.passed else 0


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1:] if name]))
