"""The web process as `make up` starts it, on a data folder of its own, and what floods do to its health and memory."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests.bench.services import free_port
from tests.figures.figure import Figure
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 1024 * 1024
GOAL_MS, GOAL_MIB = 50.0, 400.0
_NEVER = threading.Event()
_PROBE = (sys.executable, "-m", "tests.bench.healthz")


class _Watched:
    """A server whose `/healthz` is asked all the time, by a process of its own."""

    def __init__(self, stack: contextlib.ExitStack, *arguments: object) -> None:
        command = [*_PROBE, *map(str, arguments)]
        self._probe = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(self._probe.wait)
        stack.callback(self._probe.kill)

    def look(self) -> dict[str, float]:
        """Return the worst response since the last look, in milliseconds, and its parts."""
        assert self._probe.stdin is not None
        assert self._probe.stdout is not None
        self._probe.stdin.write("\n")
        self._probe.stdin.flush()
        found: dict[str, float] = json.loads(self._probe.stdout.readline())
        return found


class Web:
    """One web process with a key for `/v1`. Ends with `stack`."""

    def __init__(self, stack: contextlib.ExitStack, **settings: str) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mirbad-figure-")))
        (folder / "static").mkdir()
        self.port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRBAD_", "DATABASE_"))}
        own = {"MIRBAD_DATA": str(folder), "MIRBAD_SECRET_KEY": "x" * 64, "MIRBAD_PORT": str(self.port)}
        self._environ = {**kept, **own, **settings}
        self.manage("migrate", "--verbosity", "0")
        found = re.search(r"ssk_\S+", self.manage("api-key", "create", "floods"))
        assert found is not None
        self.key = found.group()
        self._start(stack, folder)

    def _start(self, stack: contextlib.ExitStack, folder: Path) -> None:
        from mirbad.kernel.conf import read_settings
        from mirbad.up.programs import Layout, web

        given = {name: text for name, text in self._environ.items() if name.startswith("MIRBAD_")}
        command = web(Layout(read_settings(given), folder))
        output = stack.enter_context((folder / "web.out").open("wb"))
        process = subprocess.Popen(command, cwd=ROOT, env=self._environ, stdout=output, stderr=output)
        stack.callback(process.wait)
        stack.callback(process.kill)
        self.process = psutil.Process(process.pid)
        until(lambda: self.status(b"{}", self.key) == 400, "the key to work", 60)
        self._probe = _Watched(stack, self.port, process.pid)
        simplest = subprocess.Popen([*_PROBE, "serve"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        stack.callback(simplest.wait)
        stack.callback(simplest.kill)
        assert simplest.stdout is not None
        self._control = _Watched(stack, simplest.stdout.readline().strip())
        _NEVER.wait(2)
        self.look()

    def manage(self, *arguments: str) -> str:
        """Run ``manage.py`` with the settings of this process; return its output."""
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self._environ, check=True, capture_output=True, text=True)
        return done.stdout

    def look(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the worst response since the last look of this server, and of one that does nothing else."""
        return self._probe.look(), self._control.look()

    def status(self, body: bytes, key: str, kind: str = "application/json", path: str = "/v1/chat/completions") -> int:
        """Return the status of one post, 0 if the connection breaks."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", path, body, {"Content-Type": kind, "Authorization": f"Bearer {key}"})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def memory(self) -> float:
        """Return the resident memory in MiB."""
        return float(self.process.memory_info().rss) / MEGABYTE

    def cpu(self) -> float:
        """Return the seconds of CPU used so far."""
        return float(sum(self.process.cpu_times()[:2]))


def during(web: Web, name: str, flood: Callable[[], object]) -> Iterator[Figure]:
    """Yield the worst `/healthz` while `flood` runs, and the most memory beyond that before it."""
    web.look()
    before = most = web.memory()
    spent = web.cpu()
    over = threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.02):
            most = max(most, web.memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    flood()
    over.set()
    watcher.join()
    worst, control = web.look()
    spent = web.cpu() - spent
    rest = max(worst["worst"] - worst["ran"] - worst["waited"] - worst["client"], 0.0)
    value = (
        f"{worst['worst']:.0f} ms (ran {worst['ran']:.0f}; waited for a CPU {worst['waited'] + worst['client']:.0f};"
        f" other {rest:.0f}; median {worst['median']:.1f}; simplest server {control['worst']:.0f}; CPU {spent:.1f} s)"
    )
    yield Figure(f"{name}: worst /healthz", value, f"under {GOAL_MS:.0f} ms", worst["worst"] < GOAL_MS)
    value = f"{before:.0f} → {most:.0f} MiB"
    yield Figure(f"{name}: memory", value, f"under {GOAL_MIB:.0f} MiB more", most - before < GOAL_MIB)
