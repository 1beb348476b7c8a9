"""A copy of the data folder, taken while rows are written."""

import sqlite3
import stat
import threading

import pytest

from mirbad.up import snapshot
from mirbad.up.errors import CannotStart

pytestmark = pytest.mark.unit


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data"
    for part in ("secrets", "logs", "run", "agent/state/models-roots", "agent/models/m", "audit"):
        (path / part).mkdir(parents=True)
    (path / "secrets" / "secret-key").write_text("k")
    (path / "secrets" / "secret-key").chmod(0o600)
    (path / "agent" / "state" / "fence.json").write_text("{}")
    (path / "agent" / "state" / "models-roots" / "0.json").write_text("{}")
    (path / "agent" / "models" / "m" / "big.gguf").write_bytes(b"x" * 1000)
    (path / "logs" / "web.log").write_text("…")
    with sqlite3.connect(path / "mirbad.sqlite3") as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE pairs (a INTEGER, b INTEGER)")
    database.close()
    return path


def test_rows_and_secrets_are_copied_and_large_or_passing_things_are_not(data, tmp_path):
    taken = snapshot.take(data, tmp_path / "copy", own_database=True)
    names = {str(path.relative_to(taken.path)) for path in taken.path.rglob("*") if path.is_file()}
    assert names == {"mirbad.sqlite3", "secrets/secret-key", "agent/state/fence.json"}
    assert taken.files == 3
    assert stat.S_IMODE((taken.path / "secrets" / "secret-key").stat().st_mode) == 0o600
    assert stat.S_IMODE(taken.path.stat().st_mode) == 0o700


def test_a_copy_taken_while_rows_are_written_is_consistent(data, tmp_path):
    stop = threading.Event()

    def write():
        database = sqlite3.connect(data / "mirbad.sqlite3", timeout=20)
        number = 0
        while not stop.is_set():
            number += 1
            with database:
                database.execute("INSERT INTO pairs VALUES (?, 0)", (number,))
                database.execute("UPDATE pairs SET b = a WHERE a = ?", (number,))
        database.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        copies = [snapshot.take(data, tmp_path / f"copy-{turn}", own_database=True) for turn in range(5)]
    finally:
        stop.set()
        writer.join()
    assert len(copies) == 5
    for copy in copies:
        database = sqlite3.connect(copy.path / "mirbad.sqlite3")
        assert database.execute("SELECT count(*) FROM pairs WHERE a <> b").fetchone() == (0,)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()


def test_an_existing_or_inner_target_is_refused(data, tmp_path):
    with pytest.raises(CannotStart, match="already exists"):
        snapshot.take(data, tmp_path, own_database=True)
    with pytest.raises(CannotStart, match="inside the data folder"):
        snapshot.take(data, data / "agent" / "copy", own_database=True)


def test_a_copy_that_fails_leaves_nothing(data, tmp_path):
    (data / "mirbad.sqlite3").unlink()
    with pytest.raises(sqlite3.OperationalError):
        snapshot.take(data, tmp_path / "copy", own_database=True)
    assert not list(tmp_path.glob("*copy*"))
