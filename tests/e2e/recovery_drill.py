"""A fleet whose master is lost: nodes that serve, a backup, the master's end, its recovery by a person at the pages."""

import http.client
import json
import secrets
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.fleet import Failed, Fleet
from tests.e2e.host import Host
from tests.e2e.joining import is_online, join
from tests.e2e.recovery_browser import PASSPHRASE, RecoveryBrowser, text_of
from tests.waiting import stays, until, until_no

CANARY = "canary-of-a-secret-variable"
PERSON, PASSWORD = "ada", "a password of ada, long enough"
_PEOPLE = f"""
import json
from django.contrib.auth.models import User
from mirbad.accounts.roles import ensure_groups
User.objects.create_user({PERSON!r}, password={PASSWORD!r}).groups.add(ensure_groups()["operator"])
print(json.dumps(True))
"""
_SECRET = """
import json
from models_app.models import ModelDefinition
from models_app.registry import specs
print(json.dumps(specs.unseal_env(ModelDefinition.objects.get(pk="secretive"))))
"""
AT_HOME = "at-home"
"""The model on the master's own machine, whose agent is lost with the master."""


@dataclass
class RecoveryTimes:
    """Seconds from the confirmation to the first good answer of `/v1`, of every model, and to all nodes online."""

    first: float = 0.0
    all_models: float = 0.0
    all_nodes: float = 0.0


@dataclass
class Load:
    """Requests to models one after another in the background; counts what was answered while it ran."""

    fleet: Fleet
    models: list[str]
    good: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> "Load":
        """Begin to ask."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> int:
        """End, and return the number of answers."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(40)
        return self.good

    def _run(self) -> None:
        key = self.fleet.key
        while not self._stop.is_set():
            for model in self.models:
                with suppress(Failed, OSError, http.client.HTTPException, AssertionError):
                    self.fleet.chat(model, key=key)
                    self.good += 1


class RecoveryDrill:
    """Of each of `hosts` a node with one model; `database_url` is that of the recovered master."""

    def __init__(self, folder: Path, hosts: list[Host], wheels: Path, database_url: str) -> None:
        names = ",".join(host.master_address for host in hosts)
        settings = {"MIRBAD_BIND": "0.0.0.0", "MIRBAD_HOSTS": names}
        self.folder, self.hosts, self._wheels = folder, hosts, wheels
        self.lost = Fleet(folder / "lost", **settings)
        more = {"DATABASE_URL": database_url, "MIRBAD_RECOVERY_MODE": "fleet-restore"}
        self.found = Fleet(folder / "found" / "elsewhere", **settings, **more)
        self.found.ports = dict(self.lost.ports)
        self.found.environ.update({name: str(port) for name, port in self.lost.ports.items()})
        self.nodes = [f"pc-{number}" for number, _ in enumerate(hosts, 1)]
        self.remote = [f"survivor-{number}" for number, _ in enumerate(hosts, 1)]
        self.times = RecoveryTimes()
        self.answered_under_load = 0
        self.key = ""

    def close(self) -> None:
        """End both masters."""
        self.found.close()
        self.lost.close()

    @property
    def models(self) -> list[str]:
        """The models that run."""
        return [*self.remote, AT_HOME]

    def build(self) -> None:
        """Make the fleet: nodes, running models, one with a secret variable, a person, a key."""
        lost = self.lost
        lost.start()
        for host, node, model in zip(self.hosts, self.nodes, self.remote, strict=True):
            # Machines of their own: nodes of one machine count as one against a master.
            host.run(f"echo {secrets.token_hex(16)} > /etc/machine-id")
            join(lost, host, self._wheels, node, model)
        lost.define_sim(AT_HOME)
        lost.api("POST", f"models/{AT_HOME}/start")
        lost.wait_for_answer(AT_HOME)
        secret = {"id": "secretive", "runtime": "sim", "delivery": "process", "secretEnv": {"HF_TOKEN": CANARY}}
        lost.api("POST", "models", {**secret, "placement": {"nodeId": "local"}})
        lost.inside(_PEOPLE)
        self.key = lost.key
        self.found._token = lost.token
        self.engines = {model: lost.engines(model) for model in self.remote}
        assert all(len(found) == 1 for found in self.engines.values()), self.engines

    def lose(self) -> Path:
        """Back up to a destination under load, kill the master, delete its data but for a copy; return the backup."""
        lost, disk = self.lost, self.folder / "another-disk"
        disk.mkdir()
        place = {"name": "another disk", "kind": "folder", "settings": {"path": str(disk)}}
        chosen = lost.api("POST", "backups/destinations", place)["id"]
        load = Load(lost, self.models).start()
        until(lambda: load.good >= len(self.models), "the load", 30)
        made = lost.api("POST", "backups", {"passphrase": PASSPHRASE, "destinationId": chosen})
        until(lambda: lost.api("GET", f"backups/{made['backupId']}")["copiedAt"], "the backup on the other disk", 60)
        (backup,) = disk.glob("*.zip")
        lost.kill()
        self.answered_under_load = load.stop()
        until(lambda: not [one for one in lost.leftovers() if "mirbad" in " ".join(one.cmdline())], "its end", 30)
        shutil.copytree(lost.data, self.folder / "copy", symlinks=True)
        shutil.rmtree(lost.data)
        return backup

    def recover(self, backup: Path) -> None:
        """Recover as a person does, and measure from the confirmation on."""
        found = self.found
        found.start()
        with RecoveryBrowser(found) as browser:
            browser.log_in()
            preview = browser.upload(backup)
            began = time.monotonic()
            done = browser.install(preview)
            assert "The backup is installed" in text_of(done), text_of(done)
        waiting = set(self.models)

        def all_answered() -> bool:
            for model in sorted(waiting):
                with suppress(Failed, OSError, http.client.HTTPException, AssertionError):
                    found.chat(model, key=self.key)
                    waiting.discard(model)
                    self.times.first = self.times.first or time.monotonic() - began
            return not waiting

        until(all_answered, "answers:\n" + "\n".join(found.lines), 180, every=0.1)
        self.times.all_models = time.monotonic() - began
        until(self._all_online, "all nodes", 120, every=0.3)
        self.times.all_nodes = time.monotonic() - began

    def _all_online(self) -> bool:
        with suppress(Failed, OSError, http.client.HTTPException):
            return all(is_online(self.found, node) for node in [*self.nodes, "local"])
        return False

    def check_that_all_is_there(self) -> None:
        """Check epoch, engines, models, secrets, people, the audit log, the option."""
        found = self.found
        assert {model: found.engines(model) for model in self.remote} == self.engines, "the engines that ran before"
        assert {model["id"] for model in found.api("GET", "models")["items"]} == {*self.models, "secretive"}
        fencing = found.api("GET", "fencing")
        assert not fencing["fenced"]
        assert fencing["epoch"] > 1
        assert found.inside(_SECRET) == {"HF_TOKEN": CANARY}
        line = next(row for row in found.api("GET", "audit?max=200")["items"] if row["action"] == "restore")
        assert line["actor"] == "system:restore"
        assert "admin on the page" in line["detail"]
        found.manage("audit_verify")
        assert any("is still set, but a fleet recovery already finished in" in said for said in found.lines)
        with RecoveryBrowser(found) as browser:
            assert browser.log_in(PERSON, PASSWORD).url.endswith("/")
            assert "MIRBAD_RECOVERY_MODE=fleet-restore is still set" in text_of(browser.get("/"))

    def start_the_old_one(self) -> None:
        """Start the lost master again from its copy, in its own place, on other ports."""
        shutil.copytree(self.folder / "copy", self.lost.data, symlinks=True)
        other = Fleet(self.folder / "ports").ports
        self.lost.ports = other
        self.lost.environ.update({name: str(port) for name, port in other.items()})
        self.lost.start()

    def check_that_the_old_one_commands_nothing(self) -> list[str]:
        """Check that each node refuses the old master and that its orders change nothing; return the nodes' states."""
        lost, model = self.lost, self.remote[0]

        def states() -> list[str]:
            return [lost.api("GET", f"nodes/{node}")["state"] for node in self.nodes]

        until(lambda: set(states()) == {"PendingTakeover"}, "every node to refuse the old master", 60, every=0.5)
        # A master that is refused by one node alone takes the order, and the node does not.
        status, _, said = lost.request(
            "POST", f"/api/models/{model}/stop", {}, headers={"Authorization": f"Bearer {lost.token}"}
        )
        answer = json.loads(said)
        assert status == 202 or (status, answer["code"]) == (409, "master_fenced"), said
        stays(
            lambda: {name: lost.engines(name) for name in self.remote} == self.engines, "the engines as they were", 10
        )
        if status == 202:
            assert lost.api("GET", f"operations/{answer['id']}")["outcome"] != "succeeded"
        for name in self.remote:
            until_no((Failed, OSError), lambda name=name: self.found.chat(name, key=self.key), 20, every=0.2)
        return states()
