"""A folder as a destination."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent.common.files import sync_dir
from jobs.backup.destinations.base import PART, damaged, other_content, pieces_of, sha256_of
from jobs.errors import BackupDestinationFailed

_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EMLINK}


class FolderStore:
    """A folder that exists. Copies are flushed to disk and read back before they get their name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, file: Path, name: str, sha256: str) -> None:
        """Copy a file."""
        self._remove_parts(name)
        if (found := self.digest(name)) is not None:
            if found != sha256:
                raise other_content(name)
            return
        part = self._folder / f".{name}{PART}{secrets.token_hex(4)}"
        try:
            self._write(file, part)
            if sha256_of(pieces_of(part)) != sha256:
                raise damaged(name)
            self._name(part, name, sha256)
        finally:
            with suppress(OSError):
                part.unlink()

    def remove(self, name: str) -> None:
        """Delete a copy and its parts."""
        (self._folder / name).unlink(missing_ok=True)
        self._remove_parts(name)

    def digest(self, name: str) -> str | None:
        """Return the digest of a copy."""
        try:
            return sha256_of(pieces_of(self._folder / name))
        except FileNotFoundError:
            return None

    def _write(self, file: Path, part: Path) -> None:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            for piece in pieces_of(file):
                target.write(piece)
            target.flush()
            os.fsync(target.fileno())
            if hasattr(os, "posix_fadvise"):
                # What is compared next is to come from the storage, not from the memory of this machine.
                with suppress(OSError):
                    os.posix_fadvise(target.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _name(self, part: Path, name: str, sha256: str) -> None:
        final = self._folder / name
        try:
            os.link(part, final)  # refuses to replace a file
        except FileExistsError:
            if self.digest(name) != sha256:
                raise other_content(name) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A share without links. The name has the id of the backup in it, so nobody else writes it.
            if self.digest(name) not in (None, sha256):
                raise other_content(name) from None
            part.replace(final)
        with suppress(OSError):  # shares need not know how to flush a folder
            sync_dir(self._folder)

    def _remove_parts(self, name: str) -> None:
        begin = f".{name}{PART}"
        for entry in list(os.scandir(self._folder)):
            if entry.name.startswith(begin):
                Path(entry.path).unlink(missing_ok=True)


@contextmanager
def opened(folder: Path) -> Iterator[FolderStore]:
    """Open a folder that exists. Raises BackupDestinationFailed with what to do."""
    if not folder.is_dir():
        raise BackupDestinationFailed(
            f"{folder} is not a folder of the master's machine. Create it, or mount what holds it: Mirbad creates "
            "none, so that a disk that is not mounted is noticed."
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BackupDestinationFailed(f"{folder} is not writable. Give the user that Mirbad runs as write access.")
    yield FolderStore(folder)
