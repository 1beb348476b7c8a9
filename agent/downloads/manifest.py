"""The manifest of a downloaded folder: repository, commit, and each verified file. A hidden file among the others."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.common.files import write_bytes
from agent.downloads.partial_file import digest_of
from agent.wire.downloads import DownloadFile

NAME = ".mirbad.json"
_LIMIT = 8 * 1024 * 1024


class VerifiedFile(BaseModel):
    """A file as it was when its digest was verified. Another size or mtime means: verify again.

    `inode` and `ctime_ns` tell it from another file under its name; 0 is unknown. A copy of the folder has others.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    size: int
    digest: str
    mtime_ns: int
    inode: int = 0
    ctime_ns: int = 0

    def is_unchanged(self, folder: Path) -> bool:
        """Return whether the file exists, unchanged since by size and time. Blocking."""
        found = _stat(folder / self.path)
        return found is not None and (found.st_size, found.st_mtime_ns) == (self.size, self.mtime_ns)

    def is_identical(self, folder: Path) -> bool:
        """Return whether this very file is there, untouched since it was verified. Blocking."""
        found = _stat(folder / self.path)
        if found is None or (found.st_size, found.st_mtime_ns) != (self.size, self.mtime_ns):
            return False
        return not self.inode or (found.st_ino, found.st_ctime_ns) == (self.inode, self.ctime_ns)

    def moved_to(self, folder: Path, path: str) -> "VerifiedFile | None":
        """Return the entry of this file after a rename or a second link; None if another file is there. Blocking."""
        found = _stat(folder / path)
        mine = (self.size, self.mtime_ns, self.inode)
        if found is None or (found.st_size, found.st_mtime_ns, found.st_ino) != mine:
            return None
        return self.model_copy(update={"path": path, "ctime_ns": found.st_ctime_ns})


class Manifest(BaseModel):
    """The content of `NAME`."""

    model_config = ConfigDict(frozen=True)

    repository: str
    commit: str
    files: Annotated[tuple[VerifiedFile, ...], Field(max_length=20_000)] = ()

    def of(self, file: DownloadFile) -> VerifiedFile | None:
        """Return the entry of `file` under the same digest."""
        return next((v for v in self.files if (v.path, v.digest) == (file.path, file.digest)), None)

    def missing(self, folder: Path) -> tuple[str, ...]:
        """Return the paths of files that are gone or changed since. Blocking."""
        return tuple(file.path for file in self.files if not file.is_unchanged(folder))

    def with_file(self, noted: VerifiedFile) -> "Manifest":
        """Return the manifest with one verified file more."""
        kept = tuple(other for other in self.files if other.path != noted.path)
        return self.model_copy(update={"files": (*kept, noted)})


def verified(folder: Path, file: DownloadFile) -> VerifiedFile | None:
    """Read `file` of `folder` and return its entry; None when it is missing or another, or changed meanwhile.

    Blocking.
    """
    path = folder / file.path
    before = _stat(path)
    if before is None or before.st_size != file.size_bytes:
        return None
    try:
        digest = digest_of(path, file)
    except OSError:
        return None
    found = _entry(file, before)
    return found if digest == file.digest and found.is_identical(folder) else None


def fetched(folder: Path, file: DownloadFile) -> VerifiedFile | None:
    """Return the entry of `file`, whose bytes were verified on their way to `folder`; None when it is gone."""
    found = _stat(folder / file.path)
    return _entry(file, found) if found is not None and found.st_size == file.size_bytes else None


def _entry(file: DownloadFile, found: os.stat_result) -> VerifiedFile:
    return VerifiedFile(
        path=file.path,
        size=file.size_bytes,
        digest=file.digest,
        mtime_ns=found.st_mtime_ns,
        inode=found.st_ino,
        ctime_ns=found.st_ctime_ns,
    )


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def read(folder: Path) -> Manifest | None:
    """Return the manifest of `folder`; None when there is none, or it cannot be read. Blocking."""
    path = folder / NAME
    try:
        if path.stat().st_size > _LIMIT:
            return None
        return Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def write(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, flushed to disk. Blocking; OSError from the disk."""
    write_bytes(folder / NAME, manifest.model_dump_json().encode(), 0o644)
