"""An installation is whole or undone, whatever interrupts it, and settled by whoever comes next."""

import json
import shutil
import stat
import threading
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from jobs.backup import installation, making, recovery, sealed
from jobs.errors import MasterNotEmpty
from mirbad.kernel import recovery_mode
from mirbad.kernel.conf import settings
from models_app.models import ModelDefinition
from nodes.models import MasterIdentity, Node
from nodes.pki import authority
from tests.jobs.backup.fleet import PASSPHRASE, fill
from tests.models_app.things import PERSON
from tests.waiting import stays

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """An empty data folder with the marker of the recovery mode."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "recovery").touch()
    chosen = settings().model_copy(update={"data": folder, "recovery_mode": "fleet-restore"})
    monkeypatch.setattr(installation, "settings", lambda: chosen)
    return folder


@pytest.fixture
def backup(tmp_path):
    fill()
    making.create(tmp_path / "fleet.backup", PASSPHRASE, PERSON)
    call_command("flush", verbosity=0, interactive=False)
    shutil.rmtree(settings().data / "audit", ignore_errors=True)
    return tmp_path / "fleet.backup"


def is_on(data) -> bool:
    return recovery_mode.is_on(settings().model_copy(update={"data": data, "recovery_mode": "fleet-restore"}))


def is_empty() -> bool:
    return not (Node.objects.exists() or ModelDefinition.objects.exists() or MasterIdentity.objects.exists())


def is_undone(data) -> bool:
    return is_empty() and is_on(data) and {path.name for path in data.iterdir()} == {"recovery"}


def is_whole(data) -> bool:
    names = {str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()}
    wanted = {"takeover", "recovery-installed.json", f"bootstrap/starter-{settings().starter_model}"}
    return ModelDefinition.objects.count() == 3 and names == wanted and not is_on(data)


def test_all_of_it_is_in_its_place(data, backup):
    done = installation.install(backup, PASSPHRASE, "somebody", "monday.backup")
    assert is_whole(data)
    assert not (data / "recovery-staging").exists()
    for path in data.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    found = installation.installed()
    assert (found.backup, found.instance_id) == ("monday.backup", done.manifest.instance_id)
    assert found.made_at == done.manifest.created_at
    assert installation.settle() is False


def test_a_second_one_is_refused(data, backup):
    installation.install(backup, PASSPHRASE, "somebody")
    with pytest.raises(MasterNotEmpty) as refused:
        installation.install(backup, PASSPHRASE, "somebody")
    assert {problem["message"].partition(" ")[0] for problem in refused.value.problems} >= {"node", "model", "identity"}
    assert is_whole(data)


class Dead(BaseException):
    """The process ended here."""


PLACES = (
    "jobs.backup.installation.recovery.require_empty",
    "jobs.backup.recovery._write_people",
    "jobs.backup.installation._stage",
    "jobs.backup.installation.write_text",
    "jobs.backup.installation.sync_dir",
    "jobs.backup.installation._finish",
    "jobs.backup.installation.shutil.rmtree",
    "pathlib.Path.replace",
    "pathlib.Path.unlink",
    "pathlib.Path.mkdir",
)


def install_and_die(backup, monkeypatch, place, number, *, after):
    """Install, and die at the `number`-th call of `place`; False when there are fewer."""
    import pkgutil

    module, _, name = place.rpartition(".")
    real, calls = getattr(pkgutil.resolve_name(module), name), []

    def dies(*words, **named):
        calls.append(1)
        own = len(calls)
        if own == number and not after:
            raise Dead
        result = real(*words, **named)
        if own == number:
            raise Dead
        return result

    with monkeypatch.context() as patch:
        patch.setattr(place, dies)
        try:
            installation.install(backup, PASSPHRASE, "somebody")
        except Dead:
            return True
    return False


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_call_leaves_all_or_nothing(data, backup, monkeypatch, place, after):
    number, outcomes = 1, set()
    while install_and_die(backup, monkeypatch, place, number, after=after):
        installation.settle()
        outcomes.add("whole" if is_whole(data) else "undone" if is_undone(data) else sorted(map(str, data.rglob("*"))))
        assert outcomes <= {"whole", "undone"}, (place, number)
        call_command("flush", verbosity=0, interactive=False)
        shutil.rmtree(data)
        data.mkdir()
        (data / "recovery").touch()
        number += 1
    assert outcomes, "it was called"
    assert is_whole(data), "the one that nothing interrupted"


def test_a_settling_that_is_interrupted_is_settled_again(data, backup, monkeypatch):
    assert install_and_die(backup, monkeypatch, "jobs.backup.installation._finish", 1, after=False)
    for number in range(1, 4):
        calls = []
        real = Path.replace

        def dies(self, target, *, _calls=calls, _number=number, _real=real):
            _calls.append(1)
            if len(_calls) == _number:
                raise Dead
            return _real(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", dies)
            with pytest.raises(Dead):
                installation.settle()
    installation.settle()
    assert is_whole(data)


def test_a_settling_waits_for_a_transaction_that_is_still_under_way(data):
    """The connection of a process that was killed may be about to commit: to look earlier would undo what is there."""
    inside, may_end = threading.Event(), threading.Event()

    def under_way():
        try:
            with transaction.atomic():
                recovery.one_at_a_time()
                (data / "recovery-staging").mkdir()
                inside.set()
                may_end.wait(30)
                authority.ensure()
        finally:
            connection.close()

    thread = threading.Thread(target=under_way)
    thread.start()
    assert inside.wait(30)
    settling = threading.Thread(target=lambda: (installation.settle(), connection.close()))
    settling.start()
    stays(lambda: settling.is_alive() and (data / "recovery-staging").is_dir(), "it waits", 0.5)
    may_end.set()
    thread.join(30)
    settling.join(30)
    assert MasterIdentity.objects.exists()
    assert not (data / "recovery").exists(), "it was found whole"


def test_a_record_that_cannot_be_read_is_none(data):
    assert installation.installed() is None
    (data / "recovery-installed.json").write_text("{")
    assert installation.installed() is None
    (data / "recovery-installed.json").write_text(json.dumps({"backup": "a"}))
    assert installation.installed() is None
