"""The newcomer's path: from nothing to a streamed token, and every way in which it can be refused."""

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time

import psutil
import pytest

from tests.e2e.fleet import ROOT, wait_until

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


def test_make_up_ends_in_a_streamed_token_and_in_lines_that_work(make_fleet):
    fleet = make_fleet(starter="smollm2-135m").start()
    assert any("First token streamed through /v1" in line for line in fleet.lines)
    for name in ("admin-password", "api-key", "secret-key"):
        path = fleet.data / "secrets" / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = "\n".join(fleet.lines)
    assert fleet.key not in text, "the key itself must not be printed"
    curl = re.search(r"^curl .*?-d '.*?'$", text, re.MULTILINE | re.DOTALL)[0]
    done = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.rstrip().endswith("data: [DONE]")
    assert '"content":' in done.stdout.replace(" ", "")


def test_everything_ends_with_ctrl_c_and_comes_back_where_it_was(make_fleet):
    fleet = make_fleet(starter="smollm2-135m").start()
    engines = fleet.engines("smollm2-135m")
    assert len(engines) == 1
    key = fleet.key
    assert fleet.stop(signal.SIGINT) == 0
    assert fleet.leftovers() == []
    assert not any(map(psutil.pid_exists, engines))
    fleet.start()
    assert not any("joined as node" in line or "is approved" in line for line in fleet.lines), "nothing is repeated"
    assert fleet.key == key
    assert fleet.chat("smollm2-135m")
    assert fleet.stop(signal.SIGTERM) == 0
    assert fleet.leftovers() == []


def test_a_stopped_starter_model_stays_stopped(make_fleet):
    fleet = make_fleet(starter="smollm2-135m").start()
    fleet.api("POST", "models/smollm2-135m/stop")
    wait_until(lambda: not fleet.engines("smollm2-135m"), seconds=30, what="the engine to end")
    wait_until(lambda: fleet.observed("smollm2-135m") == "stopped", seconds=30, what="the stop to be seen")
    fleet.stop()
    fleet.start()
    fleet.wait_for_line("The starter model smollm2-135m is stopped; that is left as it is.")
    assert not any("curl" in line for line in fleet.lines), "the line to paste would not work"
    assert not fleet.engines("smollm2-135m")


def test_a_starter_engine_that_died_with_everything_else_is_started_once_more(make_fleet):
    fleet = make_fleet(starter="smollm2-135m").start()
    (engine,) = fleet.engines("smollm2-135m")
    fleet.kill()
    os.kill(engine, signal.SIGKILL)
    fleet.start()
    fleet.wait_for_line("First token streamed")
    assert fleet.engines("smollm2-135m") not in (set(), {engine})


def test_a_second_make_up_on_the_same_data_is_refused_by_name_of_the_first(make_fleet):
    fleet = make_fleet().start()
    second = _make_up(fleet.environ)
    assert second.returncode == 1
    (line,) = second.stderr.splitlines()
    assert f"process {fleet.up.pid}" in line
    assert "MIRBAD_DATA" in line
    assert second.stdout == ""
    assert fleet.request("GET", "/readyz")[0] == 200


def test_after_a_crash_running_engines_are_adopted(make_fleet):
    fleet = make_fleet(starter="smollm2-135m").start()
    engines = fleet.engines("smollm2-135m")
    fleet.kill()
    wait_until(
        lambda: {process.pid for process in fleet.leftovers()} == engines,
        seconds=15,
        what="everything but the engine to end with make up",
    )
    fleet.start()
    fleet.wait_for_line("still runs and was adopted")
    assert fleet.engines("smollm2-135m") == engines, "the same process, not another one"
    assert fleet.chat("smollm2-135m")


@pytest.mark.parametrize("victim", ["supervisord", "web", "enroll", "watcher", "worker", "beat", "broker", "agent"])
def test_a_killed_process_is_started_again_and_that_is_said(fleet, victim):
    before = psutil.Process(fleet.pid("web")).ppid() if victim == "supervisord" else fleet.pid(victim)
    fleet.lines.clear()
    os.kill(before, signal.SIGKILL)
    fleet.wait_for_line(f"{victim} ", 30)
    wait_until(lambda: fleet.request_is_ready(), seconds=40, what="readiness")
    if victim != "supervisord":
        assert fleet.pid(victim) != before


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
    assert "cannot be written (Read-only file system)" in line
    assert "MIRBAD_DATA" in line


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MIRBAD_PORT", "eighty", "MIRBAD_PORT: "),
        ("MIRBAD_PORT", "70000", "MIRBAD_PORT: "),
        ("MIRBAD_STARTER_MODEL", "gpt-5", "MIRBAD_STARTER_MODEL: "),
        ("MIRBAD_OPERATION_LEASE", "soon", "MIRBAD_OPERATION_LEASE: give a duration"),
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
    assert "The database of DATABASE_URL cannot be used" in done.stdout
    assert "canary" not in done.stdout + done.stderr
    assert fleet.leftovers() == []


def test_a_broker_that_does_not_answer_is_said_and_nothing_is_started(make_fleet):
    fleet = make_fleet(MIRBAD_REDIS_URL="redis://:wrong-canary@127.0.0.1:1/0")
    done = _make_up(fleet.environ, seconds=60)
    assert done.returncode == 1
    assert "The broker of MIRBAD_REDIS_URL cannot be used" in done.stderr
    assert "canary" not in done.stdout + done.stderr
    assert fleet.leftovers() == []


def test_another_secret_key_than_the_datas_is_said_and_nothing_is_started(make_fleet):
    fleet = make_fleet().start()
    assert fleet.stop() == 0
    fleet.environ["MIRBAD_SECRET_KEY"] = "another-key-canary-of-at-least-32-characters"
    fleet.start(until="A stored secret does not open")
    assert fleet.up.wait(30) == 1
    assert "MIRBAD_SECRET_KEY" in "".join(fleet.lines)
    assert "canary" not in "".join(fleet.lines)
    assert fleet.leftovers() == []
    del fleet.environ["MIRBAD_SECRET_KEY"]
    fleet.start()


def test_a_second_ctrl_c_hurries(make_fleet):
    # its engine does not listen to SIGTERM, so an orderly stop waits for the grace
    fleet = make_fleet().start()
    fleet.define_sim("stubborn", "local", "--ignore-sigterm")
    fleet.api("POST", "models/stubborn/start")
    fleet.wait_for_answer("stubborn")
    begin = time.monotonic()
    fleet.up.send_signal(signal.SIGINT)
    fleet.wait_for_line("Press Ctrl-C again to hurry")
    assert fleet.stop(signal.SIGINT) == 130
    assert time.monotonic() - begin < 8
    assert fleet.leftovers() == []


def test_health_says_what_is_not_ready(fleet):
    assert fleet.request("GET", "/healthz")[0] == 200
    os.kill(fleet.pid("beat"), signal.SIGSTOP)
    try:

        def reasons():
            status, _, body = fleet.request("GET", "/readyz")
            return status == http.client.SERVICE_UNAVAILABLE and json.loads(body)["reasons"]

        seen = wait_until(reasons, seconds=30, what="readiness to end")
        assert any("beat" in reason for reason in seen)
    finally:
        os.kill(fleet.pid("beat"), signal.SIGCONT)
    wait_until(lambda: fleet.request_is_ready(), seconds=30, what="readiness")
