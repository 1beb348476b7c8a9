"""The command line, as processes: what it prints, how it exits, what it leaves."""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.identity import IdentityStore, in_groups
from agent.state import read_json, write_json
from tests.agent.core.fleet import UID, Fleet, server_name
from tests.agent.core.listener import EnrollServer, enroll_server
from tests.waiting import until

pytestmark = pytest.mark.e2e

TOKEN = "aGVsbG8.c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldC1zZWNyZXQ"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@dataclass
class Command:
    """`mirbad-agent` with a configuration of its own."""

    folder: Path
    port: int = field(default_factory=free_port)
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = self.folder / "state"
        self.config = self.folder / "agent.json"
        (self.folder / "models").mkdir()
        self.configure()

    def configure(self, **changes: Any) -> None:
        values = {"state_dir": "state", "models_root": "models", "bind": "127.0.0.1", "port": self.port, **changes}
        self.config.write_text(json.dumps(values))

    def _call(self, *arguments: str, environ: dict[str, str]) -> dict[str, Any]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRBAD_", "NOTIFY_"))}
        return {
            "args": [sys.executable, "-m", "agent", *arguments, "--config", str(self.config)],
            "env": {**kept, **environ},
            "text": True,
            "stdin": subprocess.DEVNULL,
        }

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(**self._call(*arguments, environ=environ), capture_output=True, timeout=60, check=False)

    def serve(self, **environ: str) -> subprocess.Popen[str]:
        call = self._call("serve", environ=environ)
        process = subprocess.Popen(**call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.running.append(process)
        return process

    def serve_until_listening(self, **environ: str) -> subprocess.Popen[str]:
        process = self.serve(**environ)

        def listens() -> bool:
            if process.poll() is not None:
                raise AssertionError(f"the agent does not listen: {process.communicate()[0]}")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        until(listens, "the agent to listen")
        return process

    def close(self) -> None:
        """End what still runs; engines are another matter."""
        for process in self.running:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def join(self, server: EnrollServer, *more: str, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
        arguments = ("join", "--enroll-url", server.url, "--ca-hash", server.fleet.ca_hash, "--node-id", "pc-1", *more)
        return self.run(*arguments, **({} if token is None else {"MIRBAD_JOIN_TOKEN": token}))


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path)
    yield made
    made.close()


@pytest.fixture
def listener(fleet: Fleet, tmp_path: Path) -> Iterator[EnrollServer]:
    with enroll_server(fleet, tmp_path) as server:
        yield server


@pytest.fixture
def joined(command: Command, fleet: Fleet) -> Command:
    IdentityStore(command.state).install(fleet.identity())
    return command


def _ask(command: Command, fleet: Fleet, request: str) -> tuple[int, Any]:
    """One request of the pinned master."""
    context = fleet.client_context(command.folder, fleet.master)
    with (
        socket.create_connection(("127.0.0.1", command.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=server_name()) as tls,
    ):
        tls.sendall(f"{request}\r\nHost: agent\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while more := tls.recv(65536):
            data += more
    head, body = data.split(b"\r\n\r\n", 1)
    return int(head.split()[1]), json.loads(body)


def test_a_join_prints_the_fingerprint_and_what_comes_next(command: Command, listener: EnrollServer) -> None:
    done = command.join(listener, token=f"  {TOKEN[:10]} {TOKEN[10:]}\n")
    assert (done.returncode, done.stderr) == (0, "")
    spki = IdentityStore(command.state).load().spki
    assert f"Key fingerprint (SPKI SHA-256): {in_groups(spki)}" in done.stdout
    assert "approve the node" in done.stdout
    assert listener.asked[0].body["token"] == TOKEN
    assert listener.asked[0].body["port"] == command.port
    assert listener.asked[0].body["machine"]["hostname"] == socket.gethostname()


def test_a_join_says_which_engines_can_run_here_and_of_the_others_why_not(
    command: Command, listener: EnrollServer
) -> None:
    command.configure(llama_server="/no/llama-server", docker_host=f"unix://{command.folder}/none.sock")
    done = command.join(listener)
    assert done.returncode == 0
    assert "Engines that can run here: sim (process)." in done.stdout
    assert "Not llama.cpp (process): /no/llama-server (llama_server in agent.json) does not exist" in done.stdout
    assert "Not vllm (process): vLLM is not configured on this node" in done.stdout
    assert "Not vllm (container), llama.cpp (container), sim (container): Docker is not running" in done.stdout
    assert "/no/llama-server" in done.stderr, "a path that leads nowhere is a warning, too"


def test_a_join_stores_the_fabrics_of_its_command(command: Command, listener: EnrollServer, tmp_path: Path) -> None:
    for name in ("mlx5_2", "mlx5_3"):
        (tmp_path / "sys/class/infiniband" / name).mkdir(parents=True)
    command.configure(sysfs_root=str(tmp_path / "sys"))
    done = command.join(listener, "--fabric", "ib-b")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Fabrics: ib-b:mlx5_2,mlx5_3" in done.stdout
    assert read_json(command.state / "fabrics.json") == {"fabrics": ["ib-b:mlx5_2,mlx5_3"]}
    assert "ib-b: mlx5_2, mlx5_3" in command.run("status").stdout
    assert json.loads(command.run("status", "--json").stdout)["fabrics"][0]["adapters"] == ["mlx5_2", "mlx5_3"]
    again = command.join(listener, "--fabric", "ib-a:mlx5_2")
    assert again.returncode == 0
    assert read_json(command.state / "fabrics.json") == {"fabrics": ["ib-a:mlx5_2"]}, "stated anew"
    command.configure(sysfs_root=str(tmp_path / "sys"), fabrics=["ib-c:mlx5_3"])
    refused = command.join(listener, "--fabric", "ib-b")
    assert (refused.returncode, "Change them there" in refused.stderr) == (2, True)


def test_a_join_that_was_done_says_so_and_changes_nothing(command: Command, listener: EnrollServer) -> None:
    command.join(listener)
    before = IdentityStore(command.state).current_name()
    for token in (TOKEN, None):
        again = command.join(listener, token=token)
        assert (again.returncode, again.stderr) == (0, "")
        assert "already node pc-1" in again.stdout
        assert "waits for approval" in again.stdout
    assert IdentityStore(command.state).current_name() == before
    assert len(listener.asked) == 1


def test_a_machine_in_use_is_told_how_to_join_another_master(
    command: Command, listener: EnrollServer, tmp_path: Path
) -> None:
    command.join(listener)
    write_json(command.state / "fence.json", {"nodeUid": UID, "epoch": 1, "instanceId": "master-one"})
    with enroll_server(Fleet(), tmp_path) as other:
        refused = command.join(other, token="id.other")
        assert other.asked == []
    assert refused.returncode == 1
    assert "already node pc-1" in refused.stderr
    assert "--rekey" in refused.stderr


def test_a_token_on_the_command_line_is_refused_and_not_repeated(command: Command, listener: EnrollServer) -> None:
    for given in ((f"--token={TOKEN}",), ("--token", TOKEN)):
        refused = command.join(listener, *given)
        assert refused.returncode == 2
        assert "MIRBAD_JOIN_TOKEN" in refused.stderr
        assert TOKEN not in refused.stderr + refused.stdout
    assert listener.connections == 0


def test_without_a_token_or_a_terminal_the_join_says_where_it_goes(command: Command, listener: EnrollServer) -> None:
    for token in (None, "  "):
        refused = command.join(listener, token=token)
        assert refused.returncode == 2
        assert "MIRBAD_JOIN_TOKEN" in refused.stderr


def test_a_failed_join_is_one_line_without_the_token(command: Command, listener: EnrollServer) -> None:
    listener.answers = [(403, {"code": "enrollment_refused", "detail": "no"}, {})]
    refused = command.join(listener)
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "Traceback" not in refused.stderr
    assert TOKEN not in refused.stderr + refused.stdout


def test_status_of_a_machine_that_has_not_joined(command: Command) -> None:
    assert json.loads(command.run("status", "--json").stdout)["joined"] is False
    words = command.run("status")
    assert (words.returncode, words.stderr) == (1, "")
    assert "Not joined" in words.stdout


def test_status_tells_identity_claim_and_whether_it_runs(joined: Command, fleet: Fleet) -> None:
    identity = IdentityStore(joined.state).load()
    facts = json.loads(joined.run("status", "--json").stdout)
    assert (facts["nodeId"], facts["nodeUid"], facts["spkiSha256"]) == ("pc-1", UID, identity.spki)
    assert (facts["serving"], facts["heldClaim"], facts["instances"]) == (False, None, [])
    joined.serve_until_listening()
    assert json.loads(joined.run("status", "--json").stdout)["serving"] is True
    words = joined.run("status").stdout
    assert in_groups(identity.spki) in words
    assert "running, port" in words


def test_the_agent_serves_and_ends_cleanly_when_asked(joined: Command, fleet: Fleet) -> None:
    process = joined.serve_until_listening()
    status, info = _ask(joined, fleet, "GET /agent/v1/info HTTP/1.1")
    assert (status, info["nodeId"]) == (200, "pc-1")
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 0, output
    assert time.monotonic() - started < 5
    lines = [json.loads(line) for line in output.splitlines()]
    assert any("listens" in line["message"] for line in lines)
    assert not any(line["level"] in {"error", "critical"} for line in lines), output
    assert all("traceback" not in line for line in lines)


def test_an_open_connection_does_not_hold_up_the_end(joined: Command, fleet: Fleet) -> None:
    process = joined.serve_until_listening()
    context: ssl.SSLContext = fleet.client_context(joined.folder, fleet.master)
    with (
        socket.create_connection(("127.0.0.1", joined.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=server_name()) as tls,
    ):
        tls.sendall(b"GET /agent/v1/info HTTP/1.1\r\nHost: agent\r\n\r\n")
        assert tls.recv(4096).startswith(b"HTTP/1.1 200")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=10)
    assert process.returncode == 0, output


def test_a_second_agent_on_the_same_state_is_refused(joined: Command) -> None:
    first = joined.serve_until_listening()
    joined.configure(port=free_port())
    second = joined.run("serve")
    assert second.returncode == 1
    assert f"process {first.pid}" in second.stderr
    assert first.poll() is None


def test_after_kill_9_the_next_agent_starts_at_once(joined: Command) -> None:
    first = joined.serve_until_listening()
    first.kill()
    first.wait()
    second = joined.serve_until_listening()
    assert second.poll() is None
    assert second.pid != first.pid


def test_a_port_in_use_is_one_line(joined: Command) -> None:
    with socket.create_server(("127.0.0.1", joined.port)):
        refused = joined.run("serve")
    assert refused.returncode == 1
    assert f"port {joined.port} is in use" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("verb", ["serve"])
def test_serve_without_an_identity_says_to_join(command: Command, verb: str) -> None:
    refused = command.run(verb)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "join" in refused.stderr
    assert not command.state.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "one JSON object"),
        ('{"prot": 1}', "prot"),
        ('{"port": 0}', "port"),
        ('{"log_level": "loud"}', "log_level"),
    ],
)
def test_a_bad_configuration_is_told_by_field(command: Command, text: str, words: str) -> None:
    command.config.write_text(text)
    refused = command.run("serve")
    assert refused.returncode == 2
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_configuration_that_is_named_must_exist(command: Command) -> None:
    command.config.unlink()
    assert command.run("status").returncode == 2


def test_a_broken_identity_or_fence_stops_the_start_in_words(joined: Command) -> None:
    (joined.state / "fence.json").write_text("{")
    refused = joined.run("serve")
    assert refused.returncode == 1
    assert "fence.json" in refused.stderr
    (joined.state / "fence.json").unlink()
    for key in joined.state.rglob("key.pem"):
        key.write_text("torn")
    refused = joined.run("serve")
    assert refused.returncode == 1
    assert "--rekey" in refused.stderr


def test_stop_all_of_a_running_agent_is_refused_and_of_an_idle_one_finds_nothing(joined: Command) -> None:
    idle = joined.run("stop-all")
    assert (idle.returncode, idle.stdout.strip()) == (0, "No engine was running.")
    joined.serve_until_listening()
    refused = joined.run("stop-all")
    assert refused.returncode == 1
    assert "is still running" in refused.stderr


def test_stop_all_before_a_join_has_nothing_to_do(command: Command) -> None:
    assert command.run("stop-all").returncode == 0


def _notified(channel: socket.socket, word: str) -> str:
    while True:
        text = channel.recv(4096).decode()
        if word in text:
            return text


def test_systemd_is_told_ready_alive_and_stopping(joined: Command, tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(path))
        channel.settimeout(20)
        process = joined.serve_until_listening(NOTIFY_SOCKET=str(path), WATCHDOG_USEC="200000")
        assert "node pc-1" in _notified(channel, "READY=1")
        _notified(channel, "WATCHDOG=1")
        _notified(channel, "WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        _notified(channel, "STOPPING=1")
    process.communicate(timeout=10)


def test_a_rekey_is_taken_up_by_the_running_agent(command: Command, listener: EnrollServer, fleet: Fleet) -> None:
    command.join(listener)
    command.serve_until_listening()
    before = _ask(command, fleet, "GET /agent/v1/info HTTP/1.1")[1]["spkiSha256"]
    assert command.join(listener, "--rekey", token="id.rekey").returncode == 0
    expected = IdentityStore(command.state).load().spki

    def shown() -> str:
        # a request may be under way when the agent ends the connections of the old identity
        with contextlib.suppress(OSError, ValueError):
            return str(_ask(command, fleet, "GET /agent/v1/info HTTP/1.1")[1]["spkiSha256"])
        return before

    until(lambda: shown() != before, "the agent to show its new key", 10)
    assert shown() == expected


@pytest.mark.parametrize("arguments", [(), ("fly",), ("serve", "--fast"), ("join",), ("stop-all", "--grace", "soon")])
def test_a_wrong_command_line_exits_2(command: Command, arguments: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-m", "agent", *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "usage:" in done.stderr
