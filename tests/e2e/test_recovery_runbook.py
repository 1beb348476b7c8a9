"""The runbook of a recovery, followed word by word: its commands are read from the page and run, in both ways."""

import contextlib
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pytest

from tests.e2e.fleet import ROOT, Failed, Fleet
from tests.e2e.recovery_browser import CONFIRMED, PASSPHRASE, RecoveryBrowser, text_of
from tests.waiting import until, until_no

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PAGE = (ROOT / "docs" / "recovery.md").read_text()
FOLDER, FILE = "/srv/mirbad/data", "/backup/mirbad-monday.zip"


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]


def commands(title):
    """Return the shell commands of a section, in their order."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", section(title), re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


def labels(title):
    """Return the labels that a section has a person press or tick."""
    return re.findall(r"\*\*([^*]+)\*\*", section(title))


def in_a_terminal(command, environ, seconds=120):
    """Run a command as a person does, who answers what it asks; its exit code and all that it wrote."""
    leader, follower = pty.openpty()
    running = subprocess.Popen(
        ["sh", "-c", command], cwd=ROOT, env=environ, stdin=follower, stdout=follower, stderr=follower,
        start_new_session=True, preexec_fn=_own_terminal,
    )  # fmt: skip
    os.close(follower)
    said, answered, deadline = "", 0, time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline and (select.select([leader], [], [], 1)[0] or running.poll() is None):
            if select.select([leader], [], [], 0.2)[0]:
                said += os.read(leader, 4096).decode()
            asked = said[answered:]
            answer = PASSPHRASE if re.search(r"[Pp]assphrase[^\n]*: $", asked) else ""
            answer = answer or (CONFIRMED if asked.endswith(f'Type "{CONFIRMED}": ') else "")
            if answer:
                answered = len(said)
                os.write(leader, f"{answer}\n".encode())
    os.close(leader)
    return running.wait(30), said


def _own_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture(scope="module")
def lost(tmp_path_factory):
    """A fleet that is gone but for its backup: key of the API, token, and where the backup is."""
    folder = tmp_path_factory.mktemp("lost")
    fleet = Fleet(folder)
    try:
        fleet.start()
        fleet.define_sim("runs")
        fleet.api("POST", "models/runs/start")
        fleet.wait_for_answer("runs")
        (folder / "passphrase").write_text(PASSPHRASE)
        backup = folder / "fleet.backup"
        fleet.manage("backup", "create", str(backup), "--passphrase-file", str(folder / "passphrase"))
        found = fleet.key, fleet.token, backup
    finally:
        fleet.close()
    shutil.rmtree(fleet.data)
    return found


class Follower:
    """A person who follows the runbook on an empty machine."""

    def __init__(self, fleet, backup):
        self.fleet, self.backup, self.said = fleet, backup, []

    def follow(self, title, **instead):
        """Run the commands of a section; `make up` is the program behind it."""
        for line in commands(title):
            name, _, value = line.removeprefix("export ").partition("=")
            if line.startswith("export "):
                assert self.mine(value) == self.fleet.environ[name]
            elif line == "make up":
                self.fleet.start()
            else:
                code, said = in_a_terminal(self.mine(line), self.fleet.environ)
                assert code == 0 or line.endswith("status"), f"{line}: {code}\n{said}"
                self.said.append(said)

    def mine(self, line):
        """A line of the page with the places and the Python of this machine."""
        line = line.replace(FOLDER, str(self.fleet.data)).replace(FILE, str(self.backup))
        return line.replace(".venv/bin/python", sys.executable)

    def check_that_all_is_back(self, key, token):
        until_no((Failed, OSError), lambda: self.fleet.chat("runs", key=key), 120, every=0.2)
        self.fleet._token = token
        until(lambda: not self.fleet.api("GET", "fencing")["fenced"], "the end of the fence", 60)
        until(lambda: in_a_terminal(f"{sys.executable} manage.py status", self.fleet.environ)[0] == 0, "all well", 90)
        self.said.clear()
        self.follow("Afterwards")
        assert "runs" in self.said[0]
        assert "Mirbad is running" in self.said[0]
        line = next(row for row in self.fleet.api("GET", "audit?max=200")["items"] if row["action"] == "restore")
        assert line["actor"] == "system:restore"


def test_the_way_by_command(lost, make_fleet):
    key, token, backup = lost
    person = Follower(make_fleet(), backup)
    person.follow("By command")
    assert any("Recovered 1 nodes, 1 models" in said for said in person.said)
    person.check_that_all_is_back(key, token)


def test_the_way_on_the_page(lost, make_fleet):
    key, token, backup = lost
    person = Follower(make_fleet(), backup)
    fleet = person.fleet
    assert labels("On the page") == [
        "Upload and check", "The previous master is stopped", "Install backup and restart",
    ]  # fmt: skip
    # The last command shows the password, which exists once the ones before it were run.
    person.follow("On the page")
    assert any("Recovery mode" in line for line in fleet.lines)
    assert set(fleet.processes()) == {"web"}
    assert not (fleet.data / "agent" / "state").exists()
    with RecoveryBrowser(fleet) as browser:
        first = browser.log_in(password=person.said[-1].strip().splitlines()[-1])
        assert "Upload and check" in text_of(first)
        preview = browser.upload(backup)
        assert "The previous master is stopped" in text_of(preview)
        assert "Install backup and restart" in text_of(preview)
        done = browser.install(preview)
        assert "The backup is installed" in text_of(done)
    fleet.wait_for_line("Mirbad is up", 120)
    assert not (fleet.data / "recovery").exists()
    person.check_that_all_is_back(key, token)
    with RecoveryBrowser(fleet) as browser:
        browser.log_in()
        assert "The takeover is complete" in text_of(browser.get("/backup/recovered"))
