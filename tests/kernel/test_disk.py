"""A disk that takes nothing more is named before somebody loses work by it."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from mirbad.kernel import disk

pytestmark = pytest.mark.unit

NAME = "the data folder"
ASK = (
    "import sys, pathlib; from mirbad.kernel.disk import unwritable_reason;"
    "print(unwritable_reason(pathlib.Path(sys.argv[1]), 'it'))"
)


def test_a_folder_that_can_be_written_is_nothing_to_speak_of(tmp_path):
    assert disk.unwritable_reason(tmp_path, NAME) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_named(tmp_path):
    assert disk.unwritable_reason(tmp_path / "gone", NAME).startswith("The data folder does not exist.")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "The disk of the data folder is full"),
        (errno.EDQUOT, "The disk quota of the data folder is used up"),
        (errno.EROFS, "The disk of the data folder is read-only"),
        (errno.EACCES, "The data folder is not writable."),
        (errno.EIO, "input/output error"),
        (errno.EMFILE, "The data folder is not writable: Too many open files."),
    ],
)
def test_each_trouble_has_its_words(tmp_path, monkeypatch, number, words):
    def fail(**_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    assert words in disk.unwritable_reason(tmp_path, NAME)


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        ("mount -t tmpfs -o size=32k none $0", "The disk of it is full"),
        ("mount -t tmpfs -o size=1m none $0", "The disk of it is almost full"),
        ("mount -t tmpfs -o size=64m,ro none $0", "The disk of it is read-only"),
        ("mount -t tmpfs -o size=64m none $0", ""),
    ],
)
def test_real_disks_are_seen_as_they_are(tmp_path, mount, words):
    if os.getuid() or shutil.which("unshare") is None:
        pytest.skip("only root mounts disks")
    script = f'{mount} && exec "$1" -c "$2" "$0"'
    command = ["unshare", "-m", "sh", "-c", script, str(tmp_path), sys.executable, ASK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "permission denied" in done.stderr.lower() or "not permitted" in done.stderr.lower():
        pytest.skip("this machine lets nobody mount disks")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(words)
    assert bool(done.stdout.strip()) is bool(words)
