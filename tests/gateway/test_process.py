"""The web process as it is started in production: `/v1`, pages and its life, on a data folder of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.gateway.client import ask, refused

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=["fast", "asgi"])
def web(request, tmp_path_factory):
    data = tmp_path_factory.mktemp("master")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRBAD_", "DATABASE_"))}
    environ = kept | {
        "MIRBAD_DATA": str(data),
        "MIRBAD_SECRET_KEY": "a secret key of this test, long enough to be taken",
        "MIRBAD_PORT": str(port),
    }

    def manage(*arguments):
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environ, check=True, capture_output=True, text=True, timeout=60)
        return done.stdout.strip()

    (data / "static").mkdir()
    manage("migrate", "--verbosity", "0")
    command = [sys.executable, "-m", "uvicorn", "mirbad.asgi:application", "--port", str(port), "--lifespan", "on"]
    if request.param == "fast":
        command += ["--http", "models_app.gateway.front:connection"]
    with (data / "web.out").open("wb") as out:
        process = subprocess.Popen(
            [*command, "--timeout-graceful-shutdown", "2", "--no-proxy-headers"],
            cwd=ROOT,
            env=environ,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    made = SimpleNamespace(port=port, manage=manage, process=process, out=data / "web.out")
    try:
        wait_until(lambda: listens(port), 30)
        yield made
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) in (0, -signal.SIGTERM), made.out.read_text()
        assert "Traceback" not in made.out.read_text()
    finally:
        process.kill()


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(true, seconds):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_v1_goes_to_the_gateway_and_the_rest_to_django(web):
    assert refused(web, None, "/v1/models", method="GET", key=None) == (401, "invalid_api_key")
    assert refused(web, None, "/v1", method="GET", key=None) == (401, "invalid_api_key")
    assert ask(web, None, "/healthz", method="GET", key=None)[0].status == 200
    assert ask(web, None, "/v1x", method="GET", key=None)[0].status == 404


def test_a_key_works_within_two_seconds_of_its_making_and_no_longer_than_two_after_its_end(web):
    secret = web.manage("api-key", "create", "test")
    wait_until(lambda: ask(web, None, "/v1/models", method="GET", key=secret)[0].status == 200, 2)
    web.manage("api-key", "revoke", "test")
    wait_until(lambda: ask(web, None, "/v1/models", method="GET", key=secret)[0].status == 401, 2)
    assert secret not in web.out.read_text()
