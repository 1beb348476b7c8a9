"""Files and locks of the agent's state folder."""

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.clock import monotonic
from agent.common.files import write_bytes


def ensure_private_dir(path: Path) -> Path:
    """Create `path` (and its parents) with mode 0700, take the rights of others from one that exists, and return it.

    Raises OSError.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def write_json(path: Path, value: Any) -> None:
    """Replace the content of `path` by a JSON value, as `write_bytes` does."""
    write_bytes(path, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def read_json(path: Path) -> Any | None:
    """Return the JSON value in `path`, None without the file. Raises ValueError for invalid JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


class Locked(Exception):
    """Another process holds the lock; `holder` is its process id and more, empty when unknown."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"locked by process {holder or 'unknown'}")
        self.holder = holder


class NoLocks(OSError):
    """The file system has no locks: an old one, or NFS without its lock service."""


_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_HOLDER_BYTES = 400

LOCK_PATIENCE_SECONDS = 0.5
"""Long enough for a process that only checks (`is_locked`), or for a holder that is ending."""


@contextmanager
def exclusive(path: Path, holder: str = "") -> Iterator[None]:
    """Hold the lock file `path` until the block or the process ends. Raises Locked, NoLocks, OSError.

    The first line of `holder` is for those who wait, the process id by default.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = monotonic() + LOCK_PATIENCE_SECONDS
        while not _try_lock(descriptor, fcntl.LOCK_EX, path):
            if monotonic() > deadline:
                raise Locked(
                    os.pread(descriptor, _HOLDER_BYTES, 0).decode("utf-8", "replace").partition("\n")[0].strip()
                )
            time.sleep(0.02)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{holder or os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock file `path` now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH, path)
    except NoLocks:
        # Nothing can hold it there.
        return False
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        text = f"its file system has no file locks ({error.strerror}). Use a local disk, or mount it with locks"
        raise NoLocks(error.errno, text, str(path)) from error
    return True
