"""A backup is an operation: made, read back, copied, and kept as its destination says, whatever happens meanwhile."""

import json
from datetime import timedelta

import pytest
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection

from audit.models import AuditLine
from jobs import leases, ledger, worker
from jobs.backup import making, storage, verification
from jobs.errors import BackupDestinationFailed
from jobs.kinds import KINDS
from jobs.models import Backup, BackupDestination, Operation
from jobs.requests import backup_destinations, backups, cancellation
from jobs.requests.backup_destinations import DestinationInput
from mirbad.accounts.errors import WeakPassword
from mirbad.api.problems import Forbidden
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound
from nodes.models import MasterIdentity
from tests.jobs.backup.fleet import CANARY, PASSPHRASE, fill
from tests.jobs.backup.made import files, good, made
from tests.models_app.things import PERSON
from tests.waiting import until

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("data")]

KEPT = "another passphrase of the schedule"


def test_a_backup_on_the_master_is_read_back_and_its_passphrase_forgotten(finish, data):
    fill()
    operation = backups.request(PERSON, passphrase=PASSPHRASE)
    row = Backup.objects.get()
    assert row.passphrase_sealed is not None
    ended = finish(operation.pk)
    row.refresh_from_db()
    assert (ended.outcome, row.outcome, row.passphrase_sealed) == ("succeeded", "succeeded", None)
    assert files(data / "backups") == [row.name]
    assert verification.verify(storage.file_of(row), PASSPHRASE).counts == row.manifest["counts"]
    assert row.bytes == storage.file_of(row).stat().st_size
    lines = AuditLine.objects.filter(action="backup").order_by("pk").values_list("result", "target", "actor")
    assert list(lines) == [("accepted", row.name, PERSON.name), ("succeeded", row.name, PERSON.name)]


def test_a_copy_at_a_destination_is_the_same_file(finish, data, target):
    fill()
    destination = made(target)
    finish(backups.request(PERSON, passphrase=PASSPHRASE, destination_id=destination.pk).pk)
    row = Backup.objects.get()
    assert (row.outcome, row.destination_name) == ("succeeded", "disk")
    assert row.copied_at is not None
    assert (target / row.name).read_bytes() == storage.file_of(row).read_bytes()


def test_no_secret_is_in_a_row_a_log_or_an_audit_line(finish, target, caplog, capsys):
    fill()
    made(target, passphrase=KEPT)
    backups.request(PERSON, passphrase=PASSPHRASE, destination_id=BackupDestination.objects.get().pk)
    texts = _all_rows()
    finish(Operation.objects.get(kind="backup").pk)
    texts += _all_rows()
    with connection.cursor() as cursor:
        cursor.execute("SELECT text FROM jobs_operationevent")
        texts.append(json.dumps(cursor.fetchall(), cls=DjangoJSONEncoder))
    texts += [caplog.text, capsys.readouterr().out]
    assert not [word for word in (PASSPHRASE, KEPT, CANARY) if any(word in text for text in texts)]


def _all_rows():
    models = (Backup, BackupDestination, Operation, AuditLine)
    return [str({name: _text(value) for name, value in row.items()}) for one in models for row in one.objects.values()]


def _text(value):
    return bytes(value).decode("latin-1") if isinstance(value, bytes | memoryview) else value


@pytest.mark.parametrize("passphrase", [None, ""])
def test_without_a_passphrase_nothing_is_made_unless_that_is_meant(finish, passphrase):
    fill()
    with pytest.raises(InvalidRequest, match="Enter a passphrase"):
        backups.request(PERSON, passphrase=passphrase)
    finish(backups.request(PERSON, passphrase=passphrase, with_secrets=False).pk)
    assert not Backup.objects.get().with_secrets


def test_weak_passphrases_unknown_destinations_and_a_second_one_are_refused():
    fill()
    with pytest.raises(WeakPassword):
        backups.request(PERSON, passphrase="short")
    with pytest.raises(NotFound):
        backups.request(PERSON, passphrase=PASSPHRASE, destination_id=99)
    backups.request(PERSON, passphrase=PASSPHRASE)
    with pytest.raises(Conflict, match="Wait for its end"):
        backups.request(PERSON, passphrase=PASSPHRASE)
    assert Backup.objects.count() == 1


def test_a_copy_that_fails_leaves_the_file_of_the_master_and_says_why(finish, data, target):
    fill()
    destination = made(target)
    target.rmdir()
    ended = finish(backups.request(PERSON, passphrase=PASSPHRASE, destination_id=destination.pk).pk)
    row = Backup.objects.get()
    assert (ended.outcome, row.outcome, row.error["code"]) == ("failed", "failed", "backup_destination_failed")
    assert "is not a folder" in row.error["detail"]
    assert row.passphrase_sealed is None
    assert files(data / "backups") == [row.name]


def test_a_disk_that_fails_is_named(finish, monkeypatch):
    fill()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(making, "write", full)
    ended = finish(backups.request(PERSON, passphrase=PASSPHRASE).pk)
    assert (ended.outcome, ended.error["code"]) == ("failed", "backup_disk_failed")
    assert "No space left" in ended.error["detail"]


def test_a_cancelled_one_leaves_no_file(data, target, finish):
    fill()
    destination = made(target)
    operation = backups.request(PERSON, passphrase=PASSPHRASE, destination_id=destination.pk)
    worker.run_step(operation.pk)
    assert files(data / "backups") != []
    cancellation.request(operation.pk, PERSON)
    assert finish(operation.pk).outcome == "cancelled"
    assert (files(data / "backups"), files(target)) == ([], [])
    assert Backup.objects.get().outcome == "cancelled"


def test_one_that_stays_on_the_master_is_cancelled_until_it_is_done(data, finish):
    fill()
    operation = backups.request(PERSON, passphrase=PASSPHRASE)
    worker.run_step(operation.pk)
    cancellation.request(operation.pk, PERSON)
    assert finish(operation.pk).outcome == "cancelled"
    assert files(data / "backups") == []


def test_the_retention_deletes_what_this_master_made_and_nothing_else(quick, finish, data, target):
    fill()
    destination = made(target, keep_count=2)
    for row in good(destination, 4):
        (target / row.name).write_text("old")
    (target / "mirbad-19990101T000000Z-abcdef.zip").write_text("of another master")
    finish(backups.request(PERSON, passphrase=PASSPHRASE, destination_id=destination.pk).pk)
    new = Backup.objects.first()
    assert files(target) == sorted(["mirbad-19990101T000000Z-abcdef.zip", "mirbad-old-3.zip", new.name])
    assert files(data / "backups") == sorted(["mirbad-old-3.zip", new.name])
    assert set(Backup.objects.values_list("name", flat=True)) == {"mirbad-old-3.zip", new.name}


def test_a_backup_that_failed_lets_no_good_one_go(quick, finish, target, monkeypatch):
    fill()
    destination = made(target, keep_count=1, keep_days=1)
    for row in good(destination, 2):
        (target / row.name).write_text("old")

    def broken(*_):
        raise BackupDestinationFailed("The share is full.")

    monkeypatch.setattr(storage, "copy", broken)
    finish(backups.request(PERSON, passphrase=PASSPHRASE, destination_id=destination.pk).pk)
    assert files(target) == ["mirbad-old-0.zip", "mirbad-old-1.zip"]


def test_a_fenced_master_makes_backups_and_deletes_none(quick, finish, target):
    fill()
    destination = made(target, keep_count=1)
    for row in good(destination, 3):
        (target / row.name).write_text("old")
    MasterIdentity.objects.update(fenced_reason="another master took over")
    finish(backups.request(PERSON, passphrase=PASSPHRASE, destination_id=destination.pk).pk)
    assert len(files(target)) == 4


def test_a_backup_is_deleted_with_its_copy(quick, finish, data, target):
    fill()
    destination = made(target)
    finish(backups.request(PERSON, passphrase=PASSPHRASE, destination_id=destination.pk).pk)
    row = Backup.objects.get()
    operation = backups.delete(row.pk, PERSON)
    assert backups.delete(row.pk, PERSON).pk == operation.pk
    assert finish(operation.pk).outcome == "succeeded"
    assert (files(data / "backups"), files(target), Backup.objects.count()) == ([], [], 0)
    assert AuditLine.objects.filter(action="backup.delete", result="succeeded", target=row.name).exists()
    with pytest.raises(NotFound):
        backups.delete(row.pk, PERSON)


def test_a_copy_that_cannot_be_deleted_keeps_the_row(quick, finish, target):
    fill()
    destination = made(target)
    finish(backups.request(PERSON, passphrase=PASSPHRASE, destination_id=destination.pk).pk)
    row = Backup.objects.get()
    (target / row.name).unlink()
    target.rmdir()
    ended = finish(backups.delete(row.pk, PERSON).pk)
    assert (ended.outcome, ended.error["code"]) == ("failed", "backup_destination_failed")
    assert Backup.objects.exists()
    backup_destinations.delete(destination.pk, PERSON)
    assert finish(backups.delete(row.pk, PERSON).pk).outcome == "succeeded"
    assert not Backup.objects.exists()


def test_an_open_backup_is_not_deleted_but_cancelled(target):
    fill()
    destination = made(target)
    backups.request(PERSON, passphrase=PASSPHRASE, destination_id=destination.pk)
    with pytest.raises(Conflict, match="Cancel it"):
        backups.delete(Backup.objects.get().pk, PERSON)
    with pytest.raises(Conflict, match="Wait for its end"):
        backup_destinations.delete(destination.pk, PERSON)


# -- destinations ------------------------------------------------------------------------------------------------------


def test_a_stored_password_is_not_sent_to_another_place():
    smb = {"host": "nas", "share": "backup", "username": "ada"}
    values = {"name": "nas", "kind": "smb", "settings": smb}
    row = backup_destinations.create(DestinationInput(**values, secret="a password"), PERSON)
    backup_destinations.update(row.pk, DestinationInput(**values, keep_count=3), PERSON)
    row.refresh_from_db()
    assert (storage.secret_of(row), row.keep_count) == ("a password", 3)
    moved = {**values, "settings": {**smb, "host": "elsewhere"}}
    with pytest.raises(InvalidRequest, match="again"):
        backup_destinations.update(row.pk, DestinationInput(**moved), PERSON)
    backup_destinations.update(row.pk, DestinationInput(**moved, secret="entered again"), PERSON)
    row.refresh_from_db()
    assert row.settings["host"] == "elsewhere"
    assert "a password" not in repr(DestinationInput(**values, secret="a password"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": " "}, "name"),
        ({"schedule": "every day"}, "schedule"),
        ({"schedule": "0 0 31 2 *"}, "schedule"),
        ({"schedule": "*/5 * * * * *"}, "schedule"),
        ({"keep_count": 0}, "keep_count"),
        ({"warn_after_hours": 10**6}, "warn_after_hours"),
        ({"kind": "smb", "settings": {"host": "nas", "share": "b", "username": "u"}}, "secret"),
        (
            {"kind": "smb", "settings": {"host": "nas", "share": "b", "username": "u"}, "secret": "a\nusername=root"},
            "secret",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(target, change, field):
    values = {"name": "disk", "kind": "folder", "settings": {"path": str(target)}, **change}
    with pytest.raises(InvalidRequest) as refused:
        backup_destinations.create(DestinationInput(**values), PERSON)
    assert [problem["field"] for problem in refused.value.problems] == [field]
    assert not BackupDestination.objects.exists()


def test_the_data_folder_is_no_destination_and_a_name_is_there_once(data, target):
    with pytest.raises(InvalidRequest, match="inside of the data folder"):
        made(data / "backups")
    made(target)
    with pytest.raises(InvalidRequest, match="already"):
        made(target)


# -- the lease of a long step ------------------------------------------------------------------------------------------


def test_the_lease_of_a_long_step_is_renewed_until_another_worker_has_it(monkeypatch):
    fill()
    short = settings().model_copy(update={"operation_lease": timedelta(seconds=0.3)})
    monkeypatch.setattr(leases, "settings", lambda: short)
    operation = backups.request(PERSON, passphrase=PASSPHRASE)
    claimed = ledger.claim(operation.pk, "me")
    first = claimed.lease_expires_at

    def renewed():
        return Operation.objects.get(pk=operation.pk).lease_expires_at != first

    with leases.kept(claimed):
        until(renewed, "the lease is renewed")
        Operation.objects.filter(pk=operation.pk).update(fence=claimed.fence + 1, lease_owner="other")
        taken = Operation.objects.get(pk=operation.pk).lease_expires_at
    assert Operation.objects.get(pk=operation.pk).lease_expires_at == taken


def test_an_operator_cancels_no_backup(data, finish):
    fill()
    operation = backups.request(PERSON, passphrase=PASSPHRASE)
    operator = Actor("admin:0123456789ab", "olga", "operator")
    with pytest.raises(Forbidden, match="role owner"):
        cancellation.request(operation.pk, operator)
    assert finish(operation.pk).outcome == "succeeded"
    refused = AuditLine.objects.get(result="refused")
    assert (refused.action, refused.person) == ("job", "olga")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_owners_alone_ask_for_they_alone_cancel(kind):
    assert (KINDS[kind].role == "owner") is (kind in {"backup", "backup-delete", "restore"})
