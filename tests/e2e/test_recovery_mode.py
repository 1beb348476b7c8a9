"""A web process in recovery mode under another supervisor: closed at both doors, and it ends to be started again."""

import http.client
import json
import signal
import socket
import subprocess
import sys

import pytest

from mirbad.kernel.conf import read_settings
from mirbad.up import programs
from mirbad.up.programs import Layout
from tests.e2e.fleet import ROOT, Fleet
from tests.jobs.backup.fleet import PASSPHRASE
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]

SOCKET = (
    "GET /live HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(params=["fast", "asgi"])
def web(request, tmp_path):
    """A fleet of which the web process alone runs, in recovery mode."""
    fleet = Fleet(
        tmp_path, MIRBAD_SECRET_KEY="a secret of the test, sealed with nothing real", MIRBAD_V1_DOOR=request.param
    )
    for part in ("static", "logs", "uploads"):
        (fleet.data / part).mkdir(parents=True)
    fleet.manage("migrate", "--no-input")
    (fleet.data / "recovery").touch()
    fleet.environ["DJANGO_SETTINGS_MODULE"] = "mirbad.settings"
    command = programs.web(Layout(read_settings(fleet.environ), tmp_path, python=sys.executable))
    process = subprocess.Popen(command, cwd=ROOT, env=fleet.environ)
    try:
        until(lambda: _status(fleet, "/healthz") == 200, "the web process", 60)
        yield fleet, process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _status(fleet, path):
    try:
        return fleet.request("GET", path)[0]
    except (OSError, http.client.HTTPException):
        return 0


def test_it_is_closed_and_ends_when_the_mode_is_over(web):
    fleet, process = web
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("POST", "/v1/messages")):
        status, headers, body = fleet.request(method, path, {} if method == "POST" else None)
        assert status == 503, (path, body)
        assert b"maintenance" in body or b"overloaded" in body, (path, body)
        assert int(headers["retry-after"]) >= 30
    for path in ("/api/nodes", "/metrics", "/agent/bundles"):
        status, _, body = fleet.request("GET", path, headers={"Host": "another.name"} if path != "/api/nodes" else {})
        assert (status, json.loads(body)["code"]) == (503, "recovery_mode"), path
    with socket.create_connection((fleet.host, fleet.ports["MIRBAD_PORT"]), timeout=10) as opened:
        opened.sendall(SOCKET.format(host=f"{fleet.host}:{fleet.ports['MIRBAD_PORT']}").encode())
        assert opened.recv(100).startswith(b"HTTP/1.1 503")
    large = b"0" * (3 * 1024 * 1024)
    status, _, _ = fleet.request("POST", "/backup/recover/upload", large)
    assert status == 403, "nobody without a log-in fills the disk"
    (fleet.data / "recovery").unlink()
    assert process.wait(30) == 75


_MAKE = """
import sys, django; django.setup()
from pathlib import Path
from django.core.management import call_command
call_command("migrate", verbosity=0, interactive=False)
from jobs.backup import making
from mirbad.kernel.actor import CONFIG
from tests.jobs.backup.fleet import PASSPHRASE, fill
fill()
making.create(Path(sys.argv[1]), PASSPHRASE, CONFIG)
"""
_KILLED = """
import os, sys, django; django.setup()
from pathlib import Path
from django.core.management import call_command
call_command("migrate", verbosity=0, interactive=False)
from jobs.backup import installation
installation._finish = lambda data: os.kill(os.getpid(), 9)
installation.install(Path(sys.argv[1]), sys.argv[2], "the test")
"""


def test_an_installation_that_was_killed_after_its_rows_is_finished_by_the_next_start(make_fleet, tmp_path):
    key = {"MIRBAD_SECRET_KEY": "a secret of the test, sealed with nothing real"}
    made, fleet = Fleet(tmp_path / "made", **key), make_fleet(**key)
    backup = tmp_path / "fleet.backup"
    for one, code, code_words in ((made, _MAKE, (backup,)), (fleet, _KILLED, (backup, PASSPHRASE))):
        for part in ("static", "secrets"):
            (one.data / part).mkdir(parents=True)
        (one.data / "recovery").touch()
        environ = {**one.environ, "DJANGO_SETTINGS_MODULE": "mirbad.settings"}
        done = subprocess.run([sys.executable, "-c", code, *map(str, code_words)], cwd=ROOT, env=environ, check=False)
        assert done.returncode == (0 if one is made else -9)
    assert (fleet.data / "recovery-staging" / "takeover").exists()
    fleet.start()
    assert any("Settled the installation of a backup that was interrupted" in line for line in fleet.lines)
    assert not (fleet.data / "recovery").exists()
    assert not (fleet.data / "recovery-staging").exists()
    assert {"web", "worker", "watcher", "beat", "broker"} <= set(fleet.processes())
    assert fleet.request("GET", "/backup/recovered")[0] == 302
    assert {row["id"] for row in fleet.api("GET", "models")["items"]} == {"m0", "m1", "m2"}
