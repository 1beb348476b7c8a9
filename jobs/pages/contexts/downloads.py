"""View-model of downloads."""

from dataclasses import dataclass
from datetime import datetime

from jobs.kinds import download
from jobs.models import Operation
from jobs.pages.contexts.rows import OperationRow, row
from mirbad.web import parts


@dataclass(frozen=True, slots=True)
class DownloadRow:
    """A download at a glance."""

    operation: OperationRow
    repository: str
    commit: str
    folder: str
    files: int
    size: str
    speed: str
    finished_at: datetime | None

    @property
    def may_forget(self) -> bool:
        """True when the node may have unfinished files of it."""
        return not self.operation.open and self.operation.badge.tone != "ok"

    @property
    def is_complete(self) -> bool:
        """True when it succeeded."""
        return not self.operation.open and self.operation.badge.tone == "ok"


def download_row(operation: Operation) -> DownloadRow:
    """Return the row of one download. Raises ValidationError for a row of another version."""
    spec = download.KIND.step(operation).input.spec
    speed = (operation.progress or {}).get("bytesPerSecond")
    return DownloadRow(
        operation=row(operation),
        repository=spec.repository,
        commit=spec.commit,
        folder=spec.folder,
        files=len(spec.files),
        size=parts.size(spec.total_bytes),
        speed=f"{parts.size(speed)}/s" if speed is not None else "",
        finished_at=operation.finished_at,
    )
