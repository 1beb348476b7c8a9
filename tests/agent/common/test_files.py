"""Atomic writes: the old or the new content, the asked mode, and no leftovers."""

import os
import stat
from pathlib import Path

import pytest

from agent.common import files

pytestmark = pytest.mark.unit


def test_content_and_mode_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.write_text(path, "old")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files.write_bytes(path, "nëw".encode(), 0o644)
    assert path.read_text() == "nëw"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fault", ["fsync", "fchmod"])
def test_a_write_that_fails_leaves_the_old_content_and_no_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    path = tmp_path / "a"
    files.write_text(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"agent.common.files.os.{fault}", full)
    with pytest.raises(OSError, match="No space"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_and_folder_are_flushed_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    real = os.fsync

    def note(descriptor: int) -> None:
        flushed.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr("agent.common.files.os.fsync", note)
    files.write_text(tmp_path / "a", "x")
    assert flushed == [False, True]
