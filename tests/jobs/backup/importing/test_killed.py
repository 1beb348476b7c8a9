"""The process of an import is killed at random times: all of it is written, or nothing, and the next try completes it.

Here a few kills; `MIRBAD_TEST_IMPORT_KILLS` sets another number.
"""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[4]
KILLS = int(os.environ.get("MIRBAD_TEST_IMPORT_KILLS", "4"))
MODELS = 300
FILL = """
import django; django.setup()
from pathlib import Path
from jobs.backup import making
from tests.jobs.backup.fleet import PASSPHRASE, fill
from tests.jobs.backup.importing.fleets import forget_models
from tests.models_app.things import PERSON
import sys
fill(models=int(sys.argv[2]))
making.create(Path(sys.argv[1]), PASSPHRASE, PERSON)
Path(sys.argv[1]).with_name("passphrase").write_text(PASSPHRASE)
forget_models()
"""


class Master:
    """A data folder of its own, and commands on it."""

    def __init__(self, folder: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MIRBAD_")}
        self.environment = kept | {
            "MIRBAD_DATA": str(folder / "data"),
            "MIRBAD_SECRET_KEY": "a secret of this test, sealed with nothing real",
            "DATABASE_URL": "",
            "DJANGO_SETTINGS_MODULE": "mirbad.settings",
        }
        (folder / "data").mkdir()
        self.file = folder / "fleet.backup"
        self.run("manage.py", "migrate", "-v0")
        self.run("-c", FILL, str(self.file), str(MODELS))
        self.database = next((folder / "data").rglob("*.sqlite3"))

    def begin(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start a command."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([sys.executable, *words], env=self.environment, cwd=ROOT, **quiet)

    def run(self, *words: str) -> None:
        """Run a command to its end."""
        ended = subprocess.run([sys.executable, *words], env=self.environment, cwd=ROOT, capture_output=True)
        assert ended.returncode == 0, ended.stderr.decode()[-2000:]

    def restore(self) -> "subprocess.Popen[bytes]":
        """Start the import."""
        word = ("--passphrase-file", str(self.file.with_name("passphrase")))
        return self.begin("manage.py", "backup", "restore", str(self.file), *word, "--yes")

    def rows(self) -> tuple[int, ...]:
        """Models, distinct placements, keys, holds, operations, lines of the audit log."""
        tables = ("modeldefinition", "placement", "apikey", "hold")
        with sqlite3.connect(self.database) as opened:
            counts = [opened.execute(f"SELECT count(*) FROM models_app_{table}").fetchone()[0] for table in tables]
            counts.append(opened.execute("SELECT count(*) FROM jobs_operation").fetchone()[0])
            counts.append(opened.execute("SELECT count(*) FROM audit_auditline WHERE action = 'restore'").fetchone()[0])
        return tuple(counts)

    def empty(self) -> None:
        """Delete what an import wrote."""
        with sqlite3.connect(self.database) as opened:
            for table in ("models_app_hold", "models_app_placement", "models_app_modelsource"):
                opened.execute(f"DELETE FROM {table}")
            for table in ("models_app_modeldefinition", "models_app_apikey", "jobs_operationevent", "jobs_operation"):
                opened.execute(f"DELETE FROM {table}")
            opened.execute("DELETE FROM audit_auditline WHERE action = 'restore'")


@pytest.mark.timeout(1200)
def test_a_kill_at_any_time_leaves_all_or_nothing(tmp_path) -> None:
    master, chance = Master(tmp_path), random.Random(12)
    nothing, everything = (0, 0, 0, 0, 0, 0), (MODELS, MODELS, 1, MODELS, 1, 1)
    assert master.rows() == nothing
    began = time.monotonic()
    assert master.restore().wait(120) == 0
    longest = time.monotonic() - began
    assert master.rows() == everything
    found: dict[str, int] = {"nothing": 0, "everything": 0}
    wrong = []
    for _ in range(KILLS):
        master.empty()
        process = master.restore()
        # The rows are written in the second half of its life.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.4 * longest, 1.02 * longest))
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        rows = master.rows()
        if rows not in (nothing, everything):
            wrong.append(rows)
        found["nothing" if rows == nothing else "everything"] += 1
        # The next try writes it, or is refused since the import goes on; it doubles nothing.
        assert master.restore().wait(120) == (0 if rows == nothing else 1)
        assert master.rows()[:5] == everything[:5], rows
    if report := os.environ.get("MIRBAD_TEST_IMPORT_REPORT"):
        Path(report).write_text(json.dumps({"kills": KILLS, **found, "wrong": len(wrong), "seconds": longest}))
    assert wrong == []
