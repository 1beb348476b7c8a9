"""A whole life: joined, claimed, an engine launched and used, the agent killed and back, the engine ended."""

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.identity import IdentityStore
from tests.agent.core.conftest import launch_spec
from tests.agent.core.fleet import Fleet, server_name
from tests.agent.core.test_cli import Command
from tests.waiting import until

pytestmark = pytest.mark.e2e

CANARY = "canary-Zq8LkQ2vXw7Tn4Rb9Ys3Hd6Jf1Mg5Pc0"


@pytest.fixture
def command(tmp_path: Path, fleet: Fleet) -> Any:
    made = Command(tmp_path)
    IdentityStore(made.state).install(fleet.identity())
    yield made
    made.close()
    made.run("stop-all", "--grace", "0")


class Caller:
    """The pinned master, on a connection a call."""

    def __init__(self, command: Command, fleet: Fleet) -> None:
        self._command, self._fleet, self._number = command, fleet, 0

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        import http.client

        self._number += 1
        fields = {"Content-Type": "application/json", "Connection": "close"}
        if method != "GET" and "/relay/" not in path:
            fields |= {"Mirbad-Epoch": "1", "Mirbad-Instance": "master-one", "Mirbad-Operation": f"op-{self._number}"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self._command.port, timeout=20)
        connection.connect()
        context = self._fleet.client_context(self._command.folder, self._fleet.master)
        connection.sock = context.wrap_socket(connection.sock, server_hostname=server_name())
        try:
            connection.request(method, f"/agent/v1{path}", None if body is None else json.dumps(body), fields)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        return response.status, json.loads(data) if data.startswith(b"{") else data

    def until(self, state: str, seconds: float = 30) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            _, view = self("GET", "/instances/a")
            return dict(view) if view["state"] == state else None

        return until(look, f"the instance to be {state}", seconds)


def _runs(pid: int) -> bool:
    """Return whether the process still runs; one that has ended may be a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_engine_outlives_its_agent_and_ends_when_asked(command: Command, fleet: Fleet) -> None:
    process = command.serve_until_listening()
    call = Caller(command, fleet)
    assert call("PUT", "/fence", {"epoch": 1, "instanceId": "master-one"})[0] == 200
    status, view = call("PUT", "/instances/a", launch_spec(secretEnv={"HF_TOKEN": CANARY}))
    assert (status, view["state"] in {"preparing", "starting"}) == (202, True)
    ready = call.until("ready")
    assert ready["startSeconds"] > 0

    chat = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    named = {"Mirbad_Model": "smollm2-135m", "Mirbad_Generation": "1"}
    status, answer = call("POST", "/instances/a/relay/v1/chat/completions", chat, **named)
    assert (status, answer["object"]) == (200, "chat.completion")
    assert call("POST", "/instances/a/relay/v1/chat/completions", chat, Mirbad_Model="x")[1]["code"] == (
        "generation_mismatch"
    )

    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=20)[0]
    assert process.returncode == 0, output
    assert _runs(ready["pid"])

    killed = command.serve_until_listening()
    assert call.until("ready")["pid"] == ready["pid"]
    killed.kill()
    output += killed.communicate()[0]
    again = command.serve_until_listening()
    assert call.until("ready")["pid"] == ready["pid"]
    status, answer = call("POST", "/instances/a/relay/v1/chat/completions", chat, **named)
    assert status == 200
    assert call("GET", "/instances/a/log?tail=10")[0] == 200

    words = command.run("status").stdout
    assert "a: ready (smollm2-135m)" in words
    again.send_signal(signal.SIGTERM)
    output += again.communicate(timeout=20)[0]
    ended = command.run("stop-all", "--grace", "5")
    assert (ended.returncode, ended.stdout.strip()) == (0, "Stopped: a"), ended.stderr
    assert not _runs(ready["pid"])

    key = json.loads((command.state / "instances" / "a.json").read_text())["api_key"]
    for secret in (key, CANARY):
        assert secret not in output
    for path in command.state.rglob("*"):
        if path.is_file() and path.suffix == ".json" and path.parent.name == "journal":
            assert key not in path.read_text()
            assert CANARY not in path.read_text()


def test_a_stopped_engine_is_final_and_can_be_forgotten(command: Command, fleet: Fleet) -> None:
    command.serve_until_listening()
    call = Caller(command, fleet)
    call("PUT", "/fence", {"epoch": 1, "instanceId": "master-one"})
    call("PUT", "/instances/a", launch_spec())
    call.until("ready")
    assert call("DELETE", "/instances/a")[1]["code"] == "instance_exists"
    assert call("POST", "/instances/a/stop", {"graceSeconds": 5})[0] == 202
    assert call.until("exited")["stopRequested"] is True
    assert call("DELETE", "/instances/a") == (200, {"instanceId": "a"})
    assert call("GET", "/instances/a")[0] == 404
