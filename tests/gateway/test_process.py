"""The web process as it is started in production: `/v1`, pages and its life, on a data folder of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.gateway.downstream import ask, refused
from tests.waiting import until

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
    server = "connection" if request.param == "fast" else "page_connection"
    command += ["--http", f"models_app.gateway.protocol:{server}"]
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
        until(lambda: listens(port), "the web process to listen")
        yield made
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) in (0, -signal.SIGTERM), made.out.read_text()
        assert "Traceback" not in made.out.read_text()
    finally:
        process.kill()


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_v1_goes_to_the_gateway_and_the_rest_to_django(web):
    assert refused(web, None, "/v1/models", method="GET", key=None) == (401, "invalid_api_key")
    assert refused(web, None, "/v1", method="GET", key=None) == (401, "invalid_api_key")
    assert ask(web, None, "/healthz", method="GET", key=None)[0].status == 200
    assert ask(web, None, "/v1x", method="GET", key=None)[0].status == 404


def test_a_key_works_within_two_seconds_of_its_making_and_no_longer_than_two_after_its_end(web):
    secret = web.manage("api-key", "create", "test")
    until(lambda: ask(web, None, "/v1/models", method="GET", key=secret)[0].status == 200, "the key to work", 2)
    web.manage("api-key", "revoke", "test")
    until(lambda: ask(web, None, "/v1/models", method="GET", key=secret)[0].status == 401, "the key to end", 2)
    assert secret not in web.out.read_text()


WRONG = {
    "/chat/completions": "/v1/chat/completions",
    "/api/v1/chat/completions": "/v1/chat/completions",
    "/v1/v1/chat/completions": "/v1/chat/completions",
    "/openai/v1/audio/transcriptions": "/v1/audio/transcriptions",
    "/models": "/v1/models",
    "/anthropic/v1/messages": "/v1/messages",
}


def test_a_wrong_address_with_a_key_gets_json_that_names_the_right_one(web):
    secret = web.manage("api-key", "create", "elsewhere")
    until(lambda: ask(web, None, "/v1/models", method="GET", key=secret)[0].status == 200, "the key to work", 5)
    for path, right in {**WRONG, "/something": None}.items():
        answer, body = ask(web, {"model": "m"}, path, key=secret)
        error = json.loads(body)["error"]
        assert ("type" in json.loads(body)) is path.endswith("/messages")  # Anthropic's form
        assert (answer.status, error["code"], f"Use {right}:" in error["message"]) == (
            404,
            "unknown_url",
            right is not None,
        )


@pytest.mark.parametrize("path", ["//v1//models", "/v1/models/", "/v1//models"])
def test_slashes_too_many_change_nothing(web, path):
    assert refused(web, None, path, method="GET", key=None) == (401, "invalid_api_key")


MACHINES = {
    "/healthz": 200,
    "//healthz/": 200,
    "/readyz": 503,  # no broker runs
    "/readyz/": 503,
    "/metrics": 401,
    "/metrics?x=y": 401,
    "/agent/bundles": 200,
    "/agent//bundles/": 200,
    "/agent/bundles/linux-any.tar.gz": 200,
    "/agent/bundles/none.tar.gz": 404,
}
HOSTS = (
    *(
        "a-pod:8080",
        "192.0.2.7",
        "[2001:db8::1]:8080",
        "[::1",
        "x_y.z",
        "a b",
        "http://x/",
        "x:99999",
        "-",
        "\xe9",
        "*",
    ),
    *("", ".", "a" * 300, "localhost:80@x", "127.0.0.1, x", "x/../y", "'\"<script>", "\xff\xfe", "localhost"),
)


def first_line(web, method, path, *lines, version="1.1"):
    """The status and the body of one response, whose connection closes."""
    with socket.create_connection(("127.0.0.1", web.port), timeout=10) as client:
        client.sendall(
            "\r\n".join([f"{method} {path} HTTP/{version}", *lines, "Connection: close", "", ""]).encode("latin-1")
        )
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    return int(answer.split(b" ")[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("path", MACHINES)
def test_machines_may_call_the_master_by_any_name(web, path):
    found = {host: first_line(web, "GET", path, f"Host: {host}")[0] for host in HOSTS}
    assert found == dict.fromkeys(HOSTS, MACHINES[path])
    assert first_line(web, "GET", path, version="1.0")[0] == MACHINES[path]
    assert first_line(web, "GET", path, "Host: x", "Authorization: Bearer ssk_x")[0] == MACHINES[path]
    posted = first_line(web, "POST", path, "Host: x", "Content-Length: 0")[0]
    assert posted == (401 if "metrics" in path else 403)  # there is no CSRF token
    assert first_line(web, "GET", "/login", "Host: a-pod:8080")[0] == 400


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("a-pod:8080", "http://a-pod:8080"),
        ("[2001:db8::1]:8080", "http://[2001:db8::1]:8080"),
        ("x/../y", "http://localhost"),
        ("a b", "http://localhost"),
    ],
)
def test_the_list_of_archives_has_addresses_by_the_name_that_was_used(web, host, origin):
    (row,) = json.loads(first_line(web, "GET", "/agent/bundles", f"Host: {host}")[1])["bundles"]
    assert row["url"] == f"{origin}/agent/bundles/linux-any.tar.gz"
