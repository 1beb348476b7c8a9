"""The suite on SQLite and on PostgreSQL + Redis: its time, and how many tests."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.figures.figure import Figure

ROOT = Path(__file__).resolve().parents[2]


def measure() -> Iterator[Figure]:
    """One line a database."""
    for name, title in (("unit-and-app", "suite on SQLite"), ("postgres", "suite on PostgreSQL + Redis")):
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tests", name], cwd=ROOT, capture_output=True, text=True, check=False
        )
        total = re.search(r"===== (.*?) in [\d.]+s =====", done.stdout)
        value = f"{total[1] if total else 'no total'} in {time.monotonic() - begin:.0f} s".replace(", ", " and ")
        yield Figure(title, value, "all pass", done.returncode == 0 and total is not None)
