"""Files of the agent's state folder: written whole, flushed to disk, then put in place."""

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.clock import monotonic


def ensure_private_dir(path: Path) -> Path:
    """Make `path` (and its parents) with mode 0700. OSError when it cannot be made."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def write_bytes(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` by `data` so that a crash leaves the old or the new content, never a part; fsynced."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_dir(path.parent)


def sync_dir(path: Path) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """`write_bytes` for a JSON value."""
    write_bytes(path, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def read_json(path: Path) -> Any | None:
    """The JSON value in `path`, None when there is no such file. ValueError when it is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


class Locked(Exception):
    """Another process holds the lock; `holder` is its process id, empty when it did not say."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"held by process {holder or 'unknown'}")
        self.holder = holder


LOCK_PATIENCE_SECONDS = 0.5
"""Long enough for one who only looks (`is_locked`), or for a holder that is just ending."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file `path` until the block ends, or the process does. Locked when another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = monotonic() + LOCK_PATIENCE_SECONDS
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if monotonic() > deadline:
                raise Locked(os.pread(descriptor, 32, 0).decode("ascii", "replace").strip())
            time.sleep(0.02)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file `path` now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
