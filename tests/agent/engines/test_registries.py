"""Registries that refuse a pull, as a real Docker Engine reports them."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agent.deliveries import docker_pull
from agent.deliveries.base import DeliveryFailed
from agent.deliveries.images import parse
from tests.bench.docker import DockerBench
from tests.bench.services import free_port

pytestmark = pytest.mark.container

DIGEST = f"sha256:{'3' * 64}"
REFUSALS = {
    "wants-login": (401, "UNAUTHORIZED", "authentication required"),
    "not-yours": (403, "DENIED", "requested access to the resource is denied"),
    "page": (403, "", "<html>Forbidden by a proxy</html>"),
    "too-often": (429, "TOOMANYREQUESTS", "You have reached your pull rate limit."),
    "absent": (404, "MANIFEST_UNKNOWN", "manifest unknown"),
    "broken": (503, "", "Service Unavailable"),
}


class Registry(BaseHTTPRequestHandler):
    """A registry that refuses every image, by the last part of its name."""

    def do_GET(self) -> None:
        """Refuse, but the question whether this is a registry."""
        parts = self.path.split("/")
        # /v2/team/<name>/manifests/<digest>
        status, code, text = REFUSALS[parts[3]] if len(parts) > 4 else (200, "", "{}")
        body = json.dumps({"errors": [{"code": code, "message": text}]}).encode() if code else text.encode()
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="registry"')
        self.send_header("Content-Type", "application/json" if code or status == 200 else "text/html")
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        """Refuse likewise."""
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def pulled(bench: DockerBench, repository: str) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as failed:
        docker_pull.ensure_image(bench.host, parse(f"{repository}@{DIGEST}"), lambda _: None, docker_pull.PullStop())
    return failed.value


@pytest.mark.parametrize("login", [False, True], ids=["without", "with a log-in"])
def test_each_refusal_has_its_code(
    docker_bench: DockerBench, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: bool
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    if login:
        stored = {registry: {"auth": base64.b64encode(b"bob:wrong").decode()}}
        (tmp_path / "config.json").write_text(json.dumps({"auths": stored}))
    codes = {name: pulled(docker_bench, f"{registry}/team/{name}") for name in REFUSALS}
    assert {name: failed.code for name, failed in codes.items()} == {
        "wants-login": "registry_unauthorized",
        "not-yours": "registry_forbidden" if login else "registry_unauthorized",
        "page": "registry_forbidden",
        "too-often": "registry_rate_limited",
        "absent": "image_not_found",
        "broken": "registry_unreachable",
    }
    assert f"docker --config {tmp_path} login {registry}" in str(codes["wants-login"])
    assert ("'bob'" in str(codes["wants-login"])) is login
    assert "wrong" not in "".join(map(str, codes.values()))


def test_a_registry_that_is_not_there_is_unreachable(docker_bench: DockerBench) -> None:
    assert pulled(docker_bench, f"127.0.0.1:{free_port()}/engine").code == "registry_unreachable"
    assert pulled(docker_bench, "registry.invalid/engine").code == "registry_unreachable"
