"""The way back from a snapshot: whole, repeatable after any interruption, and nothing of before is lost."""

import contextlib
import json
import os
import shutil
import sqlite3
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirbad.up import database_files, folder, restore, snapshot
from mirbad.up.database_files import DATABASE
from mirbad.up.errors import CannotStart
from mirbad.up.restore import Restored
from tests.up.crashed import crashed, made, rows_of

pytestmark = pytest.mark.unit


def filled(data: Path, name: str) -> None:
    """Fill a data folder with what every part of it may hold."""
    folder.prepare(data)
    made(data, name, number=60)
    files = {
        "secrets/secret-key": f"key-of-{name}", "audit/2030-01.jsonl": name, "agent/agent.json": '{"port": 9443}',
        f"agent/state/of-{name}.json": "{}", "agent/models/m/big.gguf": name, "bootstrap/starter-smollm2-135m": "made",
        "logs/web.log": name, f"only-{name}/x": name, "pki/rotate": "", "takeover": "",
    }  # fmt: skip
    for path, text in files.items():
        (data / path).parent.mkdir(parents=True, exist_ok=True)
        (data / path).write_text(text)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    filled(source, "then")
    return snapshot.take(source, tmp_path / "copy", own_database=True).path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made_here = tmp_path / "data"
    filled(made_here, "now")
    crashed(made_here, "late", number=40)
    return made_here


def back(data: Path, source: Path, *, given_key: str = "", models: Path | None = None, fits: bool = True) -> Restored:
    folder.prepare(data)
    return restore.restore(
        data, source, own_database=True, models=models or data / "agent/models", given_key=given_key,
        opens=lambda sealed, key: fits,
    )  # fmt: skip


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}


def test_a_restore_over_the_live_log_of_another_database_gives_the_snapshots_rows(data: Path, copy: Path) -> None:
    done = back(data, copy)
    assert database_files.settle(data) is None, "nothing of the other database is left beside it"
    assert rows_of(data / DATABASE) == [f"then-{one}" for one in range(60)]
    assert (data / "secrets/secret-key").read_text() == "key-of-then"
    assert tree(data / "agent/state") == {"of-then.json"}
    assert done.before is not None
    assert len(rows_of(done.before / DATABASE)) == 100, "database and log of before are together"
    assert (done.before / "secrets/secret-key").read_text() == "key-of-now"
    assert (done.before / "only-now/x").exists()
    assert not (data / "only-now").exists()


def test_models_logs_and_the_mark_of_the_starter_stay_or_come_back(data: Path, copy: Path) -> None:
    back(data, copy)
    assert (data / "agent/models/m/big.gguf").read_text() == "now"
    assert (data / "logs/web.log").read_text() == "now"
    assert (data / "bootstrap/starter-smollm2-135m").read_text() == "made"
    assert not (data / "takeover").exists(), "a request of that moment is not repeated"
    assert not (data / "pki").exists()


@pytest.mark.parametrize("root", ["agent/weights", "weights", "agent/models"])
def test_a_models_folder_elsewhere_below_the_data_stays(data: Path, copy: Path, root: str) -> None:
    (data / root).mkdir(exist_ok=True)
    (data / root / "other.gguf").write_text("large")
    back(data, copy, models=data / root)
    assert (data / root / "other.gguf").read_text() == "large"


def test_a_link_in_the_place_of_the_models_folder_is_in_the_snapshot_and_comes_back(tmp_path: Path) -> None:
    disk, source = tmp_path / "disk", tmp_path / "source"
    filled(source, "then")
    shutil.move(source / "agent/models", disk)
    (source / "agent/models").symlink_to(disk)
    copy = snapshot.take(source, tmp_path / "copy", own_database=True).path
    assert (copy / "agent/models").is_symlink()
    assert not [path for path in tree(copy) if "gguf" in path]
    for name in ("fresh", "prepared"):
        data = tmp_path / name
        if name == "prepared":
            folder.prepare(data)
        back(data, copy)
        assert (data / "agent/models").resolve() == disk
        assert (data / "agent/models/m/big.gguf").read_text() == "then"


def test_a_restore_into_an_empty_folder_is_the_snapshot(tmp_path: Path, copy: Path) -> None:
    done = back(tmp_path / "fresh", copy)
    assert done.before is None
    assert rows_of(tmp_path / "fresh" / DATABASE) == [f"then-{one}" for one in range(60)]
    assert tree(copy) <= tree(tmp_path / "fresh")


def test_every_file_is_private_whatever_the_snapshot_has(data: Path, copy: Path) -> None:
    for path in copy.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    back(data, copy)
    for path in (data / "secrets", data / "audit", data / DATABASE, data / "secrets/secret-key"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


class Killed(BaseException):
    """The process ended here."""


@pytest.mark.parametrize("number", range(1, 40))
def test_a_restore_that_is_killed_between_any_two_steps_is_finished_by_the_next_start(
    data: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Each rename, removal and write is the last one of a killed process."""
    before, left = tree(data), [number]

    def dying(call):
        def one(*arguments, **options):
            left[0] -= 1
            if not left[0]:
                raise Killed
            return call(*arguments, **options)

        return one

    with monkeypatch.context() as patched:
        for place, name in ((Path, "rename"), (Path, "unlink"), (Path, "replace"), (Path, "rmdir"), (os, "fsync")):
            patched.setattr(place, name, dying(getattr(place, name)))
        with contextlib.suppress(Killed):
            back(data, copy)
    if restore.is_interrupted(data):
        restore.finish(data)
    restored = (data / "secrets/secret-key").read_text() == "key-of-then"
    assert rows_of_either(data, restored=restored)
    kept = tree(data / "snapshots") if (data / "snapshots").exists() else set()
    found = tree(data) | {path.partition("/")[2] for path in kept}
    assert before - found <= {f"{DATABASE}-shm"}, "nothing of before is lost"
    back(data, copy)
    assert rows_of(data / DATABASE) == [f"then-{one}" for one in range(60)]


def rows_of_either(data: Path, *, restored: bool) -> bool:
    """Return whether the rows are those of the snapshot, or all of those before, never a mixture."""
    work = data.with_name("looked-at")
    shutil.copytree(data, work, symlinks=True)
    try:
        database_files.settle(work)
        names = rows_of(work / DATABASE)
    finally:
        shutil.rmtree(work)
    if restored:
        return names == [f"then-{one}" for one in range(60)]
    return names == [*(f"now-{one}" for one in range(60)), *(f"late-{one}" for one in range(40))]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda copy: shutil.rmtree(copy), "is not a folder"),
        (lambda copy: (copy / DATABASE).unlink(), "it has no mirbad.sqlite3"),
        (lambda copy: shutil.rmtree(copy / "secrets"), "it has no secrets/"),
        (lambda copy: (copy / f"{DATABASE}-wal").write_bytes(b"x"), "a copy of a database in use"),
        (lambda copy: (copy / f"{DATABASE}-journal").write_bytes(b"x"), "a copy of a database in use"),
        (lambda copy: (copy / DATABASE).write_bytes((copy / DATABASE).read_bytes()[:8_192]), "is damaged"),
        (lambda copy: (copy / DATABASE).write_bytes(b"none"), "is damaged"),
        (lambda copy: (copy / "secrets/secret-key").unlink(), "without the secret key. Set MIRBAD_SECRET_KEY"),
    ],
)
def test_what_is_no_whole_snapshot_is_refused_and_the_data_is_as_before(data: Path, copy: Path, spoil, says) -> None:
    before = {path: (data / path).read_bytes() for path in tree(data)}
    spoil(copy)
    with pytest.raises(CannotStart, match=says):
        back(data, copy)
    assert {path: (data / path).read_bytes() for path in tree(data)} == before


def test_a_snapshot_under_another_key_is_refused(data: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    filled(source, "then")
    opened = sqlite3.connect(source / DATABASE)
    opened.execute("CREATE TABLE nodes_masteridentity (client_key_sealed BLOB)")
    opened.execute("INSERT INTO nodes_masteridentity VALUES (?)", (b"sealed",))
    opened.commit()
    opened.close()
    copy = snapshot.take(source, tmp_path / "copy", own_database=True).path
    with pytest.raises(CannotStart, match=r"sealed with another key than .*secret-key"):
        back(data, copy, fits=False)
    with pytest.raises(CannotStart, match="sealed with another key than MIRBAD_SECRET_KEY"):
        back(data, copy, given_key="k" * 40, fits=False)
    assert back(data, copy, given_key="k" * 40).with_database


def test_folders_inside_each_other_and_a_full_disk_are_refused(
    data: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(copy, data / "agent" / "copy")
    with pytest.raises(CannotStart, match="inside each other"):
        back(data, data / "agent" / "copy")
    with pytest.raises(CannotStart, match="inside each other"):
        back(data, data.parent)
    shutil.copytree(copy, data / "snapshots" / "monday")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(CannotStart, match="MB free"):
        back(data, data / "snapshots" / "monday")
    monkeypatch.undo()
    assert back(data, data / "snapshots" / "monday").with_database


def test_a_note_that_nobody_wrote_is_said(data: Path) -> None:
    for text in ("", "[]", "{}", json.dumps({"before": 1, "old": 2, "new": 3})):
        (data / restore.NOTE).write_text(text)
        with pytest.raises(CannotStart, match="cannot be read"):
            restore.finish(data)
