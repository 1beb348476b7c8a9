"""A complete master for tests: `python -m mirbad.up` on free ports in a folder of its own, seen from outside.

Everything goes through the doors that people use: the terminal's lines, ``/api`` with an admin token, ``/v1`` with a
key, signals. On a failure the logs of all processes are printed.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from mirbad.up.supervisor import Control, NotResponding, ProcessState
from tests.bench.services import free_port
from tests.waiting import until, until_no

ROOT = Path(__file__).resolve().parents[2]
LAST_LINE = "Stop with Ctrl-C."


class Failed(AssertionError):
    """Something did not happen in time; the text holds what was seen."""


class Fleet:
    """One master with its own node. `start` returns when all is up; `stop` is a Ctrl-C."""

    def __init__(self, folder: Path, *, starter: str = "none", **settings: str) -> None:
        self.folder = folder
        self.host = "127.0.0.1"
        self.data = folder / "data"
        self.ports = {name: free_port() for name in ("MIRBAD_PORT", "MIRBAD_ENROLL_PORT", "MIRBAD_AGENT_PORT")}
        own = {name: text for name, text in os.environ.items() if not name.startswith("MIRBAD_")}
        own.pop("DATABASE_URL", None)
        own.pop("DJANGO_SETTINGS_MODULE", None)
        self.environ = {
            **own,
            **{name: str(port) for name, port in self.ports.items()},
            "MIRBAD_DATA": str(self.data),
            "MIRBAD_STARTER_MODEL": starter,
            **settings,
        }
        self.up: subprocess.Popen[str] | None = None
        self.lines: list[str] = []
        self._reader: threading.Thread | None = None
        self._token = ""

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self, *, until: str = LAST_LINE, seconds: float = 200) -> "Fleet":
        """Start it and wait for a line of its output. Failed with that output otherwise."""
        self.lines = []
        self.up = subprocess.Popen(
            [sys.executable, "-m", "mirbad.up"],
            cwd=ROOT,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self.up,), daemon=True)
        self._reader.start()
        self.wait_for_line(until, seconds)
        return self

    def _read(self, up: "subprocess.Popen[str]") -> None:
        assert up.stdout is not None
        with up.stdout:
            for line in up.stdout:
                self.lines.append(line.rstrip("\n"))

    def wait_for_line(self, words: str, seconds: float = 60) -> str:
        """The first line that holds `words`."""

        def found() -> str | None:
            return next((line for line in self.lines if words in line), None)

        def is_over() -> bool:
            return found() is not None or (self.up is not None and self.up.poll() is not None)

        with contextlib.suppress(AssertionError):
            until(is_over, f"a line with {words!r}", seconds)
        if (line := found()) is not None:
            return line
        raise Failed(f"no line with {words!r}:\n" + "\n".join(self.lines) + self.logs())

    def stop(self, number: int = signal.SIGINT, seconds: float = 60) -> int:
        """Ask it to stop, as a terminal does; the exit code."""
        assert self.up is not None
        if self.up.poll() is None:
            self.up.send_signal(number)
        try:
            code = self.up.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed("it did not stop:\n" + "\n".join(self.lines) + self.logs()) from None
        assert self._reader is not None
        self._reader.join(10)
        return code

    def kill(self) -> None:
        """``kill -9`` of `make up` itself."""
        assert self.up is not None
        self.up.kill()
        self.up.wait()
        assert self._reader is not None
        self._reader.join(10)

    def close(self) -> None:
        """End everything, whatever state it is in."""
        if self.up is not None and self.up.poll() is None:
            with suppress(Failed):
                self.stop(seconds=40)
            if self.up.poll() is None:
                self.kill()
        for process in self.leftovers():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    # -- what is there -------------------------------------------------------------------------------------------------

    def leftovers(self) -> list[psutil.Process]:
        """Every process of this fleet, found by its folder in command line or environment."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            words = [*process.cmdline(), process.environ().get("MIRBAD_DATA", "")]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False
        return any(str(self.data) in word for word in words)

    def control(self) -> Control:
        """supervisord's socket."""
        return Control(
            Path(json.loads((self.data / "run" / "up.json").read_text())["runtime_dir"]) / "supervisord.sock"
        )

    def processes(self) -> dict[str, ProcessState]:
        """Return the states of the processes under supervisord."""
        with self.control() as control:
            return control.states()

    def pid(self, name: str) -> int:
        """The process id of a running process."""

        def look() -> int | None:
            with suppress(NotResponding):
                return self.processes()[name].pid
            return None

        return until(look, seconds=30, what=f"{name} to run")

    def engines(self, model: str) -> set[int]:
        """Process ids of the engines of `model` that run now."""
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                words = process.cmdline()
                is_engine = any(word.endswith(("sim_engine.py", "llama_runner.py")) for word in words)
                # an engine works in the state folder of its agent: ours, or that of an installed one
                if is_engine and model in words and process.cwd().startswith((str(self.data), "/var/lib/mirbad-agent")):
                    found.add(process.pid)
        return found

    def logs(self, lines: int = 25) -> str:
        """The end of every process's output."""
        parts = []
        for path in sorted(self.data.glob("logs/*.out")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"\n--- {path.name}\n" + "\n".join(tail))
        return "".join(parts)

    # -- doors ---------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The address of the pages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.ports['MIRBAD_PORT']}"

    @property
    def key(self) -> str:
        """The first API key."""
        return (self.data / "secrets" / "api-key").read_text().strip()

    def manage(self, *arguments: str, check: bool = True, **more: Any) -> "subprocess.CompletedProcess[str]":
        """Run ``manage.py``."""
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self.environ, capture_output=True, text=True, check=False, timeout=60, **more
        )
        if check and done.returncode:
            raise Failed(f"{arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def inside(self, code: str) -> Any:
        """Run Python inside the master's settings; the JSON value that it prints."""
        return json.loads(self.manage("shell", "--no-imports", "-c", code).stdout)

    @property
    def token(self) -> str:
        """An owner's admin API token."""
        if not self._token:
            self._token = self.inside(
                "import json; from mirbad.accounts import tokens; from mirbad.kernel.actor import CONFIG;"
                "print(json.dumps(tokens.create('test', 'owner', actor=CONFIG)[1]))"
            )
        return self._token

    def request(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None, seconds: float = 30
    ) -> tuple[int, dict[str, str], bytes]:
        """One request; status, headers (lower case), body."""
        connection = http.client.HTTPConnection(self.host, self.ports["MIRBAD_PORT"], timeout=seconds)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **(headers or {})} if data is not None else dict(headers or {})
        try:
            connection.request(method, path, data, given)
            answer = connection.getresponse()
            return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def request_is_ready(self) -> bool:
        """Return whether ``/readyz`` answers 200."""
        try:
            return self.request("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def api(self, method: str, path: str, body: Any = None, *, expect: int | None = None) -> Any:
        """One call of ``/api`` as an owner; its JSON. Failed on another status than `expect` (any 2xx if None)."""
        status, _, data = self.request(method, f"/api/{path}", body, headers={"Authorization": f"Bearer {self.token}"})
        if (expect is None and not 200 <= status < 300) or (expect is not None and status != expect):
            raise Failed(f"{method} /api/{path}: {status} {data.decode(errors='replace')}{self.logs()}")
        return json.loads(data) if data else None

    def chat(self, model: str, *, key: str | None = None, tokens: int = 8) -> list[str]:
        """The words of one streamed answer. Failed when it is refused or does not end as it should."""
        body = {
            "model": model, "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": "Hi"}]
        }  # fmt: skip
        status, _, data = self.request(
            "POST", "/v1/chat/completions", body, headers={"Authorization": f"Bearer {key or self.key}"}
        )
        if status != 200:
            said = "\n".join(self.lines)
            raise Failed(f"/v1: {status} {data.decode(errors='replace')}\n{said}{self.logs()}")
        events = [line.removeprefix(b"data: ") for line in data.splitlines() if line.startswith(b"data: ")]
        assert events[-1] == b"[DONE]", data
        deltas = (json.loads(event)["choices"] for event in events[:-1])
        return [text for choices in deltas for choice in choices if (text := choice["delta"].get("content"))]

    # -- shortcuts -----------------------------------------------------------------------------------------------------

    def define_sim(self, model: str, node: str = "local", *args: str) -> None:
        """A simulated model placed on a node."""
        self.api(
            "POST",
            "models",
            {"id": model, "runtime": "sim", "delivery": "process", "args": list(args), "placement": {"nodeId": node}},
        )

    def observed(self, model: str) -> str:
        """Return the observed state of the model's one placement."""
        code = (
            "import json; from models_app.models import Placement;"
            f"print(json.dumps(Placement.objects.get(model_id={model!r}).observed))"
        )
        return str(self.inside(code))

    def wait_for_answer(self, model: str, seconds: float = 60) -> list[str]:
        """Ask `model` until it answers."""
        return until_no((Failed, OSError, http.client.HTTPException), lambda: self.chat(model), seconds, every=0.2)


class EngineWatch:
    """Sees every engine of a model that ever runs, by looking many times a second."""

    def __init__(self, fleet: Fleet, model: str) -> None:
        self._fleet, self._model = fleet, model
        self.seen: set[int] = set()
        self.most_at_once = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            now = self._fleet.engines(self._model)
            self.seen |= now
            self.most_at_once = max(self.most_at_once, len(now))


def first_number(pattern: str, lines: list[str]) -> float:
    """The number that `pattern` captures in the first line that matches."""
    for line in lines:
        if found := re.search(pattern, line):
            return float(found[1])
    raise Failed(f"no line matches {pattern!r}:\n" + "\n".join(lines))


def fleets(folder: Path) -> Iterator[Callable[..., Fleet]]:
    """For fixtures: a maker of fleets that are closed at the end."""
    made: list[Fleet] = []

    def make(**settings: str) -> Fleet:
        fleet = Fleet(folder / f"fleet-{len(made)}", **settings)
        made.append(fleet)
        return fleet

    yield make
    for fleet in made:
        fleet.close()
