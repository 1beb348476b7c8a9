"""The commands of an operator's shell, beside a running master."""

import http.client
import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from tests.e2e.fleet import ROOT
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def log_in(fleet, password):
    """The status of a log-in as admin."""
    status, headers, body = fleet.request("GET", "/login")
    assert status == http.client.OK
    cookie = headers["set-cookie"].partition(";")[0]
    token = body.partition(b'name="csrfmiddlewaretoken" value="')[2].partition(b'"')[0].decode()
    form = f"csrfmiddlewaretoken={token}&username=admin&password={password}".encode()
    given = {"Cookie": cookie, "Origin": fleet.url, "Content-Type": "application/x-www-form-urlencoded"}
    return fleet.request("POST", "/login", form, headers=given)[0]


def test_status_tells_processes_nodes_and_models_in_words_and_as_json(fleet):
    fleet.define_sim("shown")
    fleet.api("POST", "models/shown/start")
    fleet.wait_for_answer("shown")
    until(lambda: fleet.observed("shown") == "ready", seconds=20, what="the model to be seen ready")
    words = fleet.manage("status", check=False).stdout
    assert f"Mirbad is running at {fleet.url} (process {fleet.up.pid}" in words
    assert "shown  on local  desired running, actual ready" in words
    seen = json.loads(fleet.manage("status", "--json", check=False).stdout)
    assert {row["name"] for row in seen["processes"]} == {
        "web",
        "enroll",
        "watcher",
        "worker",
        "beat",
        "agent",
        "broker",
    }
    assert [row["id"] for row in seen["nodes"]] == ["local"]
    assert seen["pid"] == fleet.up.pid


def test_status_sees_a_process_that_is_gone(fleet):
    with fleet.control() as control:
        control.stop("beat")
        until(lambda: fleet.processes()["beat"].stopped, seconds=20, what="beat to stop")
        done = fleet.manage("status", check=False)
        assert done.returncode == 1
        assert any("beat" in line and "stopped" in line for line in done.stdout.splitlines())
        control.start("beat")
    until(fleet.request_is_ready, seconds=40, what="readiness")


def test_a_lost_password_is_made_anew_and_the_old_one_ends(fleet):
    path = fleet.data / "secrets" / "admin-password"
    old = path.read_text().strip()
    assert log_in(fleet, old) == http.client.FOUND
    shown = fleet.manage("admin-password").stdout
    assert str(path) in shown
    assert old not in shown
    made = fleet.manage("admin-password", "--make")
    new = path.read_text().strip()
    assert new != old
    assert new not in made.stdout + made.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert log_in(fleet, old) == http.client.FORBIDDEN
    assert log_in(fleet, new) == http.client.FOUND


@pytest.fixture(scope="module")
def serving(fleet):
    """A model that answers."""
    fleet.define_sim("keyed")
    fleet.api("POST", "models/keyed/start")
    assert fleet.wait_for_answer("keyed")
    return "keyed"


def test_an_api_key_is_made_listed_and_revoked(fleet, serving):
    secret = fleet.manage("api-key", "create", "laptop", "--expires", "2h").stdout.strip()
    assert secret.startswith("ssk_")
    until(lambda: fleet.wait_for_answer("keyed") and answers(fleet, secret), seconds=10, what="the key to work")
    listed = fleet.manage("api-key", "list").stdout
    assert "laptop" in listed
    assert secret not in listed
    fleet.manage("api-key", "revoke", "laptop")
    until(lambda: not answers(fleet, secret), seconds=10, what="the key to end")
    again = fleet.manage("api-key", "revoke", "laptop", check=False)
    assert again.returncode == 1
    assert "No active key" in again.stderr
    assert "duration" in fleet.manage("api-key", "create", "x", "--expires", "soon", check=False).stderr
    assert "too long" in fleet.manage("api-key", "create", "x", "--expires", "9999999d", check=False).stderr
    refused = fleet.manage("api-key", "create", "x", "--model", "nope", check=False)
    assert "Model 'nope' does not exist" in refused.stderr


def answers(fleet, key):
    """Return whether `key` opens ``/v1``."""
    return fleet.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == http.client.OK


def test_a_snapshot_of_a_running_master_starts_elsewhere_as_another_master(fleet, make_fleet, tmp_path, serving):
    target = tmp_path / "copy"
    done = fleet.manage("snapshot", str(target))
    assert str(target) in done.stdout
    assert "protect it like the data folder" in done.stderr
    assert fleet.manage("snapshot", str(target), check=False).returncode == 1
    other = make_fleet()
    other.folder.mkdir()
    target.rename(other.data)
    other.start()
    assert any("written by another installation" in line for line in other.lines)
    assert not any("is online" in line for line in other.lines)
    assert log_in(other, (other.data / "secrets" / "admin-password").read_text().strip()) == http.client.FOUND
    assert fleet.wait_for_answer("keyed"), "the first master is obeyed as before"


def test_a_command_without_data_says_so_in_one_line(tmp_path):
    environ = {**os.environ, "MIRBAD_DATA": str(tmp_path / "none"), "DATABASE_URL": ""}
    environ = {name: text for name, text in environ.items() if name in {"PATH", "HOME", "MIRBAD_DATA"}}
    for command in (["status"], ["admin-password"], ["api-key", "list"], ["snapshot"]):
        done = subprocess.run(
            [sys.executable, "manage.py", *command], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, command
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert "MIRBAD_DATA" in done.stderr


def test_a_closed_terminal_is_a_stop(make_fleet):
    fleet = make_fleet().start()
    assert fleet.stop(signal.SIGHUP) == 0
    assert fleet.leftovers() == []
