"""Atomic writes: a crash leaves the old or the new content of a file, never a part of it."""

import os
import tempfile
from pathlib import Path


def write_bytes(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the content of `path` by `data` in one rename, flushed to disk. Raises OSError."""
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


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace the content of `path` by `text` as UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode(), mode)


def sync_dir(path: Path) -> None:
    """Flush the entries of a folder, so that a new or renamed file in it survives a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
