"""The files of SQLite beside the database, and whether they are of this database.

SQLite applies whatever ``-wal`` or ``-journal`` it finds beside a database, also one that another database left there:
after a copy was put in the place of a database that was not stopped cleanly, the two would be mixed. So each run writes
a number of its own into the database (``application_id``) and beside it, and copies get another one.
"""

import contextlib
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.common.files import write_text
from mirbad.kernel import clock
from mirbad.up.errors import CannotStart

DATABASE = "mirbad.sqlite3"
COMPANIONS = tuple(f"{DATABASE}-{end}" for end in ("wal", "shm", "journal"))
OF_A_COPY = 0x4D697262
"""The number in a copy of the database until it is used."""

_RUN = Path("run") / "database-run"
_MAGIC = b"SQLite format 3\0"
_WAL = b"\x02\x02"


@dataclass(frozen=True, slots=True)
class _Header:
    """The parts of a database's first page that tell whose files are beside it."""

    number: int
    uses_wal: bool


def settle(data: Path) -> Path | None:
    """Put files of another database aside. Return the folder that they are in now, None when there were none.

    Call it before anything opens the database, while nothing uses it. Raises CannotStart when the database and its log
    do not fit together, and leaves them as they are.
    """
    header = _header(data / DATABASE)
    foreign = _foreign(header, _run_number(data))
    paths = [data / name for name in COMPANIONS if name in foreign and _has_content(data / name)]
    # An index alone says nothing: SQLite makes it anew.
    aside = _put_aside(data, paths) if any(path.name != COMPANIONS[1] for path in paths) else None
    if _has_content(data / COMPANIONS[0]):
        _require_whole(data)
    if header is not None and header.number == OF_A_COPY:
        begin_run(data)
    return aside


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _foreign(header: _Header | None, run: int | None) -> frozenset[str]:
    """Return the names of files that cannot be of the database with this header."""
    if header is None or header.number == OF_A_COPY or not header.uses_wal:
        return frozenset(COMPANIONS)
    if run is not None and run != header.number:
        return frozenset(COMPANIONS)
    # A database that was used keeps no rollback journal: it has had a write-ahead log since its first moment.
    return frozenset(COMPANIONS[2:]) if header.number else frozenset()


def _header(path: Path) -> _Header | None:
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        return None
    if len(head) < 100 or not head.startswith(_MAGIC):
        return None
    return _Header(int.from_bytes(head[68:72]), head[18:20] == _WAL)


def _run_number(data: Path) -> int | None:
    try:
        return int((data / _RUN).read_text())
    except (OSError, ValueError):
        return None


def _put_aside(data: Path, paths: list[Path]) -> Path:
    aside = data / "snapshots" / f"put-aside-{clock.now():%Y-%m-%dT%H%M%S%fZ}"
    aside.mkdir(mode=0o700, parents=True)
    for path in paths:
        path.rename(aside / path.name)
    return aside


def _require_whole(data: Path) -> None:
    """Raise CannotStart when the database is damaged with its log. Both are read in a copy, if there is space."""
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=data, prefix=".check-") as folder:
        copy = Path(folder) / DATABASE
        for name in (DATABASE, COMPANIONS[0]):
            shutil.copyfile(data / name, Path(folder) / name)
        verdict = _verdict(copy)
        if verdict != "ok":
            raise CannotStart(
                f"{data / DATABASE} and the -wal file beside it do not fit together ({verdict}). Nothing was changed. "
                "If the database was put there from a copy, move the -wal file away; otherwise restore a snapshot "
                "(manage.py restore FOLDER)."
            )


def _verdict(database: Path) -> str:
    try:
        with contextlib.closing(sqlite3.connect(database)) as opened:
            return str(opened.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except sqlite3.OperationalError:
        return "ok"  # the check itself was not possible
    except sqlite3.DatabaseError as error:
        return str(error)


def begin_run(data: Path) -> None:
    """Give the database the number of a new run, and note it beside. The database is created if there is none.

    Nothing is noted when that is not possible: the database is damaged, or another process uses it.
    """
    run = data / _RUN
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_opened(data)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        if _is_busy(database):
            return
        run.parent.mkdir(mode=0o700, exist_ok=True)
        run.unlink(missing_ok=True)  # while the two differ there is no note, so no file is taken for another's
        number = 1 + secrets.randbelow(2**31 - 1)
        database.execute(f"PRAGMA application_id={number if number != OF_A_COPY else 1}")
        if not _is_busy(database) and (header := _header(data / DATABASE)) is not None:
            write_text(run, f"{header.number}\n")


def end_run(data: Path) -> None:
    """Move everything into the database itself, and forget the number of the run."""
    if not (data / DATABASE).exists():
        return
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_opened(data)) as database:
        # A process that was ended by a signal leaves the log; with its content moved, the database is whole by itself.
        if not _is_busy(database):
            (data / _RUN).unlink(missing_ok=True)


def _opened(data: Path) -> sqlite3.Connection:
    return sqlite3.connect(data / DATABASE, timeout=1, isolation_level=None)


def _is_busy(database: sqlite3.Connection) -> bool:
    """Move the log into the database. Return whether another process prevented that."""
    return bool(database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])


def mark_copy(database: Path) -> None:
    """Mark a database as a copy that was not used yet. Raises CannotStart when it is damaged."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as copy:
        copy.execute("PRAGMA journal_mode=DELETE")
        copy.execute(f"PRAGMA application_id={OF_A_COPY}")
        (verdict,) = copy.execute("PRAGMA integrity_check").fetchone()
        if verdict != "ok":
            raise CannotStart(f"The copy of the database is damaged: {verdict}")


def beside(database: Path) -> Iterator[Path]:
    """Yield the files with content beside `database` that a copy does not have."""
    for end in ("wal", "journal"):
        path = database.with_name(f"{database.name}-{end}")
        if _has_content(path):
            yield path
