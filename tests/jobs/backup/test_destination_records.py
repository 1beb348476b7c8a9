"""A backup carries the destinations of backups: their place in the plain part, what is secret below the seal."""

import shutil
import zipfile

import pytest
from django.core.management import call_command

from jobs.backup import making, records, recovery, restored_destinations, sealed, storage
from jobs.models import BackupDestination
from mirbad.kernel.conf import settings
from tests.jobs.backup.fleet import PASSPHRASE, fill, read
from tests.models_app.things import PERSON
from tests.pages import backed_up

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]

HIDDEN = ("a password of the share", "a passphrase of the schedule", "a secret key")


def _by_name(rows):
    return {row.name: row for row in rows}


@pytest.fixture
def found(tmp_path, monkeypatch):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)
    fill()
    backed_up.rows()
    path = tmp_path / "backup.zip"
    making.create(path, PASSPHRASE, PERSON)
    return path


def test_what_is_secret_is_below_the_seal_alone(found):
    with zipfile.ZipFile(found) as archive:
        plain = archive.read("configuration.jsonl").decode()
    assert "nas.home.example" in plain
    assert [word for word in HIDDEN if word in plain] == []
    kinds = read(found)
    assert [one.destination_kind for one in kinds["destination"]] == ["folder", "nfs", "s3", "smb"]
    assert {one.name: (one.secret, one.passphrase) for one in kinds["destination-secrets"]} == {
        "the s3": ("a secret key", None),
        "the smb": ("a password of the share", "a passphrase of the schedule"),
    }


def test_they_are_written_again_and_their_schedule_begins_anew(found):
    kinds = read(found)
    before = {row.name: (row.kind, row.settings, row.schedule) for row in BackupDestination.objects.all()}
    BackupDestination.objects.all().delete()
    assert restored_destinations.write(kinds["destination"], _by_name(kinds["destination-secrets"])) == []
    assert {row.name: (row.kind, row.settings, row.schedule) for row in BackupDestination.objects.all()} == before
    smb = BackupDestination.objects.get(kind="smb")
    assert storage.secret_of(smb) == "a password of the share"
    assert storage.kept_passphrase_of(smb) == "a passphrase of the schedule"
    assert smb.schedule_from is not None


def test_a_password_that_is_not_there_is_asked_for(found):
    kinds = read(found, passphrase=None)
    assert all(isinstance(one, records.DestinationRecord) for one in kinds["destination"])
    BackupDestination.objects.all().delete()
    notes = restored_destinations.write(kinds["destination"], {})
    assert [note.split(" is not")[0] for note in notes] == [
        "The password of destination the s3",
        "The password of destination the smb",
    ]


def test_a_recovered_master_has_them(found, tmp_path):
    before = read(found)
    call_command("flush", verbosity=0, interactive=False)
    shutil.rmtree(settings().data / "audit", ignore_errors=True)
    recovery.recover(found, PASSPHRASE, lambda _: None, "somebody")
    again = tmp_path / "again.zip"
    making.create(again, PASSPHRASE, PERSON)
    after = read(again)
    for kind in ("destination", "destination-secrets"):
        assert after[kind] == before[kind]
