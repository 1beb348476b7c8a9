"""Fixtures of backups: a file, a folder as its destination, errands, and a data folder of its own."""

import hashlib
import random

import pytest

from jobs.backup import sealed, storage
from jobs.backup.destinations import errand
from jobs.backup.destinations.errand import DestinationErrand
from jobs.backup.destinations.settings import DestinationSettings
from jobs.errors import BackupDestinationFailed
from mirbad.kernel.conf import settings
from tests.jobs.backup.made import SECRET


@pytest.fixture
def data(monkeypatch, tmp_path):
    """A data folder of its own, and keys that cost nothing."""
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)
    own = settings().model_copy(update={"data": tmp_path / "data"})
    monkeypatch.setattr(storage, "settings", lambda: own)
    return own.data


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


@pytest.fixture
def quick(monkeypatch):
    """Errands in this process: the work of a folder, without a process of its own."""
    from jobs.backup.destinations.__main__ import _answer

    def run(wanted, *, seconds=0.0, is_cancelled=lambda: False):
        if problem := _answer(wanted).problem:
            raise BackupDestinationFailed(problem)

    monkeypatch.setattr(errand, "run", run)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "backup.zip"
    path.write_bytes(random.Random(5).randbytes(3_000_000))
    return path


@pytest.fixture
def do(tmp_path, file):
    """Do an errand."""
    point = tmp_path / "point"
    point.mkdir()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()

    def run(verb, settings: DestinationSettings, **more):
        given = {"secret": SECRET, "mount_point": str(point), "file": str(file), "names": ("a.zip",), "sha256": digest}
        seconds = more.pop("seconds", 60.0)
        is_cancelled = more.pop("is_cancelled", lambda: False)
        wanted = DestinationErrand(verb=verb, settings=settings, **{**given, **more})
        errand.run(wanted, seconds=seconds, is_cancelled=is_cancelled)

    return run
