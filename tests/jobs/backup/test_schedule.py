"""A schedule makes one backup a slot, whatever failed before."""

import pytest

from jobs import ledger
from jobs.backup import verification
from jobs.loops import backups as loop
from jobs.models import Backup, BackupDestination, Operation
from jobs.requests import backups
from nodes.models import MasterIdentity
from tests.jobs.backup.fleet import PASSPHRASE, fill
from tests.jobs.backup.made import files, good, made
from tests.models_app.things import PERSON

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("data")]

KEPT = "another passphrase of the schedule"


def test_a_slot_starts_one_backup_however_many_look(quick, finish, pass_time, target):
    fill()
    made(target, schedule="0 * * * *", passphrase=KEPT)
    assert loop.start_due_once() == 0
    pass_time(3600)
    row = BackupDestination.objects.get()
    assert [loop._start(row), loop._start(row), loop.start_due_once()] == [True, False, 0]
    operation = Operation.objects.get(kind="backup")
    assert operation.actor == "system:backup"
    assert finish(operation.pk).outcome == "succeeded"
    one = Backup.objects.get()
    assert (one.scheduled, one.with_secrets) == (True, True)
    assert verification.verify(target / one.name, KEPT).has_secrets
    pass_time(10 * 3600)
    assert [loop.start_due_once(), loop.start_due_once()] == [1, 0], "missed slots are made up by one"


def test_a_slot_waits_for_the_backup_that_is_being_made(quick, finish, pass_time, target):
    fill()
    destination = made(target, schedule="0 * * * *")
    operation = backups.request(PERSON, passphrase=PASSPHRASE, destination_id=destination.pk)
    pass_time(3600)
    assert loop.start_due_once() == 0
    finish(operation.pk)
    assert loop.start_due_once() == 1
    assert not Backup.objects.first().with_secrets, "no passphrase is kept, so no secrets"


def test_a_fenced_master_starts_none(pass_time, target):
    fill()
    made(target, schedule="0 * * * *")
    pass_time(3600)
    MasterIdentity.objects.update(fenced_reason="another master took over")
    assert loop.start_due_once() == 0


def test_a_passphrase_that_does_not_open_is_a_failed_backup_once(pass_time, target):
    fill()
    made(target, schedule="0 * * * *", passphrase=KEPT)
    BackupDestination.objects.update(passphrase_sealed=b"sealed under another key, as after a lost one")
    pass_time(3600)
    assert [loop.start_due_once(), loop.start_due_once()] == [0, 0]
    row = Backup.objects.get()
    assert (row.outcome, row.error["code"]) == ("failed", "seal_broken")


def test_a_backup_whose_operation_is_gone_is_ended_and_its_passphrase_forgotten():
    fill()
    operation = backups.request(PERSON, passphrase=PASSPHRASE)
    assert loop.forget_passphrases_once() == 0
    ledger.abandon(operation, "Ended by another version.")
    assert loop.forget_passphrases_once() == 1
    row = Backup.objects.get()
    assert (row.outcome, row.passphrase_sealed) == ("failed", None)


def test_failed_ones_do_not_fill_the_disk(data, target):
    fill()
    for row in good(made(target), loop.FAILED_KEPT + 5):
        Backup.objects.filter(pk=row.pk).update(outcome="failed")
    assert [loop.forget_failed_once(), loop.forget_failed_once()] == [5, 0]
    assert len(files(data / "backups")) == Backup.objects.count() == loop.FAILED_KEPT
    assert not Backup.objects.filter(name="mirbad-old-0.zip").exists()
