"""A measurement in a process of its own, on a data folder of its own."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run_apart(module: str) -> Any:
    """Run `module` with an empty folder as its one argument; return its last line, read as JSON. RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("MIRBAD_")}
        environment = kept | {
            "MIRBAD_DATA": folder,
            "MIRBAD_SECRET_KEY": "a secret of the figures, sealed with nothing real",
            "DATABASE_URL": "",
            "DJANGO_SETTINGS_MODULE": "mirbad.settings",
        }
        command = [sys.executable, "-m", module, folder]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the measurement failed: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])
