"""``manage.py enroll_listener`` as a process."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import until

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environ(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRBAD_", "DATABASE_URL"))}
    (tmp_path / "logs").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = kept | {
        "MIRBAD_DATA": str(tmp_path),
        "MIRBAD_SECRET_KEY": "a canary that no log may hold 0123456789",
        "MIRBAD_ENROLL_PORT": str(port),
    }
    manage(made, "migrate", "--verbosity", "0")
    return made


def manage(environ, *arguments):
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=90,
        check=arguments[0] == "migrate",
    )


def wait_for_port(port, process):
    def listens():
        assert process.poll() is None, process.communicate()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(listens, "the listener", 60)


def test_it_serves_until_sigterm_and_ends_cleanly_and_a_second_one_names_the_port(environ, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "manage.py", "enroll_listener"], cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for_port(int(environ["MIRBAD_ENROLL_PORT"]), process)
        second = manage(environ, "enroll_listener")
        assert second.returncode == 1
        last = second.stderr.strip().splitlines()[-1]
        assert "MIRBAD_ENROLL_PORT" in last
        assert "Traceback" not in second.stderr
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in errors
    log = (tmp_path / "logs" / "enroll.log").read_text()
    assert "enroll listener stopping" in log
    assert "canary" not in log + errors
