"""A copy of the data folder that is consistent while Mirbad runs."""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.common.files import write_text
from mirbad.up import database_files
from mirbad.up.database_files import COMPANIONS, DATABASE
from mirbad.up.errors import CannotStart

# Logs and files of a run say nothing about the fleet, flag files are requests of a moment; model files are large and
# can be downloaded again, so the agent's memory of their disk is left out with them. A link in the place of the models
# folder is a setting, and is copied as a link.
_MODELS = ("agent/models", "agent/state/models-roots")
LEFT_OUT = (
    *("logs", "run", "static", "snapshots", "pki", "recovery", "takeover", "uploads", *_MODELS),
    *("restore.json", "restore.part", *COMPANIONS),
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of a copy."""

    path: Path
    files: int
    size_bytes: int
    with_database: bool


def take(
    data: Path,
    target: Path,
    *,
    own_database: bool,
    leave_out: tuple[str, ...] = (),
    added: Mapping[str, str] | None = None,
) -> Snapshot:
    """Copy `data` to the new folder `target` (mode 0700); it appears whole or not at all.

    `own_database` is whether the rows are in SQLite in the data folder; otherwise the operator dumps them. `leave_out`
    are further paths below `data`; `added` are texts by path below the copy. Raises CannotStart when the target exists
    or is inside the data folder, OSError from the disk.
    """
    target = target.absolute()
    if target.exists():
        raise CannotStart(f"{target} already exists. Choose another folder.")
    if target.is_relative_to(data) and target.parent != data / "snapshots":
        raise CannotStart(f"{target} is inside the data folder. Choose another folder.")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    part.mkdir(mode=0o700)
    try:
        # the database first: a row never names a file that was created after it and is missing from the copy
        if own_database:
            _copy_database(data / DATABASE, part / DATABASE)
        _copy_files(data, part, (*LEFT_OUT, *leave_out))
        for name, text in (added or {}).items():
            (part / name).parent.mkdir(mode=0o700, exist_ok=True)
            write_text(part / name, text)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    files = [path for path in target.rglob("*") if path.is_symlink() or path.is_file()]
    return Snapshot(target, len(files), sum(path.lstat().st_size for path in files), own_database)


def _copy_database(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=20)) as running,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        running.backup(copy)
    database_files.mark_copy(target)
    target.chmod(0o600)


def _copy_files(data: Path, part: Path, left_out: tuple[str, ...]) -> None:
    for folder, names, leaves in os.walk(data):
        here = Path(folder).relative_to(data)
        links = [name for name in names if (data / here / name).is_symlink()]
        names[:] = [name for name in names if str(here / name) not in left_out]
        (part / here).mkdir(mode=0o700, exist_ok=True)
        for name in (*leaves, *links):
            is_link = (data / here / name).is_symlink()
            if (str(here / name) in left_out and not is_link) or (here == Path() and name == DATABASE):
                continue
            # a file may be replaced or removed meanwhile: the agent writes whole files under new names
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(data / here / name, part / here / name, follow_symlinks=False)
                if not is_link:
                    (part / here / name).chmod(0o600)
