"""The process of an import is killed at random times: all of it is written, or nothing, and the next try completes it.

Here a few kills; `MIRBAD_TEST_IMPORT_KILLS` sets another number, `MIRBAD_TEST_IMPORT_REPORT` a file for the figures.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[4]
KILLS = int(os.environ.get("MIRBAD_TEST_IMPORT_KILLS", "8"))
MODELS = 300


@pytest.mark.timeout(900)
def test_a_kill_at_any_time_leaves_all_or_nothing(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MIRBAD_")}
    environment = kept | {
        "MIRBAD_DATA": str(tmp_path / "data"),
        "MIRBAD_SECRET_KEY": "a secret of this test, sealed with nothing real",
        "DATABASE_URL": "",
    }
    command = [sys.executable, "-m", "tests.jobs.backup.importing.killing", str(tmp_path), str(KILLS), str(MODELS)]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    if report := os.environ.get("MIRBAD_TEST_IMPORT_REPORT"):
        Path(report).write_text(json.dumps(found))
    assert found["wrong"] == []
    assert found["nothing"] + found["everything"] == KILLS
    assert found["rows"] == [MODELS, MODELS, 0, 1, MODELS, 1, 1]
