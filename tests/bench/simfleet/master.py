"""A master's processes beside a simulated fleet, each started and ended on its own and measured from outside."""

import http.client
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench.services import free_port
from tests.bench.simfleet.plan import Member, read, write
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
_TICKS = os.sysconf("SC_CLK_TCK")


class Failed(AssertionError):
    """Something did not come to pass."""


class Process:
    """One process with its output in a file."""

    def __init__(self, name: str, command: Sequence[str], environ: dict[str, str], folder: Path) -> None:
        self.out = folder / f"{name}.out"
        with self.out.open("ab") as out:
            self._process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=out, stderr=out)
        self.pid = self._process.pid

    @property
    def cpu_seconds(self) -> float:
        """CPU time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def memory_mib(self) -> float:
        """Proportional set size."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
        raise Failed("the kernel tells no memory")

    def said(self) -> str:
        """All of its output."""
        return self.out.read_text(errors="replace")

    def running(self) -> bool:
        """Return whether the process is alive."""
        return self._process.poll() is None

    def send(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def end(self, number: int = signal.SIGTERM, seconds: float = 30) -> None:
        """End it: by a signal, then by force."""
        if self.running():
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)
                self._process.send_signal(number)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class SimMaster:
    """Data folder, settings and processes of one master; agents in processes of their own.

    `folder` should lie on a real disk: it holds the database.
    """

    def __init__(self, folder: Path, *, database_url: str = "", redis_url: str = "", **settings: str) -> None:
        self.folder, self.database_url = folder, database_url
        self.data = folder / "data"
        (self.data / "static").mkdir(parents=True)
        self.port, self.enroll_port = free_port(), free_port()
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("MIRBAD_", "DJANGO_"))}
        self.environ = {
            **kept,
            "DJANGO_SETTINGS_MODULE": "mirbad.settings",
            "DATABASE_URL": database_url,
            "MIRBAD_REDIS_URL": redis_url,
            "MIRBAD_DATA": str(self.data),
            "MIRBAD_SECRET_KEY": "a secret of a fleet that is not there",
            "MIRBAD_PORT": str(self.port),
            "MIRBAD_ENROLL_PORT": str(self.enroll_port),
            "MIRBAD_BIND": "127.0.0.1",
            **settings,
        }
        self.token = ""
        self.members: tuple[Member, ...] = ()
        self._processes: list[Process] = []

    def make(self, count: int, models: int, agents: Path) -> None:
        """Make rows and identities for `count` agents; their state goes to `agents`."""
        self.token = self.python("-m", "tests.bench.simfleet.rows", str(count), str(models), str(agents))["token"]
        self.members = read(agents / "plan.json")

    def python(self, *arguments: str) -> Any:
        """Run a module in this master's settings; the JSON in the last line of its output."""
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=self.environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(done.stdout + done.stderr)
        return json.loads(done.stdout.strip().splitlines()[-1])

    def inside(self, code: str) -> Any:
        """Run lines of Python inside the master, Django being set up; they print JSON."""
        return self.python("-c", f"import json, django; django.setup()\n{code}")

    def start(self, name: str, *command: str, **settings: str) -> Process:
        """Start a process; `command` goes to Python, `settings` are its own."""
        process = Process(name, [sys.executable, *command], {**self.environ, **settings}, self.folder)
        self._processes.append(process)
        return process

    def watcher(self) -> Process:
        """The watcher."""
        return self.start("watcher", "manage.py", "watch")

    def web(self, *, wait: bool = True) -> Process:
        """The web process; returns when it answers, or at once."""
        process = self.start(
            "web", "-m", "uvicorn", "mirbad.asgi:application", "--host", "127.0.0.1", "--port", str(self.port),
            "--lifespan", "on", "--no-access-log",
        )  # fmt: skip
        if wait:
            until(lambda: self.answers(process), "an answer of the web process", 60)
        return process

    def answers(self, process: Process) -> bool:
        """Return whether the web process answers. Raises Failed when it ended."""
        if not process.running():
            raise Failed(process.said())
        try:
            return self.get("/healthz")[0] == 200
        except OSError:
            return False

    def agents(self, plans: Mapping[str, Sequence[Member]]) -> dict[str, Process]:
        """Serve the members of each plan in a process of its name; returns when all of them listen."""
        processes = {}
        for name, members in plans.items():
            plan = self.folder / f"{name}.json"
            write(plan, members)
            processes[name] = self.start(name, "-m", "tests.bench.simfleet.agents", str(plan))

        def ready(name: str) -> bool:
            if not processes[name].running():
                raise Failed(processes[name].said())
            return "ready" in processes[name].said().splitlines()

        for name in plans:
            until(lambda name=name: ready(name), f"{name} ready", 120)
        return processes

    def get(self, path: str) -> tuple[int, bytes]:
        """An authenticated GET."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def api(self, path: str) -> Any:
        """The JSON at ``/api/`` + `path`."""
        status, body = self.get(f"/api/{path}")
        if status != 200:
            raise Failed(f"{path}: {status} {body[:500]!r}")
        return json.loads(body)

    def writes(self) -> int:
        """Return the count of the database's write transactions; only differences mean something."""
        if self.database_url:
            return int(
                self.inside(
                    "from django.db import connection\nwith connection.cursor() as c:\n"
                    '    c.execute("SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables")\n'
                    "    print(json.dumps(int(c.fetchone()[0])))"
                )
            )
        # The header of SQLite's wal-index counts transactions (the format's iChange).
        with (self.data / "mirbad.sqlite3-shm").open("rb") as file:
            return int(struct.unpack_from("<I", file.read(48), 8)[0])

    def logs(self) -> str:
        """Return the output of all processes, and their log files."""
        files = [*self.folder.glob("*.out"), *(self.data / "logs").glob("*.log*")]
        return "\n".join(path.read_text(errors="replace") for path in files)

    def close(self) -> None:
        """End everything."""
        for process in self._processes:
            process.end()
