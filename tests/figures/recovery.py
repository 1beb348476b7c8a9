"""A lost master of three nodes that serve, recovered on PostgreSQL; and installations that are killed at any moment.

``MIRBAD_FIGURE_KILLS`` (50) is how many installations are killed.
"""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.bench import services
from tests.e2e.fleet import ROOT
from tests.e2e.host import Host
from tests.e2e.recovery_browser import PASSPHRASE
from tests.e2e.recovery_drill import RecoveryDrill
from tests.figures import recovery_files
from tests.figures.figure import Figure, exactly, under

_NODES = 3
_MODELS = 300
_GOAL_SECONDS = 60.0


def measure() -> Iterator[Figure]:
    """The drill, then the kills, then imports."""
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        yield from _drill(Path(folder))
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        yield _kills(Path(folder), "SQLite")
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder, services.postgres() as server:
        yield _kills(Path(folder), "PostgreSQL", server)
    yield from recovery_files.measure()


def _drill(folder: Path) -> Iterator[Figure]:
    wheels = folder / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--require-hashes"]
    subprocess.run([*pip, "-r", ROOT / "requirements" / "agent.txt", "-d", wheels], check=True, capture_output=True)
    with contextlib.ExitStack() as stack:
        hosts = []
        for number in range(3, 3 + _NODES):
            hosts.append(Host(number).start())
            stack.callback(hosts[-1].close)
        drill = RecoveryDrill(folder, hosts, wheels, stack.enter_context(services.postgres()))
        stack.callback(drill.close)
        drill.build()
        drill.recover(drill.lose())
        times = drill.times
        yield under("confirmation to the first answer of /v1", times.first, _GOAL_SECONDS, "s")
        yield Figure("confirmation to an answer of every model", f"{times.all_models:.1f} s", "for reading", True)
        yield Figure("confirmation to every node online", f"{times.all_nodes:.1f} s", "for reading", True)
        yield Figure(
            "answers while the backup was made", str(drill.answered_under_load), "some", drill.answered_under_load > 0
        )
        known = {model["id"] for model in drill.found.api("GET", "models")["items"]}
        yield exactly("models lost", len({*drill.models, "secretive"} - known), 0)
        restarted = sum(drill.found.engines(model) != drill.engines[model] for model in drill.remote)
        yield exactly("engines on nodes that were started again", restarted, 0)
        drill.check_that_all_is_there()
        epoch = drill.found.api("GET", "fencing")["epoch"]
        yield Figure("epoch after the takeover", str(epoch), "above 1", epoch > 1)
        drill.start_the_old_one()
        states = drill.check_that_the_old_one_commands_nothing()
        yield exactly("nodes that refuse the old master", states.count("PendingTakeover"), _NODES)
        yield exactly("old master is fenced", drill.lost.api("GET", "fencing")["fenced"], wanted=True)


# -- kills -------------------------------------------------------------------------------------------------------------

_MAKE = f"""
import sys
from pathlib import Path
from django.core.management import call_command
call_command("migrate", verbosity=0, interactive=False)
from jobs.backup import making
from tests.jobs.backup.fleet import PASSPHRASE, fill
from mirbad.kernel.actor import CONFIG
fill({_MODELS})
making.create(Path(sys.argv[1]), PASSPHRASE, CONFIG)
"""
_MIGRATE = """
from django.core.management import call_command
call_command("migrate", verbosity=0, interactive=False)
"""
_INSTALL = """
import sys
from pathlib import Path
from jobs.backup import installation
print("now", flush=True)
installation.install(Path(sys.argv[1]), sys.argv[2], "the figure")
print("done", flush=True)
"""
_SETTLE = """
import json
from django.db import connection
from audit.models import AuditLine
from jobs.backup import installation
from mirbad.kernel import recovery_mode
from mirbad.kernel.conf import settings
from models_app.models import ApiKey, ModelDefinition
from nodes.models import MasterIdentity, Node
installation.settle()
data = settings().data
rows = [row.objects.count() for row in (Node, ModelDefinition, ApiKey, MasterIdentity, AuditLine)]
files = [(data / name).exists() for name in ("takeover", "recovery-installed.json", "recovery", "recovery-staging")]
print(json.dumps([rows, files, recovery_mode.is_on(settings())]))
"""
_NOTHING = [[0, 0, 0, 0, 0], [False, False, True, False], True]
_ALL = [[2, _MODELS, 1, 1, 1], [True, True, False, False], False]


class _Installer:
    """Installs a backup on copies of an empty master, each in a process that may be killed."""

    def __init__(self, folder: Path, server: str) -> None:
        self._folder, self.backup, self._empty = folder, folder / "fleet.backup", folder / "empty"
        self._server = server
        for name in ("made", "empty"):
            (folder / name / "static").mkdir(parents=True)
        self.run(folder / "made", _MAKE, str(self.backup))
        if server:
            self._on_server("CREATE DATABASE empty")
        self.run(self._empty, _MIGRATE)
        (self._empty / "recovery").touch()

    def _start(self, data: Path, code: str, *arguments: str) -> "subprocess.Popen[str]":
        environ = {name: text for name, text in os.environ.items() if not name.startswith(("MIRBAD_", "DATABASE_URL"))}
        environ |= {
            "MIRBAD_DATA": str(data), "MIRBAD_SECRET_KEY": "a secret of the figure, sealed with nothing real",
            "DJANGO_SETTINGS_MODULE": "mirbad.settings",
        }  # fmt: skip
        if self._server and data.name != "made":
            environ["DATABASE_URL"] = f"{self._server.rpartition('/')[0]}/{data.name}"
        command = [sys.executable, "-c", f"import django; django.setup()\n{code}", *arguments]
        return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)

    def run(self, data: Path, code: str, *arguments: str) -> str:
        """Run a piece of Python in the settings of `data`; the last line of its output."""
        process = self._start(data, code, *arguments)
        said, _ = process.communicate(timeout=120)
        if process.returncode:
            raise RuntimeError(f"exit {process.returncode}: {said}")
        return (said.splitlines() or [""])[-1]

    def fresh(self) -> Path:
        """Return the data folder of a new empty master in recovery mode."""
        data = self._folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(self._empty, data)
        if self._server:
            self._on_server("DROP DATABASE IF EXISTS data WITH (FORCE)", "CREATE DATABASE data TEMPLATE empty")
        return data

    def _on_server(self, *statements: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def install(self, data: Path, kill_after: float | None) -> float:
        """Install, or kill that after some seconds; the seconds it ran."""
        process = self._start(data, _INSTALL, str(self.backup), PASSPHRASE)
        assert process.stdout is not None
        while process.stdout.readline() != "now\n":
            pass
        began = time.monotonic()
        if kill_after is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(kill_after)
            process.kill()
        process.communicate(timeout=120)
        return time.monotonic() - began


def _kills(folder: Path, database: str, server: str = "") -> Figure:
    count = int(os.environ.get("MIRBAD_FIGURE_KILLS", "50"))
    installer, chance = _Installer(folder, server), random.Random(7)
    data = installer.fresh()
    whole = installer.install(data, None)
    found: Counter[str] = Counter()
    assert json.loads(installer.run(data, _SETTLE)) == _ALL
    for number in range(count):
        data = installer.fresh()
        # Half of them in the last third, where the rows are committed and the files moved.
        installer.install(data, chance.uniform(0 if number % 2 else whole * 2 / 3, whole))
        state = json.loads(installer.run(data, _SETTLE))
        found["all" if state == _ALL else "nothing" if state == _NOTHING else f"a part: {state}"] += 1
    value = " and ".join(f"{number} {what}" for what, number in sorted(found.items())).replace(", ", " ")
    name = f"{count} installations of {_MODELS} models on {database} ({whole:.1f} s) killed at random moments"
    return Figure(name, value, "all or nothing", not found.keys() - {"all", "nothing"})
