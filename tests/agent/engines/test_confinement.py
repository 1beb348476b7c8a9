"""The reach of an engine that runs as a process, tried from inside one, for each kind of agent."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.deliveries import confine
from agent.wire.instances import InstanceState
from tests.agent.engines.conftest import Node, spec

# Without Landlock nothing here can hold: the node says so, which `test_confinement_means` tests on every kernel.
pytestmark = pytest.mark.skipif(not confine.landlock_version(), reason="needs a kernel with Landlock")
IS_ROOT = os.geteuid() == 0
ROOT = Path(__file__).parents[3]
USER, DOCKER_GROUP = 61_234, 61_235
AGENTS: dict[str, tuple[str, ...]] = {
    "root": (),
    "a user in Docker's group": ("--reuid", str(USER), "--regid", str(USER), "--groups", str(DOCKER_GROUP)),
    "the installed unit": (
        *("--reuid", str(USER), "--regid", str(USER), "--groups", str(DOCKER_GROUP)),
        *("--inh-caps", "+setgid", "--ambient-caps", "+setgid", "--bounding-set", "-all,+setgid"),
    ),
    "root without capabilities": ("--bounding-set", "-all", "--inh-caps", "-all"),
}
if not IS_ROOT:
    AGENTS = {"this user": ()}  # only root can be each kind of agent


def everybodys_python() -> str:
    """Return a Python of this version that another user may run; the virtual environment may be root's alone."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for found in (sys.executable, f"/usr/local/bin/{name}", f"/usr/bin/{name}"):
        tried = ["setpriv", "--reuid", str(USER), "--clear-groups", found, "-c", "import encodings"]
        if subprocess.run(tried, capture_output=True, check=False).returncode == 0 and not Path(found).is_symlink():
            return found
    pytest.skip(f"needs {name} outside of root's folders")


@dataclass
class Machine:
    """The files and sockets of a machine with an agent."""

    folder: Path
    asked: dict[str, Any]

    @property
    def docker(self) -> Path:
        return self.folder / "docker.sock"

    def run(self, agent: str) -> dict[str, Any]:
        """Start an engine as `agent` would, and return what it found."""
        script = Path(__file__).with_name("confined_agent.py")
        owner = USER if "--reuid" in AGENTS[agent] else 0
        for path in (
            path for name in ("state", "weights") for path in (self.folder / name, *self.folder.glob(f"{name}/**/*"))
        ):
            if IS_ROOT:
                os.chown(path, owner, owner)
        python = everybodys_python() if owner else sys.executable
        command = [*(("setpriv", *AGENTS[agent]) if AGENTS[agent] else ()), python, str(script)]
        words = (self.folder / "state", self.folder / "weights", json.dumps(self.asked), self.docker)
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        done = subprocess.run(
            [*command, *map(str, words)],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{packages}", "A_SECRET": "canary"}, cwd=ROOT,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        found: dict[str, Any] = json.loads(answer["log"].strip().splitlines()[-1])
        return found | {"problems": answer["problems"]}


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    # Below /var, so that another user gets there: the folders of pytest belong to root alone.
    folder = Path(tempfile.mkdtemp(prefix="engine-", dir="/var/tmp"))
    folder.chmod(0o755)
    secret = ("identity/current/key.pem", "fence.json", "secrets.json", "instances/other.json", "instances/other.log")
    paths = [folder / "state" / name for name in secret]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("secret")
    (folder / "other-model").mkdir()
    (folder / "other-model" / "w.gguf").write_text("x")
    (folder / "weights").mkdir()
    (folder / "weights" / "w.gguf").write_text("x")
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    listeners = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))]
    listeners[0].bind(str(folder / "docker.sock"))
    if IS_ROOT:
        os.chown(folder / "docker.sock", 0, DOCKER_GROUP)
    (folder / "docker.sock").chmod(0o660)
    listeners[1].bind(f"\0{folder.name}")
    for listener in listeners:
        listener.listen(64)
    yield Machine(
        folder,
        {
            "read": [*map(str, paths), str(folder / "other-model" / "w.gguf"), "/etc/shadow", "/root/.profile"],
            "list": [str(folder / "state"), str(folder), "/root", "/home", "/var/lib", "/tmp", "/run"],
            "write": [str(folder / "state"), str(folder / "weights"), "/etc", "/tmp", "/var/tmp", "/usr/local", "/dev"],
            "sockets": [str(folder / "docker.sock")],
            "abstract": folder.name,
            "port": listeners[2].getsockname()[1],
            "weights": str(folder / "weights" / "w.gguf"),
            "shared": f"/dev/shm/{folder.name}",
        },
    )
    for listener in listeners:
        listener.close()
    Path(f"/dev/shm/{folder.name}").unlink(missing_ok=True)
    shutil.rmtree(folder)


@pytest.mark.parametrize("agent", AGENTS)
def test_an_engine_reaches_its_own_files_and_nothing_of_the_machine(machine: Machine, agent: str) -> None:
    found = machine.run(agent)
    # Root without any capability can neither change its groups nor hide a socket: the node says so.
    left = {f"socket {machine.docker}"} if agent == "root without capabilities" else set()
    assert {name for name, result in found["tried"].items() if result == "done"} == left
    assert [str(machine.docker) in problem for problem in found["problems"]] == [True] * len(left)
    assert found["own"] == dict.fromkeys(found["own"], "done")
    assert found["status"]["NoNewPrivs"] == "1"
    assert int(found["status"]["CapEff"], 16) & ~(1 << 2) == 0, "at most reading what the lists allow"
    assert DOCKER_GROUP not in found["groups"]
    assert "A_SECRET" not in found["environment"]
    assert {"HOME", "PATH", "TMPDIR", "LANG"} <= set(found["environment"])


@pytest.mark.parametrize("agent", ["root", "the installed unit"] if IS_ROOT else ["this user"])
def test_a_socket_that_everybody_may_use_is_hidden(machine: Machine, agent: str) -> None:
    machine.docker.chmod(0o666)
    found = machine.run(agent)
    assert found["tried"][f"socket {machine.docker}"] != "done"
    assert found["problems"] == []


async def test_the_simulated_engine_runs_as_nobody_of_this_machine(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec())
    view = await node.until("i1", InstanceState.READY)
    process = psutil.Process(view.pid)
    text = await asyncio.to_thread(Path(f"/proc/{view.pid}/status").read_text)
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert (process.uids().effective == os.getuid()) is not IS_ROOT, "of another user where the agent may change it"
    assert process.uids().effective != 0
    assert (status["NoNewPrivs"], int(status["CapEff"], 16) & ~(1 << 2)) == ("1", 0)
    assert "PYTHONPATH" not in process.environ()
    assert process.cmdline()[1] == "-I"
    assert process.cwd().startswith(str(node.config.state_dir / "engines"))
