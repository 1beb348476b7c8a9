"""Fencing: how many games of the model hold, and which of its mutants are seen."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.fleet import ROOT
from tests.figures.figure import Figure, exactly

GAMES = 500
_MUTANTS = (
    "the mark is not durable",
    "an equal epoch is accepted",
    "a takeover reads nobody",
    "a restored master keeps its id",
    "one node's refusal fences",
    "no refusal fences",
    "a report is always believed",
    "one route is not fenced",
)


def measure() -> Iterator[Figure]:
    """The model at its full size, then each mutant."""
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        path = Path(folder) / "report"
        environ = {**os.environ, "MIRBAD_TEST_FENCING_RUNS": str(GAMES), "MIRBAD_TEST_FENCING_REPORT": str(path)}
        command = [sys.executable, "-m", "pytest", "-q", "tests/trust/test_fencing_model.py"]
        began = time.monotonic()
        subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, check=False, timeout=2400)
        took = time.monotonic() - began
        told = dict(json.loads(line) for line in path.read_text().splitlines()) if path.exists() else {}
    played = told.get("games", "0 x 0")
    count = int(played.split(" ")[0])
    yield Figure("fencing games (x 30 steps) without two masters obeyed", played, f"{GAMES} x 30", count >= GAMES)
    for mutant in _MUTANTS:
        value = told.get(mutant, "not caught")
        yield Figure(f"mutant: {mutant}", value, "caught", value.startswith("caught"))
    yield exactly("fencing model and mutants ended in under 10 min", took < 600, True)
