"""CA rotation: a fleet with nodes away and joining, a master that dies at every boundary, one roll back in between."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.fleet import ROOT
from tests.figures.figure import Figure, exactly

NODES = 50


def measure() -> Iterator[Figure]:
    """One run with real agents over real mutual TLS."""
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        path = Path(folder) / "report"
        environ = {**os.environ, "MIRBAD_TEST_CA_NODES": str(NODES), "MIRBAD_TEST_CA_REPORT": str(path)}
        command = [sys.executable, "-m", "pytest", "-q", "tests/trust/test_ca_rotation_fleet.py"]
        ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, check=False, timeout=1500)
        told = json.loads(path.read_text()) if path.exists() else {}
    yield exactly("CA rotation: simulated nodes", told.get("nodes", 0), NODES)
    yield Figure("CA rotation: joined in the middle", str(told.get("joined", 0)), "5", told.get("joined", 0) >= 5)
    went = told.get("went", 0)
    yield Figure("CA rotation: absences of nodes (20 % in each stage)", str(went), "50 or more", went >= NODES)
    crashes = told.get("crashes", 0)
    yield Figure("CA rotation: crashes of the master at distinct boundaries", str(crashes), "40 or more", crashes >= 40)
    yield exactly("CA rotation: locked out", told.get("locked out", "not measured"), 0)
    yield exactly("CA rotation: nodes under the new CA alone", told.get("under new", 0), NODES)
    yield Figure("CA rotation: time of both rotations", f"{told.get('seconds', 0)} s", "a run that ends", bool(told))
    yield exactly("CA rotation: the run's own checks", ended.returncode, 0)


def main() -> int:
    """Print the figures; 1 when one falls short."""
    figures = list(measure())
    for figure in figures:
        print(figure.line(), flush=True)
    return int(not all(figure.ok for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
