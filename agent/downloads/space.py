"""The free space of the models root's disk, shared by all sets that are fetched at the same moment."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agent.downloads.failures import DownloadFailed
from agent.downloads.staging import Staging
from agent.wire.downloads import DownloadFile

MARGIN_BYTES = 256 * 1024 * 1024
"""Space of the disk that downloads leave free."""

FreeBytes = Callable[[Path], int]


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write on the disk of `path`."""
    return shutil.disk_usage(path).free


@dataclass(frozen=True)
class _Reservation:
    """The missing files of one set that is fetched."""

    staging: Staging
    files: tuple[DownloadFile, ...]

    def outstanding_bytes(self) -> int:
        """Return the bytes that are not on disk yet. Blocks."""
        return sum(self.staging.outstanding_bytes(file) for file in self.files)


@dataclass
class DiskSpace:
    """The space that sets in progress still need. `free` measures the disk."""

    free: FreeBytes = free_bytes
    _reservations: list[_Reservation] = field(default_factory=list)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @asynccontextmanager
    async def reserved(self, staging: Staging, files: list[DownloadFile]) -> AsyncIterator[None]:
        """Reserve the space of `files` while the block runs.

        DownloadFailed when the disk lacks it, beside what the other sets in progress still need.
        """
        mine = _Reservation(staging, tuple(files))
        async with self._lock:
            await asyncio.to_thread(self._require, mine, list(self._reservations))
            self._reservations.append(mine)
        try:
            yield
        finally:
            self._reservations.remove(mine)

    def _require(self, mine: _Reservation, others: list[_Reservation]) -> None:
        needed = sum(mine.staging.outstanding_bytes(file, is_fetched=False) for file in mine.files)
        if needed <= 0:
            return
        # Measured before the others' files are looked at: bytes that arrive in between count twice, never not at all.
        available = self.free(mine.staging.root)
        promised = sum(other.outstanding_bytes() for other in others)
        short = needed + promised + MARGIN_BYTES - available
        if short <= 0:
            return
        also = f", {_size(promised)} of them for downloads in progress" if promised else ""
        text = (
            f"The download needs {_size(needed)} more and leaves {_size(MARGIN_BYTES)} free, but the disk of "
            f"{mine.staging.root} has {_size(available)} free{also}. Free {_size(short)} first."
        )
        raise DownloadFailed("disk_full", text)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
