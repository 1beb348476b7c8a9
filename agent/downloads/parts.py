"""A file that is being fetched: its bytes so far on disk, named by the digest of the whole, and hashed as they come."""

import hashlib
import os
import threading
from pathlib import Path
from typing import BinaryIO, Protocol

from agent.state import read_json, sync_dir, write_json
from agent.wire.downloads import DownloadFile

_BLOCK = 4 * 1024 * 1024


class _Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def new_hash(file: DownloadFile) -> _Hash:
    """The hash that `file` is stated in; Git puts a header before the content."""
    if file.digest.startswith("git-sha1:"):
        hasher = hashlib.sha1(usedforsecurity=False)
        hasher.update(f"blob {file.size_bytes}\0".encode())
        return hasher
    return hashlib.sha256()


def digest_of(path: Path, file: DownloadFile) -> str:
    """The digest of what is in `path`, in the form of `file`. Blocking; OSError as the disk says."""
    hasher = new_hash(file)
    with path.open("rb") as source:
        while block := source.read(_BLOCK):
            hasher.update(block)
    return f"{file.digest.partition(':')[0]}:{hasher.hexdigest()}"


class Part:
    """The bytes of one file so far. All methods block; call them in a thread, one at a time.

    `validator` is the ETag that the bytes came under, for If-Range; it is kept beside them.
    """

    def __init__(self, folder: Path, file: DownloadFile) -> None:
        self.file = file
        self.path = folder / f"{file.digest.replace(':', '-')}.part"
        self.size = 0
        self.validator: str | None = None
        self._note = self.path.with_suffix(".etag")
        self._hasher = new_hash(file)
        self._handle: BinaryIO | None = None
        # A task that is cancelled leaves its thread writing: the file is closed after that, never under it.
        self._lock = threading.Lock()
        self._ended = False

    def open(self) -> None:
        """Take up what an earlier try left: the bytes are read again, so that the digest covers them."""
        with self._lock:
            if self._ended:
                return
            handle = self._handle = self.path.open("a+b", buffering=0)
            if os.fstat(handle.fileno()).st_size > self.file.size_bytes:
                handle.truncate(0)
            handle.seek(0)
            while not self._ended and (block := handle.read(_BLOCK)):
                self._hasher.update(block)
                self.size += len(block)
        try:
            note = read_json(self._note)
        except ValueError:
            note = None
        self.validator = note if isinstance(note, str) else None

    def note_validator(self, etag: str | None) -> None:
        """Keep the ETag of the answer that the bytes come from. Weak ones do not vouch for bytes."""
        strong = etag if etag and not etag.startswith("W/") else None
        if strong == self.validator:
            return
        self.validator = strong
        if strong is None:
            self._note.unlink(missing_ok=True)
        else:
            write_json(self._note, strong)

    def append(self, data: bytes) -> None:
        """Write `data` after what is there. OSError when the disk is full; what was written counts."""
        with self._lock:
            handle = self._opened()
            view = memoryview(data)
            while view:
                written = handle.write(view) or 0
                self._hasher.update(view[:written])
                self.size += written
                view = view[written:]

    def restart(self) -> None:
        """Forget every byte."""
        self._opened().truncate(0)
        self._hasher = new_hash(self.file)
        self.size = 0

    @property
    def is_whole(self) -> bool:
        """Whether size and digest are those of the file."""
        return self.size == self.file.size_bytes and self.file.digest.endswith(f":{self._hasher.hexdigest()}")

    def finish(self, target: Path) -> None:
        """Flush it to disk and put it in place as `target`; only for a part that is whole."""
        os.fchmod(self._opened().fileno(), 0o644)
        os.fsync(self._opened().fileno())
        self.close()
        target.parent.mkdir(parents=True, exist_ok=True)
        self.path.replace(target)
        sync_dir(target.parent)
        self._note.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; the bytes stay. An `open` that still reads gives up."""
        self._ended = True
        with self._lock:
            if self._handle is not None:
                self._handle.close()
                self._handle = None

    def _opened(self) -> BinaryIO:
        if self._handle is None:
            raise RuntimeError("the part is not open")
        return self._handle
