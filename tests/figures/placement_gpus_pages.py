"""A node of eight cards in a browser: pictures of the dashboard, its GPUs and their history, looked at by axe."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.figures.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "tests" / ".cache" / "gpus-pages"


def measure() -> Iterator[Figure]:
    """The agent's own code reads the cards from a fake driver: one lost, one slow, one in slices, one silent."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    for old in SHOTS.glob("gpus*.png"):
        old.unlink()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/browser/test_gpus.py"],
        cwd=ROOT, env={**os.environ, "MIRBAD_TEST_SHOTS": str(SHOTS)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    passed = re.search(r"(\d+) passed", done.stdout)
    pictures = sorted(SHOTS.glob("gpus*.png"))
    value = f"{passed[1] if passed else 0} pages without a fault, {len(pictures)} pictures in {SHOTS.relative_to(ROOT)}"
    yield Figure(
        "eight cards in a browser", value, "5 pages, 20 pictures", done.returncode == 0 and len(pictures) == 20
    )
