"""A master that is restored from its snapshot: by the command, and by hand over a folder with a live log."""

import os
import shutil
import signal

import pytest

from mirbad.up.database_files import COMPANIONS
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def models(fleet):
    return {row["id"] for row in fleet.api("GET", "models")["items"]}


def lose_power(fleet):
    """Kill every process of the fleet at once, so that the last rows are in the log alone."""
    found = fleet.leftovers()
    for process in found:
        process.send_signal(signal.SIGSTOP)
    for process in found:
        process.kill()
    until(lambda: not fleet.leftovers(), "the end of all processes", 30)
    fleet.up.wait()


@pytest.mark.parametrize("way", ["command", "by hand"])
def test_a_snapshot_comes_back_over_the_live_log_of_what_is_there(make_fleet, tmp_path, way):
    fleet = make_fleet().start()
    fleet.define_sim("kept")
    copy = tmp_path / "copy"
    fleet.manage("snapshot", str(copy))
    for number in range(20):
        fleet.define_sim(f"late-{number}")
    lose_power(fleet)
    assert (fleet.data / COMPANIONS[0]).stat().st_size
    if way == "command":
        done = fleet.manage("restore", str(copy))
        assert "What was there before is in" in done.stdout
    else:
        os.system(f"cp -a {copy}/. {fleet.data}/")
        status = fleet.manage("status", check=False)
        assert "malformed" not in status.stdout + status.stderr
    fleet.start()
    assert any("Node local is online" in line for line in fleet.lines)
    assert models(fleet) == {"kept"}
    assert fleet.inside(
        "import json; from django.db import connection; c = connection.cursor();"
        "c.execute('PRAGMA integrity_check'); print(json.dumps(c.fetchone()[0]))"
    ) == "ok"  # fmt: skip
    kept = list((fleet.data / "snapshots").glob("*/mirbad.sqlite3-wal"))
    assert len(kept) == 1, "what was there before is kept"
    fleet.api("POST", "models/kept/start")
    assert fleet.wait_for_answer("kept")
    running = fleet.manage("restore", str(copy), check=False)
    assert running.returncode == 1
    assert "already runs" in running.stderr


def test_the_starter_model_and_another_models_folder_come_back_in_an_empty_folder(make_fleet, tmp_path):
    fleet = make_fleet(starter="smollm2-135m")
    elsewhere = tmp_path / "disk" / "models"
    (fleet.data / "agent").mkdir(parents=True)
    fleet.data.chmod(0o700)
    (fleet.data / "agent" / "agent.json").write_text(f'{{"models_root": "{elsewhere}"}}')
    fleet.start()
    assert (elsewhere / "smollm2-135m").is_dir()
    copy = tmp_path / "copy"
    fleet.manage("snapshot", str(copy))
    fleet.stop()
    shutil.rmtree(fleet.data)
    shutil.rmtree(elsewhere)
    fleet.manage("restore", str(copy))
    fleet.start()
    assert any("First token streamed" in line for line in fleet.lines)
    assert (elsewhere / "smollm2-135m").is_dir()


def test_a_key_from_the_environment_is_in_a_snapshot_only_when_asked_for(make_fleet, tmp_path):
    fleet = make_fleet(MIRBAD_SECRET_KEY="a-key-canary-of-at-least-thirty-two-characters")
    fleet.start()
    refused = fleet.manage("snapshot", str(tmp_path / "a"), check=False)
    assert refused.returncode == 1
    assert "--with-key" in refused.stderr
    assert "canary" not in refused.stdout + refused.stderr
    assert not (tmp_path / "a").exists()
    fleet.manage("snapshot", str(tmp_path / "with"), "--with-key")
    done = fleet.manage("snapshot", str(tmp_path / "without"), "--without-key")
    assert "contains no secret key" in done.stderr
    assert not (tmp_path / "without" / "secrets" / "secret-key").exists()
    key = fleet.environ.pop("MIRBAD_SECRET_KEY")
    without = fleet.manage("snapshot", str(tmp_path / "b"), check=False)
    assert "Set MIRBAD_SECRET_KEY as for make up" in without.stderr
    fleet.environ["MIRBAD_SECRET_KEY"] = "another-key-canary-of-at-least-32-characters"
    other = fleet.manage("snapshot", str(tmp_path / "b"), check=False)
    assert "with the environment of make up" in other.stderr
    fleet.stop()
    del fleet.environ["MIRBAD_SECRET_KEY"]
    lacking = fleet.manage("restore", str(tmp_path / "without"), check=False)
    assert "was made without the secret key" in lacking.stderr
    fleet.environ["MIRBAD_SECRET_KEY"] = "another-key-canary-of-at-least-32-characters"
    assert "another key than MIRBAD_SECRET_KEY" in fleet.manage(
        "restore", str(tmp_path / "without"), check=False
    ).stderr  # fmt: skip
    fleet.environ["MIRBAD_SECRET_KEY"] = key
    fleet.manage("restore", str(tmp_path / "without"))
    del fleet.environ["MIRBAD_SECRET_KEY"]
    fleet.manage("restore", str(tmp_path / "with"))
    fleet.start()
    assert any("Node local is online" in line for line in fleet.lines)
