"""A backup of everything, opened again; the same on SQLite and PostgreSQL, while others write."""

import gc
import io
import json
import os
import stat
import threading
import zipfile

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection

from audit.models import AuditLine
from jobs.backup import collect, container, making, sealed, verification
from jobs.errors import BackupExists, BackupUnsuitable
from mirbad.accounts.errors import WeakPassword
from mirbad.accounts.models import AdminToken
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from models_app.models import ApiKey, ModelDefinition
from nodes.models import Authority, MasterIdentity, Node
from tests.jobs.backup.fleet import CANARY, PASSPHRASE, fill, read
from tests.models_app.things import PERSON, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fleet.backup"


def test_a_backup_holds_everything_and_says_how_much(path):
    fill()
    made = making.create(path, PASSPHRASE, PERSON)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert made.manifest == verification.inspect(path) == verification.verify(path, PASSPHRASE)
    counts = {"node": 1, "model": 3, "binding": 1, "master": 1, "authority": 1, "member": 2, "revoked-key": 1}
    counts |= {"person": 1, "admin-token": 1, "api-key": 1, "model-secrets": 3}
    assert made.manifest.counts == counts
    assert made.manifest.instance_id == MasterIdentity.objects.get().instance_id
    assert made.manifest.ca_sha256 == Authority.objects.get().sha256
    line = AuditLine.objects.get(action="backup")
    assert (line.actor, line.target) == (PERSON.name, "fleet.backup")
    assert line.detail == f"{made.bytes} bytes, with secrets"


def test_the_records_are_those_of_the_rows(path):
    fill()
    making.create(path, PASSPHRASE, PERSON)
    found = read(path)
    node = found["node"][0]
    assert (node.id, node.uid, node.labels) == ("pc-1", Node.objects.get(pk="pc-1").uid, {"room": "attic"})
    assert [(gpu.uuid, gpu.memory_bytes, gpu.reserve_bytes) for gpu in node.gpus] == [
        (f"GPU-{index}", 24 * 2**30, 2**30) for index in range(2)
    ]
    first = found["model"][0]
    assert (first.id, first.tags, first.secret_env_names) == ("m0", ("chat",), ("HF_TOKEN",))
    placement = first.placements[0]
    assert (placement.node_id, placement.node_uid) == ("pc-1", node.uid)
    assert (placement.running, placement.start_seconds) == (True, 12.5)
    assert [gpu.memory_bytes for gpu in placement.gpus] == [24 * 2**30]
    assert [model.placements[0].running for model in found["model"]] == [True, False, False]
    assert [(one.model_id, one.env) for one in found["model-secrets"]] == [
        (f"m{number}", {"HF_TOKEN": f"{CANARY}-{number}"}) for number in range(3)
    ]
    person, token, key = found["person"][0], found["admin-token"][0], found["api-key"][0]
    assert (person.password, person.groups) == (User.objects.get().password, ("operator",))
    assert token.digest == AdminToken.objects.get().digest
    assert key.digest == ApiKey.objects.get().digest
    assert {member.id: member.lifecycle for member in found["member"]} == {"gone": "revoked", "pc-1": "approved"}
    assert [pin.spki_sha256 for member in found["member"] for pin in member.pins] == ["a" * 64]
    assert "PRIVATE KEY" in found["master"][0].client_key_pem
    assert "PRIVATE KEY" in found["authority"][0].key_pem


def test_no_secret_is_in_clear_anywhere(path, capsys, caplog):
    secrets = fill()
    making.create(path, PASSPHRASE, PERSON)
    texts = [path.read_bytes(), capsys.readouterr().out.encode(), caplog.text.encode()]
    with zipfile.ZipFile(path) as archive:
        texts += [archive.read(name) for name in archive.namelist()]
    texts += [json.dumps(list(AuditLine.objects.values_list("detail", "target"))).encode()]
    hidden = [CANARY, *secrets.values(), PASSPHRASE, "PRIVATE KEY", User.objects.get().password]
    hidden += [ApiKey.objects.get().digest, AdminToken.objects.get().digest, "a" * 64]
    assert [word[:12] for word in hidden if any(word.encode() in text for text in texts)] == []


def test_without_a_passphrase_there_are_no_secrets(path):
    fill()
    made = making.create(path, None, PERSON)
    assert made.manifest.counts == {"node": 1, "model": 3}
    assert not made.manifest.has_secrets
    assert not made.manifest.ca_sha256
    assert verification.verify(path, None) == made.manifest
    with pytest.raises(BackupUnsuitable, match="made without secrets"):
        verification.verify(path, PASSPHRASE)


def test_the_key_of_the_ca_can_be_left_out(path, monkeypatch):
    fill()
    without = settings().model_copy(update={"backup_include_ca": False})
    monkeypatch.setattr(collect, "settings", lambda: without)
    assert not making.create(path, PASSPHRASE, PERSON).manifest.ca_sha256
    assert read(path)["authority"][0].key_pem is None


def test_a_file_is_never_replaced_and_a_weak_passphrase_never_taken(path):
    fill()
    path.write_text("mine")
    with pytest.raises(BackupExists):
        making.create(path, PASSPHRASE, PERSON)
    assert path.read_text() == "mine"
    path.unlink()
    with pytest.raises(WeakPassword, match="of the backup"):
        making.create(path, "short", PERSON)
    assert list(path.parent.iterdir()) == []
    assert not AuditLine.objects.filter(action="backup").exists()


def test_a_backup_that_reads_differently_is_no_backup(path, monkeypatch):
    fill()
    write = container.BackupWriter.finish

    def finish(self, manifest):
        write(self, manifest.model_copy(update={"counts": {**manifest.counts, "model": 4}}))

    monkeypatch.setattr(container.BackupWriter, "finish", finish)
    with pytest.raises(BackupUnsuitable, match="the records that its manifest counts"):
        making.create(path, PASSPHRASE, PERSON)
    assert list(path.parent.iterdir()) == []


def test_all_rows_are_of_one_moment_and_writers_do_not_wait(path, monkeypatch):
    fill(models=1)
    real, started = collect.secrets, []

    def secrets():
        def change():
            placed("later", "pc-1")
            ModelDefinition.objects.filter(pk="m0").update(secret_env_sealed=None)
            ApiKey.objects.all().update(revoked_at=clock.now())
            connection.close()

        writer = threading.Thread(target=change)
        writer.start()
        writer.join(15)
        started.append(writer.is_alive())
        return real()

    monkeypatch.setattr(collect, "secrets", secrets)
    making.create(path, PASSPHRASE, PERSON)
    assert started == [False], "the writer had to wait"
    found = read(path)
    assert [model.id for model in found["model"]] == ["m0"]
    assert [one.model_id for one in found["model-secrets"]] == ["m0"]
    assert found["api-key"][0].revoked_at is None
    assert ModelDefinition.objects.filter(pk="later").exists()


def test_queries_do_not_grow_with_the_fleet(path, django_assert_max_num_queries):
    fill(models=40)
    with django_assert_max_num_queries(32):
        making.create(path, PASSPHRASE, PERSON)


def command(*words, **options):
    out = io.StringIO()
    call_command("backup", *words, stdout=out, stderr=out, **options)
    return out.getvalue()


def test_the_command_makes_shows_and_opens_one(path, tmp_path, monkeypatch):
    fill()
    (tmp_path / "passphrase").write_text(f"{PASSPHRASE}\n")
    word = ("--passphrase-file", str(tmp_path / "passphrase"))
    assert "written and opened again" in command("create", str(path), *word)
    shown = command("inspect", str(path))
    assert "3 model" in shown
    assert "Secrets: sealed, with the key of the CA" in shown
    assert "Every part was read and opened." in command("verify", str(path), *word)
    assert "Every part was read." in command("verify", str(path), "--without-secrets")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSPHRASE}\n"))
    assert "opened" in command("verify", str(path), "--passphrase-file", "-")
    monkeypatch.setattr("getpass.getpass", lambda _: "another passphrase")
    with pytest.raises(CommandError, match="the passphrase is another one"):
        command("verify", str(path))
    with pytest.raises(CommandError, match="already exists"):
        command("create", str(path), *word)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["one passphrase of mine", "another passphrase"], "do not match"),
        (["", ""], "is empty"),
        (["short", "short"], "of the backup is refused"),
    ],
)
def test_a_passphrase_is_typed_twice(path, monkeypatch, typed, said):
    fill()
    monkeypatch.setattr("getpass.getpass", lambda _: typed.pop(0))
    with pytest.raises(CommandError, match=said):
        command("create", str(path))
    assert not path.exists()


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_a_file_that_is_not_there_is_named(path, verb):
    also = ["--without-secrets"] if verb == "verify" else []
    with pytest.raises(CommandError, match=r"fleet\.backup: No such file"):
        command(verb, str(path), *also)


def test_an_interrupted_backup_leaves_nothing_open_and_nothing_behind(path, monkeypatch):
    fill()

    def broken():
        yield from ()
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(collect, "secrets", broken)
    with pytest.raises(OSError, match="Input/output"):
        making.create(path, PASSPHRASE, PERSON)
    assert list(path.parent.iterdir()) == []
    gc.collect()


def test_a_connection_that_was_not_used_yet_is_enough(path):
    fill()
    connection.close()
    connection.connection = None
    vars(connection).pop("transaction_mode", None)
    assert making.create(path, None, PERSON).manifest.counts["model"] == 3


def test_a_disk_that_is_full_leaves_no_file(path, monkeypatch):
    fill()

    def full(_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(container.os, "fsync", full)
    with pytest.raises(CommandError, match="No space left"):
        command("create", str(path), "--without-secrets")
    assert list(path.parent.iterdir()) == []
