"""A copy of the data folder that is consistent while Mirbad runs."""

import contextlib
import os
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from mirbad.up.errors import CannotStart

_DATABASE = "mirbad.sqlite3"
# logs and what a run leaves behind say nothing about the fleet; model files are large and can be had again
LEFT_OUT = ("logs", "run", "static", "snapshots", "agent/models", f"{_DATABASE}-wal", f"{_DATABASE}-shm")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was copied where."""

    path: Path
    files: int
    size_bytes: int
    with_database: bool


def take(data: Path, target: Path, *, own_database: bool) -> Snapshot:
    """Copy `data` to the new folder `target` (mode 0700); it appears whole or not at all.

    `own_database` says whether the rows are in SQLite in the data folder; otherwise they are the operator's to dump.
    Raises CannotStart when the target exists or lies inside what is copied, OSError as the disk says.
    """
    target = target.absolute()
    if target.exists():
        raise CannotStart(f"{target} exists already; name another folder.")
    if target.is_relative_to(data) and target.parent != data / "snapshots":
        raise CannotStart(f"{target} lies inside the data folder; name a folder elsewhere.")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    part.mkdir(mode=0o700)
    try:
        # the database first: a row never names a file that was made after it and is missing from the copy
        if own_database:
            _copy_database(data / _DATABASE, part / _DATABASE)
        files, size = _copy_files(data, part)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return Snapshot(target, files, size, own_database)


def _copy_database(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=20)) as running,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        running.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")
        (verdict,) = copy.execute("PRAGMA integrity_check").fetchone()
        if verdict != "ok":
            raise CannotStart(f"The copy of the database is damaged: {verdict}")
    target.chmod(0o600)


def _copy_files(data: Path, part: Path) -> tuple[int, int]:
    files = size = 0
    for folder, names, leaves in os.walk(data):
        here = Path(folder).relative_to(data)
        names[:] = [name for name in names if str(here / name) not in LEFT_OUT]
        (part / here).mkdir(mode=0o700, exist_ok=True)
        for name in [*leaves, *(n for n in names if (data / here / n).is_symlink())]:
            if str(here / name) in LEFT_OUT or (here == Path() and name == _DATABASE):
                continue
            # a file may be replaced or removed while we look: the agent writes whole files under new names
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(data / here / name, part / here / name, follow_symlinks=False)
                files += 1
                size += (part / here / name).lstat().st_size
    database = part / _DATABASE
    return (files + 1, size + database.stat().st_size) if database.exists() else (files, size)
