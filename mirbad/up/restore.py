"""The way back from a snapshot into the data folder.

Everything is copied and checked beside the data first. Then a note is written, and from there on the restore only
renames: it is finished by the next start, whatever interrupts it. What was there before is kept.
"""

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.common.files import sync_dir, write_text
from mirbad.kernel import clock
from mirbad.kernel.conf import Settings
from mirbad.up import database_files, folder
from mirbad.up.database_files import DATABASE
from mirbad.up.errors import CannotStart

NOTE = "restore.json"
_STAGED = "restore.part"
_KEY = Path("secrets") / "secret-key"
_STAYS = frozenset({"logs", "run", "static", "snapshots", "uploads", "lost+found", "agent", NOTE, _STAGED})
_MARGIN_BYTES = 16 * 1024 * 1024

OpensKey = Callable[[bytes, str], bool]
"""Return whether the sealed key of a database opens with a secret key."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The result: where the data from before is, None when there was none."""

    before: Path | None
    with_database: bool


def restore(data: Path, source: Path, *, own_database: bool, models: Path, given_key: str, opens: OpensKey) -> Restored:
    """Put the snapshot `source` in the place of the data; models, logs and snapshots stay. Call it with the lock held.

    `models` is the folder of the models, which stays if it is below `data`. `given_key` is the secret key of the
    environment, "" for none. Raises CannotStart, OSError.
    """
    source = source.absolute()
    _require_snapshot(data, source, own_database=own_database)
    if own_database:
        _require_key(source, given_key, opens)
    size = sum(path.lstat().st_size for path in source.rglob("*"))
    if shutil.disk_usage(data).free < size + _MARGIN_BYTES:
        raise CannotStart(f"The disk of {data} has not {size / 1e6:.0f} MB free for the snapshot. Free some space.")
    shutil.rmtree(data / _STAGED, ignore_errors=True)
    _copy(source, data / _STAGED, with_database=own_database)
    before = data / "snapshots" / f"before-restore-{clock.now():%Y-%m-%dT%H%M%S%fZ}"
    stays = _stays(data, models)
    old = [path for path in _units(data, stays) if not _is_empty(data / path)]
    new = [*_units(data / _STAGED, stays), *_models_link(data)]
    note = {"before": str(before.relative_to(data)), "old": old, "new": sorted(new)}
    write_text(data / NOTE, json.dumps(note))
    finish(data)
    return Restored(before if before.exists() else None, own_database)


def is_interrupted(data: Path) -> bool:
    """Return whether a restore was interrupted after its note was written."""
    return (data / NOTE).exists()


def finish(data: Path) -> None:
    """Finish the restore in the note; may be repeated at any point. Raises CannotStart for a note that nobody wrote."""
    try:
        note: dict[str, Any] = json.loads((data / NOTE).read_text())
        before, old, new = data / note["before"], list(map(Path, note["old"])), list(map(Path, note["new"]))
    except (ValueError, KeyError, TypeError) as error:
        text = f"{data / NOTE} cannot be read ({error}). Remove it and restore the snapshot again."
        raise CannotStart(text) from error
    for path in old:
        if not os.path.lexists(before / path) and os.path.lexists(data / path):
            (before / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (data / path).rename(before / path)
    sync_dir(data)
    for path in new:
        if os.path.lexists(data / _STAGED / path):
            (data / path).parent.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(OSError):
                (data / path).rmdir()  # an empty folder that was not worth keeping
            (data / _STAGED / path).rename(data / path)
    sync_dir(data)
    (data / NOTE).unlink()
    shutil.rmtree(data / _STAGED, ignore_errors=True)


def settle_unless_running(settings: Settings) -> None:
    """Do before a command what a start does: finish a restore, and put files of another database aside.

    Raises CannotStart.
    """
    data = settings.data
    if not data.is_dir() or folder.is_running(data):
        return
    if is_interrupted(data):
        finish(data)
    if not settings.database_url:
        database_files.settle(data)


def _require_snapshot(data: Path, source: Path, *, own_database: bool) -> None:
    if not source.is_dir():
        raise CannotStart(f"{source} is not a folder. Name a snapshot.")
    if data.is_relative_to(source) or (source.is_relative_to(data) and source.parent != data / "snapshots"):
        raise CannotStart(f"{source} and the data folder {data} are inside each other. Move the snapshot elsewhere.")
    database = source / DATABASE
    if not (source / "secrets").is_dir() or (own_database and not database.is_file()):
        what = "secrets/" if not (source / "secrets").is_dir() else DATABASE
        raise CannotStart(f"{source} is not a snapshot: it has no {what}. Make one with manage.py snapshot.")
    if not own_database:
        return
    if beside := [path.name for path in database_files.beside(database)]:
        raise CannotStart(
            f"{source} is a copy of a database in use (it has {', '.join(beside)}), not a snapshot. "
            "Make one with manage.py snapshot."
        )
    if (verdict := _read(database, "PRAGMA integrity_check(1)")) != "ok":
        raise CannotStart(f"The database of {source} is damaged: {verdict}. Choose another snapshot.")


def _require_key(source: Path, given: str, opens: OpensKey) -> None:
    """Refuse a snapshot whose secrets could not be opened afterwards."""
    key = given
    if not key:
        with contextlib.suppress(FileNotFoundError):
            key = (source / _KEY).read_text().strip()
    if not key:
        raise CannotStart(f"{source} was made without the secret key. Set MIRBAD_SECRET_KEY to it, and restore again.")
    sealed = _read(source / DATABASE, "SELECT client_key_sealed FROM nodes_masteridentity")
    if isinstance(sealed, bytes) and not opens(sealed, key):
        where = "MIRBAD_SECRET_KEY" if given else str(source / _KEY)
        text = f"The secrets of {source} were sealed with another key than {where}. Set MIRBAD_SECRET_KEY to it."
        raise CannotStart(text)


def _read(database: Path, statement: str) -> Any:
    """Return the first value of a read in a database that nothing uses, its error as text, None without a row."""
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)) as opened:
            row = opened.execute(statement).fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    return row[0] if row else None


def _copy(source: Path, staged: Path, *, with_database: bool) -> None:
    """Copy a snapshot, privately, and flush it. A database in it that is not used is left out."""
    shutil.copytree(source, staged, symlinks=True, ignore=None if with_database else shutil.ignore_patterns(DATABASE))
    if with_database:
        (staged / DATABASE).chmod(0o600)
        database_files.mark_copy(staged / DATABASE)
    for here, _, names in os.walk(staged, topdown=False):
        for name in names:
            path = Path(here) / name
            if not path.is_symlink():
                path.chmod(0o600)
                _flush(path)
        Path(here).chmod(0o700)
        sync_dir(Path(here))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stays(data: Path, models: Path) -> frozenset[str]:
    """Return the entries that stay: those that no snapshot has, and the one that the models folder is in."""
    stays = {*_STAYS, "agent/models"}
    with contextlib.suppress(ValueError):
        parts = models.relative_to(data).parts
        stays.add("/".join(parts[: 2 if parts[0] == "agent" else 1]))
    return frozenset(stays)


def _units(root: Path, stays: Iterable[str]) -> list[str]:
    """Return the entries to exchange: those at the top, and for the agent those in its folder."""
    top = [entry.name for entry in root.iterdir()]
    agent = [f"agent/{entry.name}" for entry in (root / "agent").iterdir()] if "agent" in top else []
    return [path for path in (*top, *agent) if path not in stays]


def _models_link(data: Path) -> list[str]:
    """Return the link that the snapshot has in the place of the models folder, where the data has no models."""
    name = "agent/models"
    lacks = not os.path.lexists(data / name) or _is_empty(data / name)
    return [name] if lacks and (data / _STAGED / name).is_symlink() else []


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())
