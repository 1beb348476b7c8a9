"""Starts that are refused: one line each, and nothing is started."""

import os
import socket
import subprocess
import sys

import pytest

from tests.e2e.fleet import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def _make_up(environ, *command: str, seconds: float = 30) -> "subprocess.CompletedProcess[str]":
    """Run `make up` (or `command` that does) to its end, which is to come by itself."""
    return subprocess.run(
        command or (sys.executable, "-m", "mirbad.up"),
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def test_a_second_make_up_on_the_same_data_is_refused_by_name_of_the_first(make_fleet):
    fleet = make_fleet().start()
    second = _make_up(fleet.environ)
    assert second.returncode == 1
    (line,) = second.stderr.splitlines()
    assert f"process {fleet.up.pid}" in line
    assert "MIRBAD_DATA" in line
    assert second.stdout == ""
    assert fleet.request("GET", "/readyz")[0] == 200


@pytest.mark.parametrize("variable", ["MIRBAD_PORT", "MIRBAD_ENROLL_PORT", "MIRBAD_AGENT_PORT"])
def test_a_taken_port_is_one_line_that_names_it_and_its_setting(make_fleet, variable):
    fleet = make_fleet()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", fleet.ports[variable]))
        holder.listen()
        done = _make_up(fleet.environ)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(fleet.ports[variable]) in line
    assert f"set {variable}" in line
    assert f"process {os.getpid()}" in line


def test_a_data_folder_on_a_read_only_disk_is_one_line(make_fleet, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("a read-only mount needs root")
    place = tmp_path / "read-only"
    place.mkdir()
    line = f"mount -t tmpfs -o ro tmpfs {place} && exec {sys.executable} -m mirbad.up"
    environ = {**make_fleet().environ, "MIRBAD_DATA": str(place / "data")}
    done = _make_up(environ, "unshare", "--mount", "sh", "-c", line)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "is not writable (Read-only file system)" in line
    assert "MIRBAD_DATA" in line


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MIRBAD_PORT", "eighty", "MIRBAD_PORT: "),
        ("MIRBAD_PORT", "70000", "MIRBAD_PORT: "),
        ("MIRBAD_STARTER_MODEL", "gpt-5", "MIRBAD_STARTER_MODEL: "),
        ("MIRBAD_OPERATION_LEASE", "soon", "MIRBAD_OPERATION_LEASE: use a duration"),
        ("MIRBAD_PROT", "8080", "MIRBAD_PROT is not a setting"),
        ("MIRBAD_SECRET_KEY_FILE", "/nowhere/key", "MIRBAD_SECRET_KEY_FILE: the file cannot be read"),
        ("MIRBAD_BOOTSTRAP_NODE", "My Node", "MIRBAD_BOOTSTRAP_NODE: "),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it(make_fleet, name, value, words):
    fleet = make_fleet(**{name: value})
    done = _make_up(fleet.environ)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert words in line
    assert not fleet.data.exists()


def test_a_database_that_does_not_answer_is_said_and_nothing_is_started(make_fleet):
    fleet = make_fleet(DATABASE_URL="postgres://mirbad:wrong-canary@127.0.0.1:1/none")
    done = _make_up(fleet.environ, seconds=60)
    assert done.returncode == 1
    assert "The database of DATABASE_URL is not usable" in done.stdout
    assert "canary" not in done.stdout + done.stderr
    assert fleet.leftovers() == []


def test_a_broker_that_does_not_answer_is_said_and_nothing_is_started(make_fleet):
    fleet = make_fleet(MIRBAD_REDIS_URL="redis://:wrong-canary@127.0.0.1:1/0")
    done = _make_up(fleet.environ, seconds=60)
    assert done.returncode == 1
    assert "The broker of MIRBAD_REDIS_URL is not usable" in done.stderr
    assert "canary" not in done.stdout + done.stderr
    assert fleet.leftovers() == []


def test_another_secret_key_than_the_datas_is_said_and_nothing_is_started(make_fleet):
    fleet = make_fleet().start()
    assert fleet.stop() == 0
    fleet.environ["MIRBAD_SECRET_KEY"] = "another-key-canary-of-at-least-32-characters"
    fleet.start(until="A stored secret cannot be decrypted")
    assert fleet.up.wait(30) == 1
    assert "MIRBAD_SECRET_KEY" in "".join(fleet.lines)
    assert "canary" not in "".join(fleet.lines)
    assert fleet.leftovers() == []
    del fleet.environ["MIRBAD_SECRET_KEY"]
    fleet.start()
