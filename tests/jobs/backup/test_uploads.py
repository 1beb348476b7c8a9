"""Uploaded backups are kept privately, verified, for their person alone, and not for long."""

import os
import shutil
import stat
import time

import pytest

from jobs.backup import making, sealed, uploads
from jobs.errors import BackupUnsuitable
from mirbad.api.problems import PayloadTooLarge
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import NotFound, Unavailable
from tests.jobs.backup.fleet import PASSPHRASE, fill
from tests.models_app.things import PERSON

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)


@pytest.fixture(autouse=True)
def folder():
    found = settings().data / "uploads"
    shutil.rmtree(found, ignore_errors=True)
    yield found
    shutil.rmtree(found, ignore_errors=True)


@pytest.fixture
def content(tmp_path):
    fill(1)
    making.create(tmp_path / "fleet.backup", PASSPHRASE, PERSON)
    return (tmp_path / "fleet.backup").read_bytes()


def pieces(content, size=1000):
    return (content[start : start + size] for start in range(0, len(content), size))


def made_older(kept, seconds):
    long_ago = time.time() - seconds
    for path in (kept.path, kept.path.with_name(f"{kept.id}.json")):
        os.utime(path, (long_ago, long_ago))


def test_an_upload_is_found_again_by_its_person_with_its_passphrase(content, folder):
    kept = uploads.keep(pieces(content), "C:\\backups\\fleet\x07.backup", PASSPHRASE, "ada")
    found = uploads.find(kept.id, "ada")
    assert found == kept
    assert (found.name, found.passphrase) == ("fleet.backup", PASSPHRASE)
    assert found.path.read_bytes() == content
    assert found.manifest.counts["model"] == 1
    assert PASSPHRASE not in repr(found)


def test_files_are_private_and_the_passphrase_is_in_none_of_them(content, folder):
    uploads.keep(pieces(content), "a", PASSPHRASE, "ada")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert not any(PASSPHRASE.encode() in path.read_bytes() for path in files)


def test_a_backup_without_secrets_needs_no_passphrase(tmp_path):
    fill(1)
    making.create(tmp_path / "plain.backup", None, PERSON)
    kept = uploads.keep([(tmp_path / "plain.backup").read_bytes()], "plain", None, "ada")
    assert uploads.find(kept.id, "ada").passphrase is None


@pytest.mark.parametrize("change", [lambda text: text[:-1], lambda text: b"x" + text, lambda text: b""])
def test_a_damaged_upload_leaves_nothing(content, folder, change):
    with pytest.raises(BackupUnsuitable):
        uploads.keep([change(content)], "a", PASSPHRASE, "ada")
    assert list(folder.iterdir()) == []


def test_another_passphrase_leaves_nothing(content, folder):
    with pytest.raises(BackupUnsuitable, match="passphrase"):
        uploads.keep([content], "a", "another one", "ada")
    assert list(folder.iterdir()) == []


def test_a_client_that_leaves_in_the_middle_leaves_nothing(content, folder):
    def broken():
        yield content[:100]
        raise ConnectionError

    with pytest.raises(ConnectionError):
        uploads.keep(broken(), "a", PASSPHRASE, "ada")
    assert list(folder.iterdir()) == []


def test_too_many_bytes_are_refused_where_the_limit_is(content, folder, monkeypatch):
    monkeypatch.setattr(uploads, "MOST_BYTES", 3000)
    taken = []

    def endless():
        while True:
            taken.append(1000)
            yield b"0" * 1000

    with pytest.raises(PayloadTooLarge):
        uploads.keep(endless(), "a", PASSPHRASE, "ada")
    assert sum(taken) == 4000
    assert list(folder.iterdir()) == []


def test_a_full_disk_is_said(content, folder, monkeypatch):
    monkeypatch.setattr(uploads, "_FREE_BYTES", 2**60)
    with pytest.raises(Unavailable, match="Free some space"):
        uploads.keep([content], "a", PASSPHRASE, "ada")
    assert list(folder.iterdir()) == []


def test_another_person_finds_nothing(content):
    kept = uploads.keep([content], "a", PASSPHRASE, "ada")
    with pytest.raises(NotFound, match="Upload it again"):
        uploads.find(kept.id, "eve")


@pytest.mark.parametrize("upload_id", ["", "../secrets/secret-key", "x" * 32, "../" + "x" * 29])
def test_an_id_that_was_not_given_out_finds_nothing(folder, upload_id):
    with pytest.raises(NotFound):
        uploads.find(upload_id, "ada")
    uploads.forget(upload_id)


def test_a_forgotten_upload_is_gone(content, folder):
    kept = uploads.keep([content], "a", PASSPHRASE, "ada")
    uploads.forget(kept.id)
    uploads.forget(kept.id)
    assert list(folder.iterdir()) == []


def test_after_an_hour_an_upload_is_not_found_and_the_next_one_removes_it(content, folder):
    kept = uploads.keep([content], "a", PASSPHRASE, "ada")
    made_older(kept, 3601)
    with pytest.raises(NotFound):
        uploads.find(kept.id, "ada")
    newer = uploads.keep([content], "b", PASSPHRASE, "ada")
    assert {path.name.partition(".")[0] for path in folder.iterdir()} == {newer.id}


def test_of_one_person_the_oldest_go_and_those_of_another_stay(content, folder):
    other = uploads.keep([content], "theirs", PASSPHRASE, "bob")
    kept = []
    for number in range(uploads.MOST_OF_A_PERSON + 1):
        kept.append(uploads.keep([content], f"{number}", PASSPHRASE, "ada"))
        made_older(kept[-1], 100 - number)
    names = {path.name for path in folder.iterdir() if path.suffix != ".json"}
    assert names == {other.id, *(one.id for one in kept[1:])}
    assert len(list(folder.iterdir())) == 2 * len(names)


def test_an_upload_under_another_secret_key_is_not_opened(content, monkeypatch):
    kept = uploads.keep([content], "a", PASSPHRASE, "ada")
    note = kept.path.with_name(f"{kept.id}.json")
    other = uploads.keep([content], "b", PASSPHRASE, "ada")
    other.path.with_name(f"{other.id}.json").write_text(note.read_text())
    with pytest.raises(Exception, match="cannot be decrypted"):
        uploads.find(other.id, "ada")


def test_a_refusal_names_the_file_of_the_person():
    with pytest.raises(BackupUnsuitable, match=r"holiday\.jpg is not a backup of Mirbad") as refused:
        uploads.keep([b"no backup"], "holiday.jpg", None, "ada")
    assert ".part" not in refused.value.detail
    assert refused.value.detail.endswith("Upload it again, or choose another file.")
