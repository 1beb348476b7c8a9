"""Copies appear whole or not at all, at every kind of destination, whatever is killed; refusals say what to do."""

import hashlib
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jobs.backup.destinations import errand, mounted
from jobs.backup.destinations.errand import DestinationErrand, ErrandCancelled
from jobs.backup.destinations.settings import (
    FolderDestination,
    NfsDestination,
    SmbDestination,
    parse,
)
from jobs.errors import BackupDestinationFailed
from mirbad.kernel.errors import InvalidRequest
from tests.jobs.backup import shares
from tests.jobs.backup.made import SECRET
from tests.waiting import until

pytestmark = pytest.mark.app

ROOT = Path(errand.__file__).resolve().parents[3]
needs_mounts = pytest.mark.skipif(not shares.may_mount(), reason="needs root to mount")


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_copy_is_whole_and_private_and_a_repetition_changes_nothing(do, file, target):
    settings = FolderDestination(path=str(target))
    (target / ".a.zip.part-dead").write_bytes(b"of a copy that was interrupted")
    do("put", settings)
    first = (target / "a.zip").stat()
    assert (target / "a.zip").read_bytes() == file.read_bytes()
    assert oct(first.st_mode & 0o777) == "0o600"
    do("put", settings)
    assert (target / "a.zip").stat().st_mtime_ns == first.st_mtime_ns
    assert names(target) == ["a.zip"]
    do("remove", settings)
    do("remove", settings)
    assert names(target) == []


def test_a_file_of_somebody_else_is_not_replaced(do, target):
    (target / "a.zip").write_text("mine")
    with pytest.raises(BackupDestinationFailed, match="not replaced"):
        do("put", FolderDestination(path=str(target)))
    assert (target / "a.zip").read_text() == "mine"


def test_trying_leaves_nothing(do, target):
    do("try", FolderDestination(path=str(target)))
    assert names(target) == []


def test_a_folder_that_is_not_there_is_not_made(do, tmp_path):
    with pytest.raises(BackupDestinationFailed, match="is not a folder"):
        do("put", FolderDestination(path=str(tmp_path / "away")))
    assert not (tmp_path / "away").exists()


def test_a_full_disk_is_named_and_leaves_no_part(do, tmp_path):
    if not shares.may_mount():
        pytest.skip("needs root to mount")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], check=True)
    try:
        with pytest.raises(BackupDestinationFailed, match="No space left"):
            do("put", FolderDestination(path=str(small)))
        assert names(small) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.faults
def test_killed_at_any_time_there_is_the_whole_file_or_none(file, target):
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    wanted = DestinationErrand(
        verb="put", settings=FolderDestination(path=str(target)), file=str(file), names=("a.zip",), sha256=digest
    )
    delays, found = random.Random(9), []
    for _ in range(20):
        (target / "a.zip").unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "jobs.backup.destinations"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        process.stdin.write(wanted.model_dump_json().encode() + b"\n")
        process.stdin.flush()
        timer = threading.Timer(delays.uniform(0.3, 0.6), process.kill)
        timer.start()
        process.wait()
        timer.cancel()
        process.stdin.close()
        process.stdout.close()
        copy = target / "a.zip"
        found.append(hashlib.sha256(copy.read_bytes()).hexdigest() if copy.exists() else "none")
    assert set(found) <= {"none", digest}
    errand.run(wanted)
    assert names(target) == ["a.zip"], "what the killed ones left was not removed"


def test_its_process_ends_with_the_one_that_sent_it(file, target):
    wanted = DestinationErrand(
        verb="put", settings=FolderDestination(path=str(target)), file="/dev/zero", names=("a",), sha256="0" * 64
    )
    # An endless source on purpose: only the end of its sender ends this process.
    process = subprocess.Popen([sys.executable, "-m", "jobs.backup.destinations"], cwd=ROOT, stdin=subprocess.PIPE)
    process.stdin.write(wanted.model_dump_json().encode() + b"\n")
    process.stdin.flush()
    until(lambda: any(target.iterdir()), "the copy begins")
    process.stdin.close()
    assert process.wait(10) == 1


def test_it_is_ended_when_it_takes_too_long_and_on_request(do, target):
    settings = FolderDestination(path=str(target))
    with pytest.raises(BackupDestinationFailed, match="did not answer within 1 s"):
        do("put", settings, file="/dev/zero", seconds=1.0)
    asked = iter([False, True])
    with pytest.raises(ErrandCancelled):
        do("put", settings, file="/dev/zero", is_cancelled=lambda: next(asked))
    assert "a.zip" not in names(target)


@needs_mounts
def test_an_smb_share_is_mounted_for_the_errand_alone(do, tmp_path, target, monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"])
    log = shares.install(tmp_path / "tools", target)
    (target / "mirbad").mkdir()
    settings = SmbDestination(host="nas", share="backup", folder="mirbad", username="ada", domain="HOME")
    before = Path("/proc/self/mountinfo").read_text()
    do("put", settings)
    assert names(target / "mirbad") == ["a.zip"]
    assert (log / "mode").read_text() == "600\n"
    assert (log / "credentials").read_text() == f"username=ada\npassword={SECRET}\ndomain=HOME\n"
    arguments = (log / "arguments").read_text()
    assert SECRET not in arguments
    assert arguments.startswith("//nas/backup\n")
    assert "nosuid,nodev,noexec" in arguments
    assert Path("/proc/self/mountinfo").read_text() == before, "the mount is seen outside"
    assert names(tmp_path / "point") == [], "the password is left on a disk"


@needs_mounts
def test_a_mount_and_its_password_are_gone_when_it_is_killed(tmp_path, target, monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"])
    log = shares.install(tmp_path / "tools", target)
    (tmp_path / "point").mkdir()
    settings = SmbDestination(host="nas", share="backup", username="ada")
    values = {"secret": SECRET, "mount_point": str(tmp_path / "point"), "file": "/dev/zero", "names": ("a",)}
    wanted = DestinationErrand(verb="put", settings=settings, sha256="0" * 64, **values)
    process = subprocess.Popen([sys.executable, "-m", "jobs.backup.destinations"], cwd=ROOT, stdin=subprocess.PIPE)
    process.stdin.write(wanted.model_dump_json().encode() + b"\n")
    process.stdin.flush()
    until(lambda: any(target.iterdir()), "the copy begins")
    process.kill()
    process.wait()
    process.stdin.close()
    assert str(tmp_path / "point") not in Path("/proc/self/mountinfo").read_text()
    assert names(tmp_path / "point") == []
    assert (log / "credentials").exists()


@needs_mounts
def test_an_nfs_export_is_mounted_so_that_it_cannot_hang_for_ever(do, tmp_path, target, monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"])
    log = shares.install(tmp_path / "tools", target)
    do("put", NfsDestination(host="nas", export="/srv/backup"))
    assert names(target) == ["a.zip"]
    arguments = (log / "arguments").read_text().splitlines()
    assert arguments[0] == "nas:/srv/backup"
    assert "soft" in arguments[3].split(",")


@needs_mounts
@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("echo 'mount error(13): Permission denied' >&2; exit 32", "user name, password"),
        ("echo 'mount error(19): No such device' >&2; exit 32", "no driver"),
        ("echo 'mount error(2): No such file or directory' >&2; exit 32", "name of the share"),
        ("echo 'mount error: could not resolve address' >&2; exit 1", "Check host and share"),
        ("exit 1", "exit code 1"),
    ],
)
def test_what_the_mount_tool_refuses_says_what_to_do(do, tmp_path, target, monkeypatch, act, said):
    monkeypatch.setenv("PATH", os.environ["PATH"])
    shares.install(tmp_path / "tools", target, act)
    with pytest.raises(BackupDestinationFailed, match=said) as refused:
        do("put", SmbDestination(host="nas", share="backup", username="ada"))
    assert SECRET not in str(refused.value)


@needs_mounts
def test_a_server_that_never_answers_ends_in_time(do, tmp_path, target, monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"])
    shares.install(tmp_path / "tools", target, "exec sleep 600")
    with pytest.raises(BackupDestinationFailed, match="did not answer within 2 s"):
        do("put", NfsDestination(host="192.0.2.1", export="/srv"), seconds=2.0)


@needs_mounts
def test_a_folder_that_leads_out_of_the_share_is_refused(do, tmp_path, target, monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"])
    shares.install(tmp_path / "tools", target)
    (target / "out").symlink_to("/tmp")
    with pytest.raises(BackupDestinationFailed, match="leads out of the share"):
        do("put", NfsDestination(host="nas", export="/srv", folder="out"))
    with pytest.raises(BackupDestinationFailed, match="has no folder away"):
        do("put", NfsDestination(host="nas", export="/srv", folder="away"))


def test_a_program_that_is_not_installed_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(mounted, "_PLACES", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(BackupDestinationFailed, match=r"mount\.cifs is not installed.*Install cifs-utils"),
        mounted.opened_smb(SmbDestination(host="nas", share="b", username="u"), SECRET, tmp_path),
    ):
        pass


def test_without_the_right_to_mount_it_says_how_to_do_without(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", os.environ["PATH"])
    shares.install(tmp_path / "tools", tmp_path)
    without = ["setpriv", "--bounding-set=-sys_admin", "--"] if os.geteuid() == 0 else []
    settings = NfsDestination(host="nas", export="/srv")
    wanted = DestinationErrand(verb="try", settings=settings, mount_point=str(tmp_path))
    process = subprocess.Popen(
        [*without, sys.executable, "-m", "jobs.backup.destinations"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdin.write(wanted.model_dump_json().encode() + b"\n")
    process.stdin.flush()
    said = process.stdout.readline().decode()
    process.stdin.close()
    process.stdout.close()
    process.wait()
    assert "CAP_SYS_ADMIN" in said
    assert "/etc/fstab" in said


@pytest.mark.parametrize(
    ("kind", "values", "name"),
    [
        ("folder", {"path": "relative"}, "path"),
        ("folder", {"path": "/a/../b"}, "path"),
        ("smb", {"host": "nas,uid=0", "share": "x", "username": "u"}, "host"),
        ("smb", {"host": "nas", "share": "x,uid=0", "username": "u"}, "share"),
        ("smb", {"host": "nas", "share": "x", "username": "u\npassword=p"}, "username"),
        ("smb", {"host": "nas", "share": "x", "username": "u", "folder": "../.."}, "folder"),
        ("nfs", {"host": "-o", "export": "/x"}, "host"),
        ("nfs", {"host": "nas", "export": "x"}, "export"),
        ("s3", {"endpoint": "ftp://x", "bucket": "bbb", "accessKeyId": "k"}, "endpoint"),
        ("s3", {"endpoint": "https://u:p@x", "bucket": "bbb", "accessKeyId": "k"}, "endpoint"),
        ("s3", {"endpoint": "https://x/path", "bucket": "bbb", "accessKeyId": "k"}, "endpoint"),
        ("s3", {"endpoint": "https://x", "bucket": "B_", "accessKeyId": "k"}, "bucket"),
        ("s3", {"endpoint": "https://x", "bucket": "bbb"}, "accessKeyId"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_their_field(kind, values, name):
    with pytest.raises(InvalidRequest) as refused:
        parse(kind, values)
    assert [problem["field"] for problem in refused.value.problems] == [name]
    assert refused.value.problems[0]["message"].startswith(("Enter ", "Remove "))


@pytest.mark.parametrize(
    ("values", "name", "said"),
    [
        ({"bucket": "b" * 64, "accessKeyId": "k"}, "bucket", "3 to 63 lower-case letters"),
        ({"bucket": "bbb", "accessKeyId": "k k"}, "accessKeyId", "without spaces"),
        ({"bucket": "bbb", "accessKeyId": "k", "region": "a b"}, "region", "like us-east-1"),
        ({"bucket": "bbb", "accessKeyId": "k", "prefix": "x" * 401}, "prefix", "a shorter value"),
        ({"bucket": "bbb", "accessKeyId": "k", "host": "nas"}, "host", "no such setting. Remove it"),
    ],
)
def test_a_refused_setting_says_what_to_enter(values, name, said):
    with pytest.raises(InvalidRequest) as refused:
        parse("s3", values)
    (problem,) = refused.value.problems
    assert problem["field"] == name
    assert said in problem["message"]
