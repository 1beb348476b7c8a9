"""Backups and their destinations on /api: for owners, secrets are taken and never returned, files are streamed."""

import asyncio
import json
from datetime import timedelta

import pytest
from django.test import AsyncClient

from audit.models import AuditLine
from jobs import worker
from jobs.backup import freshness, sealed, storage
from jobs.backup import metrics as backup_metrics
from jobs.models import Backup, BackupDestination, Operation
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.tasking import heartbeat
from nodes.pki import authority

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]

PASSPHRASE = "correct horse battery staple"
SMB = {"name": "nas", "kind": "smb", "settings": {"host": "nas", "share": "b", "username": "u"}, "secret": "pw of smb"}


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)
    own = settings().model_copy(update={"data": tmp_path / "data"})
    monkeypatch.setattr(storage, "settings", lambda: own)
    authority.ensure()


def send(client, method, path, body=None):
    return client.generic(method, path, json.dumps(body if body is not None else {}), content_type="application/json")


def code_of(response):
    return response.status_code, response.json()["code"]


def make(client, **body):
    response = send(client, "POST", "/api/backups", {"passphrase": PASSPHRASE, **body})
    assert response.status_code == 202, response.content
    worker.run(response.json()["id"])
    return response.json()["backupId"]


async def _fetch(client, path):
    response = await client.get(path)
    if not response.streaming:
        return response, [response.content]
    return response, [piece async for piece in response.streaming_content]


def fetch(user, path):
    """A file over the asynchronous stack, as uvicorn serves it."""
    client = AsyncClient()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return asyncio.run(_fetch(client, path))


def test_a_backup_is_made_read_downloaded_and_deleted(owner, monkeypatch):
    monkeypatch.setattr("jobs.api.backups._PIECE_BYTES", 1000)
    number = make(owner.client)
    row = Backup.objects.get(pk=number)
    shown = owner.client.get(f"/api/backups/{number}").json()
    assert (shown["outcome"], shown["withSecrets"], shown["onMaster"]) == ("succeeded", True, True)
    assert shown["manifest"]["counts"]["master"] == 1
    assert owner.client.get("/api/backups").json()["items"][0]["name"] == row.name
    response, pieces = fetch(owner.user, f"/api/backups/{number}/download")
    assert b"".join(pieces) == storage.file_of(row).read_bytes()
    assert len(pieces) > 1, "it was read at once"
    assert response["Cache-Control"] == "no-store"
    assert response["Content-Disposition"] == f'attachment; filename="{row.name}"'
    assert int(response["Content-Length"]) == row.bytes
    assert AuditLine.objects.filter(action="backup", detail="downloaded", target=row.name).count() == 1
    deleted = send(owner.client, "DELETE", f"/api/backups/{number}")
    assert deleted.status_code == 202
    worker.run(deleted.json()["id"])
    assert code_of(owner.client.get(f"/api/backups/{number}")) == (404, "not_found")


def test_a_file_that_is_gone_is_not_found_whatever_is_accepted(owner):
    number = make(owner.client)
    storage.file_of(Backup.objects.get()).unlink()
    for accept in ("*/*", "application/zip"):
        response = owner.client.get(f"/api/backups/{number}/download", headers={"Accept": accept})
        assert code_of(response) == (404, "not_found")
    assert owner.client.get(f"/api/backups/{number}").json()["onMaster"] is False


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"passphrase": "short"}, "weak_password"),
        ({"passphrase": PASSPHRASE, "destinationId": 99}, "not_found"),
        ({"passphrase": PASSPHRASE, "what": 1}, "invalid_request"),
    ],
)
def test_what_cannot_be_is_refused_with_its_code_and_recorded(owner, body, code):
    assert code_of(send(owner.client, "POST", "/api/backups", body))[1] == code
    assert not Backup.objects.exists()
    assert AuditLine.objects.filter(action="backup", result="refused").exists()


def test_a_second_one_names_the_operation_that_is_open(owner):
    first = send(owner.client, "POST", "/api/backups", {"passphrase": PASSPHRASE})
    second = send(owner.client, "POST", "/api/backups", {"passphrase": PASSPHRASE})
    assert code_of(second) == (409, "invalid_state")
    assert second.json()["operationId"] == first.json()["id"]
    assert PASSPHRASE not in str(list(Operation.objects.values()))


def test_while_log_in_is_disabled_nobody_takes_secrets(owner, with_token, monkeypatch):
    number = make(owner.client)
    monkeypatch.setattr("mirbad.accounts.permissions.login_is_disabled", lambda: True)
    for client in (owner.client, with_token("owner")):
        assert send(client, "POST", "/api/backups", {"passphrase": PASSPHRASE}).status_code == 403
        assert client.get(f"/api/backups/{number}/download").status_code == 403
        assert send(client, "POST", "/api/backups/destinations", SMB).status_code == 403


def test_a_destination_is_created_changed_and_deleted_and_its_secrets_stay_inside(owner):
    made = send(owner.client, "POST", "/api/backups/destinations", {**SMB, "passphrase": PASSPHRASE})
    assert made.status_code == 201, made.content
    path = f"/api/backups/destinations/{made.json()['id']}"
    changed = send(owner.client, "PATCH", path, {"keepCount": 7, "schedule": "30 2 * * *"})
    assert changed.status_code == 200, changed.content
    shown = owner.client.get(path).json()
    assert (shown["keepCount"], shown["hasSecret"], shown["keepsPassphrase"]) == (7, True, True)
    assert shown["settings"]["host"] == "nas"
    texts = str([one.content for one in (made, changed, owner.client.get("/api/backups/destinations"))])
    assert "pw of smb" not in texts
    assert PASSPHRASE not in texts
    moved = send(owner.client, "PATCH", path, {"settings": {**SMB["settings"], "host": "evil"}})
    assert code_of(moved) == (400, "invalid_request")
    assert storage.secret_of(BackupDestination.objects.get()) == "pw of smb"
    removed = send(owner.client, "PATCH", path, {"passphrase": ""})
    assert removed.json()["keepsPassphrase"] is False
    assert send(owner.client, "DELETE", path).status_code == 204
    assert code_of(owner.client.get(path)) == (404, "not_found")


def test_a_destination_is_tried(owner, tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    body = {"name": "disk", "kind": "folder", "settings": {"path": str(folder)}}
    number = send(owner.client, "POST", "/api/backups/destinations", body).json()["id"]
    path = f"/api/backups/destinations/{number}/try"
    assert send(owner.client, "POST", path).status_code == 204
    assert list(folder.iterdir()) == []
    folder.rmdir()
    assert code_of(send(owner.client, "POST", path)) == (409, "backup_destination_failed")


# -- age ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stale(owner):
    """A destination whose last good backup is older than it should be."""
    now = clock.now()
    row = BackupDestination.objects.create(
        name='the "nas"', kind="folder", settings={"kind": "folder", "path": "/mnt"}, warn_after_hours=24,
        warn_from=now - timedelta(days=9),
    )  # fmt: skip
    at = now - timedelta(hours=30)
    Backup.objects.create(
        name="a.zip", destination=row, destination_name=row.name, instance_id="x", with_secrets=True, actor="config",
        outcome="succeeded", made_at=at, copied_at=at, finished_at=at + timedelta(seconds=5), bytes=1234,
        operation_id_text="op-a",
    )  # fmt: skip
    Backup.objects.update(created_at=at)
    return row


def test_readiness_stays_and_warns_without_a_name(stale, anybody, monkeypatch):
    monkeypatch.setattr(heartbeat, "alive", lambda: dict.fromkeys(heartbeat.PROCESSES, 1.0))
    answer = anybody.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["warnings"] == ["The last good backup is older than it should be."]
    BackupDestination.objects.update(warn_after_hours=48)
    assert anybody.get("/readyz").json()["warnings"] == []


def test_the_overview_the_page_and_the_status_say_it(stale, owner):
    sentence = freshness.warnings()[0]
    assert "should not be older than 24 h" in sentence
    for path in ("/", "/backup"):
        assert "should not be older than 24 h" in owner.client.get(path).content.decode()
    status = owner.client.get("/api/status").json()
    assert status["warnings"] == [sentence]
    assert status["lastBackupAt"] is not None


def test_metrics_have_no_line_for_what_never_happened(stale, owner):
    text = owner.client.get("/metrics").content.decode()
    at = Backup.objects.get().made_at.timestamp()
    assert f"\nmirbad_backup_last_success_timestamp_seconds {at!r}\n" in text
    assert "\nmirbad_backup_last_result 1.0\n" in text
    assert "\nmirbad_backup_last_duration_seconds 5.0\n" in text
    assert "\nmirbad_backup_last_bytes 1234.0\n" in text
    assert 'mirbad_backup_destination_stale{destination="the \\"nas\\""} 1.0\n' in text
    Backup.objects.update(outcome="failed")
    text = backup_metrics.render().decode()
    assert "\nmirbad_backup_last_success_timestamp_seconds" not in text
    assert "mirbad_backup_last_result 0.0\n" in text
    Backup.objects.all().delete()
    BackupDestination.objects.all().delete()
    assert backup_metrics.render() == b""
