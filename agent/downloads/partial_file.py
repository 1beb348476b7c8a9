"""A file that is being fetched: its bytes so far on disk, named by the digest of the whole, and hashed on arrival."""

import errno
import hashlib
import os
import threading
from pathlib import Path
from typing import BinaryIO, Protocol

from agent.common.files import sync_dir
from agent.state import read_json, write_json
from agent.wire.downloads import DownloadFile

_BLOCK = 4 * 1024 * 1024


class _Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def new_hash(file: DownloadFile) -> _Hash:
    """Return the hash of `file`'s digest; Git's has a header before the content."""
    if file.digest.startswith("git-sha1:"):
        hasher = hashlib.sha1(usedforsecurity=False)
        hasher.update(f"blob {file.size_bytes}\0".encode())
        return hasher
    return hashlib.sha256()


def digest_of(path: Path, file: DownloadFile) -> str:
    """Return the digest of the file at `path`, in the form of `file`. Blocking; OSError from the disk."""
    hasher = new_hash(file)
    with path.open("rb") as source:
        while block := source.read(_BLOCK):
            hasher.update(block)
    return f"{file.digest.partition(':')[0]}:{hasher.hexdigest()}"


class PartialFile:
    """The bytes of one file so far. All methods block; call them in a thread, one at a time.

    `validator` is the ETag of the bytes, for If-Range; it is stored next to them.
    """

    def __init__(self, folder: Path, file: DownloadFile) -> None:
        self.file = file
        self.path = folder / f"{file.digest.replace(':', '-')}.part"
        self.size = 0
        self.validator: str | None = None
        self._note = self.path.with_suffix(".etag")
        self._hasher = new_hash(file)
        self._handle: BinaryIO | None = None
        # A cancelled task leaves its thread writing: the file is closed after that, never under it.
        self._lock = threading.Lock()
        self._ended = False

    def open(self) -> None:
        """Open the bytes of an earlier try: they are read again, so that the digest covers them."""
        with self._lock:
            if self._ended:
                return
            # Written at its own position, not appended: a second writer of this file writes the same bytes there.
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            handle = self._handle = os.fdopen(descriptor, "r+b", buffering=0)
            if os.fstat(descriptor).st_size > self.file.size_bytes:
                handle.truncate(0)
            while not self._ended and (block := handle.read(_BLOCK)):
                self._hasher.update(block)
                self.size += len(block)
        try:
            note = read_json(self._note)
        except ValueError:
            note = None
        self.validator = note if isinstance(note, str) else None

    def note_validator(self, etag: str | None) -> None:
        """Store the ETag of the response that the bytes are from. A weak one does not identify bytes."""
        strong = etag if etag and not etag.startswith("W/") else None
        if strong == self.validator:
            return
        self.validator = strong
        if strong is None:
            self._note.unlink(missing_ok=True)
        else:
            write_json(self._note, strong)

    def append(self, data: bytes) -> None:
        """Append `data`. OSError when the disk is full; the bytes written so far count."""
        with self._lock:
            handle = self._opened()
            view = memoryview(data)
            while view:
                written = handle.write(view) or 0
                self._hasher.update(view[:written])
                self.size += written
                view = view[written:]

    def restart(self) -> None:
        """Discard every byte."""
        self._opened().seek(0)
        self._opened().truncate(0)
        self._hasher = new_hash(self.file)
        self.size = 0

    @property
    def is_whole(self) -> bool:
        """True when size and digest are those of the file."""
        return self.size == self.file.size_bytes and self.file.digest.endswith(f":{self._hasher.hexdigest()}")

    def finish(self, target: Path) -> None:
        """Flush the file to disk and rename it to `target`; only for a whole one.

        OSError ESTALE when the file on disk is not the one that was written.
        """
        descriptor = self._opened().fileno()
        os.fchmod(descriptor, 0o644)
        os.fsync(descriptor)
        written, named = os.fstat(descriptor), self.path.stat()
        self.close()
        if (written.st_dev, written.st_ino, written.st_size) != (named.st_dev, named.st_ino, self.file.size_bytes):
            raise OSError(errno.ESTALE, "another program changed it meanwhile", str(self.path))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.path.replace(target)
        sync_dir(target.parent)
        self._note.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; the bytes stay. An `open` that is still reading gives up."""
        self._ended = True
        with self._lock:
            if self._handle is not None:
                self._handle.close()
                self._handle = None

    def _opened(self) -> BinaryIO:
        if self._handle is None:
            raise RuntimeError("the part is not open")
        return self._handle
