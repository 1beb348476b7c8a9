"""`make test`: every suite, on SQLite and on PostgreSQL + Redis. ``python -m tests [NAME]`` runs one of them.

The last line is the sum over all suites in pytest's own form; above it stands the name of each test that failed. Parts
that a machine lacks are skipped with their reason; with ``CI=true`` such a skip fails the run.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import services

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "tests" / ".cache"
_LONG = ("e2e", "faults", "browser", "container")
# No part of the machine is wanting in these: a test that speaks of one database runs on that one's turn, some faults do
# not exist for root, and some inputs never reach the gateway behind one of its doors.
_EXPECTED_SKIPS = (
    "only on SQLite",
    "only on PostgreSQL",
    "root reads every file",
    "root may delete in any folder",
    "the streams of the other protocol",
)
_IN_GROUP = re.compile(r"[\s|]*\| [\w.]*(Error|Warning|Exception)\b.*: ")


@dataclass(frozen=True)
class Suite:
    """Some tests on one kind of database: those with one of `marks` and none of `others`; all that are left without."""

    name: str
    marks: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    parallel: int = 2
    postgres: bool = False

    @property
    def expression(self) -> str:
        """The marks as pytest reads them."""
        wanted, others = " or ".join(self.marks), " or ".join(self.others)
        return " and ".join(part for part in (wanted and f"({wanted})", others and f"not ({others})") if part)

    def files(self) -> list[str]:
        """Return the files that hold one of `marks`: to collect all the others takes longer than some suites."""
        words = [f"mark.{mark}" for mark in self.marks]
        found = sorted((ROOT / "tests").rglob("test_*.py")) if words else []
        return [str(path) for path in found if any(word in path.read_text() for word in words)]


SUITES = (
    Suite("unit-and-app", others=_LONG),
    Suite("postgres", ("app",), others=_LONG, postgres=True),
    Suite("e2e", ("e2e", "container"), parallel=3),  # these two wait more than they compute
    Suite("faults", ("faults",), parallel=3),
    Suite("browser", ("browser",)),
)


@dataclass
class Totals:
    """The results of all suites together."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, suite: str, report: Path) -> None:
        """Count the junit report of one suite."""
        for case in ET.parse(report).iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            skip, fault = case.find("skipped"), case.find("failure")
            fault = case.find("error") if fault is None else fault
            if fault is not None:
                lines = [f"{suite}: {name}: {' '.join(fault.get('message', '').split())[:120]}"]
                self.failed.append("\n      ".join(lines + _parts_of_group(fault.text or "")))
            elif skip is not None:
                self.skipped.append(f"{name}: {skip.get('message', '')}")
            else:
                self.passed += 1

    def unexpected_skips(self) -> list[str]:
        """Skips that mean a missing part of this machine."""
        return [line for line in self.skipped if not any(words in line for words in _EXPECTED_SKIPS)]


def _parts_of_group(traceback: str) -> list[str]:
    """Return what each exception of a group says: warnings of objects that were left open name them only there."""
    found = [line.strip(" |") for line in traceback.splitlines() if _IN_GROUP.match(line)]
    return list(dict.fromkeys(line[:400] for line in found))


def run(suite: Suite, totals: Totals) -> int:
    """Run one suite; pytest's exit code, 0 when it holds no test."""
    report = REPORTS / f"{suite.name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-m", suite.expression, f"--junitxml={report}", "-q"]
    # Files in the order of `tests/conftest.py`. A worker that died would be waited for without end: the suite ends.
    shared = ["--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart", "0"]
    command += ["-n", str(suite.parallel), *shared, *suite.files()]
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
        totals.add(suite.name, report)
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
        print("\n".join(f"  {line}" for line in totals.failed))
    words = [f"{len(totals.failed)} failed"] if totals.failed else []
    words += [f"{totals.passed} passed"] + ([f"{len(totals.skipped)} skipped"] if totals.skipped else [])
    print(f"\n===== {', '.join(words)} in {time.monotonic() - started:.2f}s =====")
    return 1 if broken or strict or not totals.passed else 0


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1:] if name]))
