"""The answer to each bad input."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.e2e.fleet import ROOT, Fleet
from tests.figures.figure import Figure, exactly
from tests.waiting import until

_BIG = 200 * 1024 * 1024


def measure() -> Iterator[Figure]:
    """One line an input: its status and code."""
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        fleet = Fleet(Path(folder), MIRBAD_ENROLL_RATE_PER_MINUTE="100")
        try:
            fleet.start()
            yield from _log_in(fleet)
            yield from _tokens(fleet, Path(folder))
            yield from _v1(fleet)
            yield from _models(fleet)
            yield _port(Path(folder))
        finally:
            fleet.close()


def _log_in(fleet: Fleet) -> Iterator[Figure]:
    status, headers, body = fleet.request("GET", "/login")
    cookie = re.search(r"csrftoken=(\w+)", headers.get("set-cookie", ""))
    token = re.search(rb'name="csrfmiddlewaretoken" value="(\w+)"', body)
    assert status == 200
    assert cookie is not None
    assert token is not None
    statuses = []
    for _ in range(6):
        form = f"csrfmiddlewaretoken={token[1].decode()}&username=admin&password=wrong".encode()
        headers = {"Cookie": f"csrftoken={cookie[1]}", "Content-Type": "application/x-www-form-urlencoded"}
        statuses.append(fleet.request("POST", "/login", form, headers={**headers, "Origin": fleet.url})[0])
    yield exactly("wrong password, five times and once more", " ".join(map(str, statuses)), "403 403 403 403 403 429")


def _join(fleet: Fleet, folder: Path, node: str, token: str, ca_hash: str) -> str:
    """Run the agent's join; return the last line of its output."""
    state = folder / f"join-{node}"
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "agent",
                "join",
                "--node-id",
                node,
                "--ca-hash",
                ca_hash,
                "--state-dir",
                str(state),
            ),
            *("--enroll-url", f"https://127.0.0.1:{fleet.ports['MIRBAD_ENROLL_PORT']}", "--address", "10.1.2.3"),
        ],
        cwd=ROOT,
        env={**os.environ, "MIRBAD_JOIN_TOKEN": token},
        capture_output=True,
        text=True,
        check=False,
    )
    said = (done.stdout + done.stderr).strip().splitlines()
    return "joined" if done.returncode == 0 else said[-1]


def _refusal(name: str, said: str) -> Figure:
    refused = "refused the enrollment. The token may be" in said
    value = "refused with the one sentence for all reasons" if refused else said
    return Figure(name, value.replace(", ", "; "), "refused", refused)


def _tokens(fleet: Fleet, folder: Path) -> Iterator[Figure]:
    def make(node: str) -> Any:
        return fleet.api("POST", "nodes/join-tokens", {"nodeId": node}, expect=201)

    made = make("pc-expired")
    fleet.inside(
        "import json; from nodes.models import JoinToken; from mirbad.kernel import clock;"
        "from datetime import timedelta;"
        "JoinToken.objects.filter(node_id_text='pc-expired').update("
        f"expires_at=clock.now() - timedelta(seconds={timedelta(seconds=1).seconds})); print(json.dumps(None))"
    )
    yield _refusal("expired token", _join(fleet, folder, "pc-expired", made["token"], made["caHash"]))
    made = make("pc-used")
    assert _join(fleet, folder, "pc-used", made["token"], made["caHash"]) == "joined"
    (folder / "join-pc-used").rename(folder / "moved")
    yield _refusal("used token with another key", _join(fleet, folder, "pc-used", made["token"], made["caHash"]))
    made = make("pc-name")
    yield _refusal("token and CSR of another name", _join(fleet, folder, "pc-other", made["token"], made["caHash"]))
    yield _refusal("wrong token", _join(fleet, folder, "pc-name", "0" * 16 + "." + "A" * 43, made["caHash"]))


def _v1(fleet: Fleet) -> Iterator[Figure]:
    headers = {"Authorization": f"Bearer {fleet.key}"}

    def ask(body: Any, given: dict[str, str] | None = None) -> str:
        status, _, data = fleet.request(
            "POST", "/v1/chat/completions", body, headers=headers if given is None else given, seconds=60
        )
        return f"{status} {json.loads(data)['error']['code']}"

    message = {"messages": [{"role": "user", "content": "Hi"}]}
    yield exactly("no key on /v1", ask({"model": "x", **message}, {}), "401 invalid_api_key")
    yield exactly("invalid JSON on /v1", ask(b'{"model": '), "400 invalid_json")
    yield exactly("an unknown model on /v1", ask({"model": "nobody", **message}), "404 model_not_found")
    yield exactly("a body of 200 MB on /v1", _stream_large(fleet, headers), "413 payload_too_large")


def _stream_large(fleet: Fleet, headers: dict[str, str]) -> str:
    """Announce and send 200 MB as a client does that reads the answer only when it must."""
    with socket.create_connection(("127.0.0.1", fleet.ports["MIRBAD_PORT"]), timeout=60) as connection:
        head = [f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {_BIG}\r\n"]
        head += [f"{name}: {text}\r\n" for name, text in headers.items()]
        connection.sendall("".join([*head, "\r\n"]).encode())
        sent = 0
        try:
            while sent < _BIG:
                connection.sendall(b" " * 1024 * 1024)
                sent += 1024 * 1024
        except OSError:
            pass  # the answer came first, and the door was closed
        answer = b""
        try:
            while chunk := connection.recv(65536):
                answer += chunk
        except OSError:
            pass
    status = answer.split(b" ", 2)[1].decode() if answer.startswith(b"HTTP/") else "connection closed"
    code = re.search(rb'"code":\s*"(\w+)"', answer)
    return f"{status} {code[1].decode() if code else ''}".strip()


def _models(fleet: Fleet) -> Iterator[Figure]:
    bad = {"id": "a/b", "runtime": "sim", "delivery": "process", "placement": {"nodeId": "local"}}
    status, _, data = fleet.request("POST", "/api/models", bad, headers={"Authorization": f"Bearer {fleet.token}"})
    problem = json.loads(data)
    yield exactly(
        "a model id with a slash",
        f"{status} {problem['code']} {problem['problems'][0]['code']}",
        "400 invalid_request id_invalid",
    )
    fleet.api("POST", "models", {**bad, "id": "slashed", "servedNames": ["org/name"]})
    fleet.api("POST", "models/slashed/start")
    fleet.wait_for_answer("org/name")
    yield exactly("a served name with a slash", "answers" if fleet.chat("org/name") else "empty", "answers")
    fleet.define_sim("dying", "local", "--die-at-start", "CUDA is not amused")
    asked = fleet.api("POST", "models/dying/start")
    done = until(
        lambda: (row := fleet.api("GET", f"operations/{asked['id']}"))["outcome"] != "open" and row,
        seconds=60,
        what="the failure",
    )
    words = "its last words are shown" if "CUDA is not amused" in json.dumps(done) else "its last words are lost"
    yield exactly(
        "an engine that dies at start",
        f"{done['outcome']} {done['error']['code']}; {words}",
        "failed engine_exited; its last words are shown",
    )


def _port(folder: Path) -> Figure:
    other = Fleet(folder / "other")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", other.ports["MIRBAD_PORT"]))
        holder.listen()
        done = subprocess.run(
            [sys.executable, "-m", "mirbad.up"],
            cwd=ROOT,
            env=other.environ,
            capture_output=True,
            text=True,
            check=False,
        )
    named = "set MIRBAD_PORT" in done.stderr and len(done.stderr.splitlines()) == 1
    words = "one line that names the setting" if named else done.stderr.replace(", ", "; ")
    return exactly("a port in use", f"exit {done.returncode}; {words}", "exit 1; one line that names the setting")
