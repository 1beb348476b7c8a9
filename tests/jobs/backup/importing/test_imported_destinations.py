"""Destinations of a backup on another master: connected again with their passwords, or left as they are."""

import dataclasses

import pytest

from audit.models import AuditLine
from jobs.backup import making, restored_destinations, sealed, storage
from jobs.backup.importing import content
from jobs.backup.importing.choices import ImportChoices, ImportOptions
from jobs.models import BackupDestination
from jobs.requests import restore
from tests.jobs.backup.fleet import PASSPHRASE, fill
from tests.models_app.things import PERSON
from tests.pages import backed_up

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]

NAMES = ["the folder", "the nfs", "the s3", "the smb"]
NO_DESTINATIONS = ImportChoices(options=ImportOptions(destinations=False), others_unplaced=True)
ALL = ImportChoices(others_unplaced=True)


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)
    fill()
    backed_up.rows()
    path = tmp_path / "backup.zip"
    making.create(path, PASSPHRASE, PERSON)
    return path


def fates(plan):
    return {one.name: (one.action.value, one.reason) for one in plan.destinations}


def write(read, choices=ALL):
    plan = restore.preview(read, choices)
    restore.request(read, choices, plan.digest, PERSON)
    return plan


def test_they_come_with_their_passwords_and_schedules_and_a_line_each(path):
    BackupDestination.objects.all().delete()
    plan = write(content.read(path, PASSPHRASE))
    assert fates(plan) == dict.fromkeys(NAMES, ("created", ""))
    assert "a password of the share" not in str(dataclasses.asdict(plan))
    smb = BackupDestination.objects.get(name="the smb")
    assert (storage.secret_of(smb), storage.kept_passphrase_of(smb)) == (
        "a password of the share",
        "a passphrase of the schedule",
    )
    assert (smb.schedule, smb.keep_days) == ("30 2 * * *", 90)
    lines = AuditLine.objects.filter(action="backup-destination")
    assert sorted(lines.values_list("target", flat=True)) == NAMES
    assert set(lines.values_list("actor", flat=True)) == {"system:restore"}


def test_one_of_a_name_that_is_here_stays_as_it_is(path):
    BackupDestination.objects.exclude(kind="folder").delete()
    BackupDestination.objects.update(settings={"kind": "folder", "path": "/mnt/another"})
    assert fates(write(content.read(path, PASSPHRASE)))["the folder"][0] == "kept"
    assert BackupDestination.objects.get(name="the folder").settings["path"] == "/mnt/another"
    assert BackupDestination.objects.count() == 4


def test_without_the_passphrase_they_wait_for_their_passwords(path):
    BackupDestination.objects.all().delete()
    found = fates(write(content.read(path, None)))
    off = "Its schedule is off. Set it again, with the passphrase of its backups."
    asked = f"Its password is not in what was read. Enter it on the page Backup. {off}"
    assert {name: found[name][1] for name in NAMES} == dict(zip(NAMES, ["", "", asked, asked], strict=True))
    assert BackupDestination.objects.filter(secret_sealed=None, schedule="").count() == 4


def test_they_can_be_left_out(path):
    BackupDestination.objects.all().delete()
    assert fates(write(content.read(path, PASSPHRASE), NO_DESTINATIONS)) == {}
    assert not BackupDestination.objects.exists()


def test_a_place_that_no_owner_could_enter_is_left_out_with_the_reason(path, settings):
    read = content.read(path, PASSPHRASE)
    BackupDestination.objects.all().delete()
    bad = {
        "the folder": {"settings": {"path": str(storage.folder())}},
        "the smb": {"schedule": "every day"},
        "the nfs": {"settings": {"host": "192.0.2.9", "export": "relative", "folder": ""}},
    }
    changed = tuple(one.model_copy(update=bad.get(one.name, {})) for one in read.destinations)
    found = fates(write(dataclasses.replace(read, destinations=changed)))
    assert [found[name][0] for name in NAMES] == ["left-out", "left-out", "created", "left-out"]
    assert all(found[name][1] for name in bad)
    assert "inside of the data folder" in found["the folder"][1]
    assert list(BackupDestination.objects.values_list("name", flat=True)) == ["the s3"]


def test_a_second_import_keeps_them(path):
    read = content.read(path, PASSPHRASE)
    BackupDestination.objects.all().delete()
    restored_destinations.write(read.destinations, read.destination_secrets)
    assert {action for action, _ in fates(restore.preview(read, ALL)).values()} == {"kept"}
