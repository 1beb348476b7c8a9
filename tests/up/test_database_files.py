"""A database in a folder where another database left its log: the two are never mixed."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from mirbad.up import database_files, snapshot
from mirbad.up.database_files import COMPANIONS, DATABASE
from mirbad.up.errors import CannotStart
from tests.up.crashed import crashed, made, rows_of

pytestmark = pytest.mark.unit

WAL = COMPANIONS[0]
JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder whose last run lost its power."""
    data = tmp_path / "here"
    made(data, "here")
    crashed(data, "late")
    assert (data / WAL).stat().st_size > 100_000
    return data


def _snapshot(data: Path, folder: Path) -> Path:
    return snapshot.take(data, folder, own_database=True).path / DATABASE


def _as_before_marks(data: Path, folder: Path) -> Path:
    """A snapshot of a version that marked none: in the mode without a log, with the number of its run."""
    copy = _snapshot(data, folder)
    opened = sqlite3.connect(copy, isolation_level=None)
    opened.execute("PRAGMA application_id=0")
    opened.close()
    return copy


def _of_a_stopped_master(data: Path, folder: Path) -> Path:
    return data / DATABASE


def _by_sqlite(data: Path, folder: Path) -> Path:
    """A copy by SQLite's own command."""
    folder.mkdir()
    opened, copy = sqlite3.connect(data / DATABASE), sqlite3.connect(folder / DATABASE)
    opened.backup(copy)
    opened.close()
    copy.close()
    return folder / DATABASE


def _by_vacuum(data: Path, folder: Path) -> Path:
    folder.mkdir()
    opened = sqlite3.connect(data / DATABASE)
    opened.execute("VACUUM INTO ?", (str(folder / DATABASE),))
    opened.close()
    return folder / DATABASE


def _copied(source: Path, target: Path) -> None:
    shutil.copy2(source, target)


def _renamed(source: Path, target: Path) -> None:
    shutil.copy2(source, target.with_suffix(".new"))
    target.with_suffix(".new").replace(target)


def _written_over(source: Path, target: Path) -> None:
    with target.open("r+b") as file:
        file.write(source.read_bytes())
        file.truncate()


@pytest.mark.parametrize("put", [_copied, _renamed, _written_over])
@pytest.mark.parametrize("copy", [_snapshot, _as_before_marks, _of_a_stopped_master, _by_sqlite, _by_vacuum])
def test_a_database_of_another_folder_does_not_take_over_the_log_that_it_finds(
    here: Path,
    tmp_path: Path,
    copy: Callable[[Path, Path], Path],
    put: Callable[[Path, Path], None],
) -> None:
    other = tmp_path / "other"
    made(other, "other", number=350)
    put(copy(other, tmp_path / "copy"), here / DATABASE)
    aside = database_files.settle(here)
    assert aside is not None
    assert aside.parent == here / "snapshots"
    assert {path.name for path in aside.iterdir()} >= {WAL}
    assert rows_of(here / DATABASE) == [f"other-{one}" for one in range(350)]
    assert database_files.settle(here) is None


@pytest.mark.parametrize("copy", [_snapshot, _as_before_marks])
def test_an_earlier_state_of_the_same_database_does_not_take_over_the_log_either(
    tmp_path: Path, copy: Callable[[Path, Path], Path]
) -> None:
    data = tmp_path / "here"
    made(data, "here")
    earlier = copy(data, tmp_path / "copy")
    crashed(data, "late")
    shutil.copy2(earlier, data / DATABASE)
    assert database_files.settle(data) is not None
    assert rows_of(data / DATABASE) == [f"here-{one}" for one in range(300)]


def test_the_log_of_the_own_database_is_used_however_often_the_power_is_lost(here: Path) -> None:
    for turn in range(3):
        assert database_files.settle(here) is None
        crashed(here, f"turn{turn}", number=20)
    names = rows_of(here / DATABASE)
    assert len(names) == 300 + 200 + 3 * 20
    assert "late-199" in names


def test_a_folder_that_was_moved_or_copied_as_a_whole_keeps_its_log(here: Path, tmp_path: Path) -> None:
    shutil.copytree(here, tmp_path / "moved")
    assert database_files.settle(tmp_path / "moved") is None
    assert len(rows_of(tmp_path / "moved" / DATABASE)) == 500


def test_a_folder_of_a_version_without_numbers_keeps_its_log(here: Path) -> None:
    (here / "run" / "database-run").unlink()
    assert database_files.settle(here) is None
    assert len(rows_of(here / DATABASE)) == 500


@pytest.mark.parametrize("cut", [b"", JOURNAL_MAGIC + b"\0" * 504])
def test_a_journal_beside_a_database_that_keeps_none_is_put_aside(here: Path, tmp_path: Path, cut: bytes) -> None:
    (here / f"{DATABASE}-journal").write_bytes(cut)
    aside = database_files.settle(here)
    assert (aside is not None) is bool(cut)
    assert len(rows_of(here / DATABASE)) == 500


def test_a_real_journal_of_another_database_is_not_rolled_back(tmp_path: Path) -> None:
    other = tmp_path / "other" / DATABASE
    other.parent.mkdir()
    opened = sqlite3.connect(other, isolation_level=None)
    opened.execute("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT)")
    opened.execute("PRAGMA cache_size=1")
    opened.execute("BEGIN")
    opened.executemany("INSERT INTO things (name) VALUES (?)", [("x" * 900,)] * 500)
    left = other.with_name(f"{DATABASE}-journal")
    data = tmp_path / "here"
    made(data, "here")
    copy = _snapshot(data, tmp_path / "copy")
    for target in (data / DATABASE, copy):
        shutil.copyfile(left, target.with_name(f"{DATABASE}-journal"))
        (target.parent / "run").mkdir(exist_ok=True)
        database_files.settle(target.parent)
        assert len(rows_of(target)) == 300
    opened.close()


def test_a_log_without_its_database_is_not_deleted_by_the_next_one(here: Path) -> None:
    (here / DATABASE).unlink()
    aside = database_files.settle(here)
    assert aside is not None
    assert (aside / WAL).stat().st_size > 100_000


def test_a_copy_that_nothing_tells_apart_but_that_does_not_fit_is_refused_and_left_as_it_is(
    here: Path, tmp_path: Path
) -> None:
    data = tmp_path / "here"
    opened = sqlite3.connect(data / DATABASE)
    assert opened.execute("SELECT count(*) FROM things").fetchone() == (500,)
    opened.close()
    crashed(data, "more", number=5, everywhere=False)
    number = (data / DATABASE).read_bytes()[68:72]
    other = tmp_path / "other"
    made(other, "other", number=600)
    content = bytearray((other / DATABASE).read_bytes())
    content[68:72] = number
    (data / DATABASE).write_bytes(bytes(content))
    before = {path.name: path.read_bytes() for path in data.glob(f"{DATABASE}*")}
    with pytest.raises(CannotStart, match="do not fit together"):
        database_files.settle(data)
    assert {path.name: path.read_bytes() for path in data.glob(f"{DATABASE}*")} == before


def test_a_copy_is_marked_until_it_is_used(tmp_path: Path) -> None:
    data = tmp_path / "here"
    made(data, "here")
    copy = _snapshot(data, tmp_path / "copy")
    assert int.from_bytes(copy.read_bytes()[68:72]) == database_files.OF_A_COPY
    (copy.parent / "run").mkdir()
    assert database_files.settle(copy.parent) is None
    assert int.from_bytes(copy.read_bytes()[68:72]) != database_files.OF_A_COPY
    assert rows_of(copy) == rows_of(data / DATABASE)


def test_while_another_process_uses_the_database_nothing_is_noted(tmp_path: Path) -> None:
    data = tmp_path / "here"
    made(data, "here")
    reader = sqlite3.connect(data / DATABASE, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM things").fetchone()
    writer = sqlite3.connect(data / DATABASE)
    writer.execute("DELETE FROM things WHERE id = 1")
    writer.commit()
    database_files.begin_run(data)
    reader.close()
    writer.close()
    assert database_files.settle(data) is None
    assert len(rows_of(data / DATABASE)) == 299


def test_a_database_that_cannot_be_opened_is_left_to_those_who_say_so(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / DATABASE).write_bytes(b"this is no database" * 100)
    assert database_files.settle(tmp_path) is None
    database_files.begin_run(tmp_path)
    assert (tmp_path / DATABASE).read_bytes() == b"this is no database" * 100
