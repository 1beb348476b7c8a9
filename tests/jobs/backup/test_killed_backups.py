"""A worker that makes a backup is killed by `kill -9` at boundaries and at any time: one file or none, never a half.

A sample here; `MIRBAD_TEST_KILLS=1` takes every boundary and 30 times.
"""

import hashlib
import os
import random
import subprocess
import sys
import threading

import pytest
from django.db import connection

from audit.models import AuditLine
from jobs.backup import sealed, storage, verification
from jobs.models import Backup, BackupDestination, Operation
from jobs.requests import backups
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from tests.jobs.backup.fleet import PASSPHRASE, fill
from tests.jobs.processes import ROOT, Program
from tests.models_app.things import PERSON

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

WHOLE = bool(os.environ.get("MIRBAD_TEST_KILLS"))


class Master:
    """A data folder, a destination, and workers that may be killed."""

    def __init__(self, folder, monkeypatch):
        self.target = folder / "target"
        self.target.mkdir()
        self.data = folder / "data"
        self.environ = Program(folder, "", "x", "x", "x", "x")._environ
        monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)
        monkeypatch.setattr(storage, "settings", lambda: settings().model_copy(update={"data": self.data}))
        fill()
        BackupDestination.objects.create(
            name="disk", kind="folder", settings={"kind": "folder", "path": str(self.target)}, warn_from=clock.now()
        )

    def ask(self):
        """Request a backup where there is none."""
        Backup.objects.all().delete()
        Operation.objects.all().delete()
        AuditLine.objects.all().delete()
        for folder in (self.target, self.data / "backups"):
            for entry in folder.iterdir() if folder.exists() else ():
                entry.unlink()
        return backups.request(PERSON, passphrase=PASSPHRASE, destination_id=BackupDestination.objects.get().pk).pk

    def work(self, operation_id, at=0, seconds=None):
        """Run a worker; return how many boundaries it crossed, None when it was killed."""
        connection.close()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.backup.runs", operation_id, str(at)],
            cwd=ROOT, env=self.environ, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        timer = threading.Timer(seconds, process.kill) if seconds is not None else None
        if timer is not None:
            timer.start()
        lines = process.communicate()[0].split()
        if timer is not None:
            timer.cancel()
        return int(lines[-1]) if process.returncode == 0 else None

    def next_worker(self, operation_id):
        """The lease passes, and another worker comes."""
        Operation.objects.update(lease_expires_at=None, lease_owner="")
        return self.work(operation_id)

    def wrongs(self):
        """List what is not as it should be at the end."""
        row, operation = Backup.objects.get(), Operation.objects.get()
        found = []
        for folder in (self.data / "backups", self.target):
            files = {entry.name: hashlib.sha256(entry.read_bytes()).hexdigest() for entry in folder.iterdir()}
            if files != {row.name: row.sha256}:
                found.append(f"{folder.name}: {files}")
        if (operation.outcome, row.outcome, row.passphrase_sealed) != ("succeeded", "succeeded", None):
            found.append(f"it ended {operation.outcome}, the row {row.outcome}: {operation.error}")
        if AuditLine.objects.filter(action="backup", result="succeeded").count() != 1:
            found.append("not one line in the audit log")
        verification.verify(self.target / row.name, PASSPHRASE)
        return found

    def half(self):
        """List files under a final name that are not whole, right after a kill."""
        files = [
            entry
            for folder in (self.data / "backups", self.target) if folder.exists()
            for entry in folder.iterdir() if not entry.name.startswith(".")
        ]  # fmt: skip
        for entry in files:
            verification.verify(entry, PASSPHRASE)
        return len(files)


@pytest.fixture
def master(tmp_path, monkeypatch):
    return Master(tmp_path, monkeypatch)


def test_killed_at_a_boundary(master):
    count = master.work(master.ask())
    assert master.wrongs() == []
    assert count > 20
    at, wrong = list(range(1, count + 1)), []
    for number in at if WHOLE else at[4 :: len(at) // 4]:
        operation_id = master.ask()
        assert master.work(operation_id, number) is None
        master.half()
        master.next_worker(operation_id)
        wrong += [f"{number}: {text}" for text in master.wrongs()]
    assert wrong == []


def test_killed_at_any_time(master):
    chance, killed, wrong = random.Random(3), 0, []
    for number in range(30 if WHOLE else 3):
        operation_id = master.ask()
        killed += master.work(operation_id, seconds=chance.uniform(1.0, 3.2)) is None
        master.half()
        master.next_worker(operation_id)
        wrong += [f"{number}: {text}" for text in master.wrongs()]
    assert wrong == []
    assert killed
