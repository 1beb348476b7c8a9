"""The parts that all kinds of destinations share."""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from jobs.errors import BackupDestinationFailed

PIECE_BYTES = 1024**2
PART = ".part-"
"""The mark of a copy that is not whole: ``.{name}.part-{random}``."""


class DestinationStore(Protocol):
    """A destination while it is open. Raises BackupDestinationFailed and OSError."""

    def put(self, file: Path, name: str, sha256: str) -> None:
        """Copy `file` so that it appears under `name` whole or not at all; repeated, it changes nothing."""

    def remove(self, name: str) -> None:
        """Delete a copy and what is left of interrupted ones; one that is not there is no error."""

    def digest(self, name: str) -> str | None:
        """Return the SHA-256 of what is there under `name`, None when nothing is."""


Opened = AbstractContextManager[DestinationStore]


def sha256_of(pieces: Iterator[bytes]) -> str:
    """Return the SHA-256 of bytes that arrive in pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def pieces_of(path: Path) -> Iterator[bytes]:
    """Yield a file in pieces."""
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def other_content(name: str) -> BackupDestinationFailed:
    """Return the refusal to replace a file."""
    return BackupDestinationFailed(f"{name} is at the destination already, with other content. It was not replaced.")


def damaged(name: str) -> BackupDestinationFailed:
    """Return the failure of a copy that reads differently."""
    return BackupDestinationFailed(
        f"The copy of {name} at the destination reads differently from the file; it was deleted. Check its storage."
    )
