"""Data folders as a lost power leaves them: a database, and a log beside it that holds its last rows."""

import shutil
import sqlite3
from pathlib import Path

from mirbad.up import database_files
from mirbad.up.database_files import COMPANIONS, DATABASE


def rows_of(database: Path) -> list[str]:
    """Return the names in a database."""
    opened = sqlite3.connect(database)
    try:
        assert opened.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [name for (name,) in opened.execute("SELECT name FROM things ORDER BY id")]
    finally:
        opened.close()


def made(data: Path, name: str, *, number: int = 300) -> Path:
    """Make a database that was stopped cleanly, with rows of `name` over many pages. Return its path."""
    (data / "run").mkdir(parents=True, exist_ok=True)
    database_files.begin_run(data)
    opened = sqlite3.connect(data / DATABASE)
    opened.execute("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT, filler TEXT)")
    opened.execute("CREATE INDEX things_by_filler ON things (filler, name)")
    opened.executemany(
        "INSERT INTO things (name, filler) VALUES (?, ?)",
        [(f"{name}-{one}", f"{name}{one * 7 % 100}" * 40) for one in range(number)],
    )
    opened.commit()
    opened.close()
    database_files.end_run(data)
    return data / DATABASE


def crashed(data: Path, name: str, *, number: int = 200, everywhere: bool = True) -> None:
    """Start a run on the database in `data`, add rows of `name` that are in the log alone, and lose the power.

    The log then holds a page in three, or with `everywhere` false those of the new rows.
    """
    database_files.begin_run(data)
    opened = sqlite3.connect(data / DATABASE)
    opened.execute("PRAGMA wal_autocheckpoint=0")
    opened.executemany(
        "INSERT INTO things (name, filler) VALUES (?, ?)",
        [(f"{name}-{one}", f"{name}{one * 3 % 100}" * 40) for one in range(number)],
    )
    if everywhere:
        opened.execute("UPDATE things SET filler = filler || ? WHERE id % 3 = 0", (name,))
    opened.commit()
    kept = data / "as-it-was"
    kept.mkdir()
    for file in (DATABASE, *COMPANIONS):
        if (data / file).exists():
            shutil.copyfile(data / file, kept / file)
    opened.close()
    for file in (DATABASE, *COMPANIONS):
        (data / file).unlink(missing_ok=True)
        if (kept / file).exists():
            (kept / file).rename(data / file)
    kept.rmdir()
