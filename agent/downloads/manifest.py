"""What a download left in a folder: repository, commit, and each file as it was verified. Hidden, beside the files."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.state import write_bytes
from agent.wire.downloads import DownloadFile

NAME = ".mirbad.json"
_LIMIT = 8 * 1024 * 1024


class Verified(BaseModel):
    """A file as it was when its digest was right. Another size or time of change means: look again."""

    model_config = ConfigDict(frozen=True)

    path: str
    size: int
    digest: str
    mtime_ns: int

    def stands(self, folder: Path) -> bool:
        """Whether the file is there, unchanged since. Blocking."""
        try:
            found = (folder / self.path).stat()
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) == (self.size, self.mtime_ns)


class Manifest(BaseModel):
    """The content of `NAME`."""

    model_config = ConfigDict(frozen=True)

    repository: str
    commit: str
    files: Annotated[tuple[Verified, ...], Field(max_length=20_000)] = ()

    def of(self, file: DownloadFile) -> Verified | None:
        """What is noted of `file` under the same digest."""
        return next((v for v in self.files if (v.path, v.digest) == (file.path, file.digest)), None)

    def missing(self, folder: Path) -> tuple[str, ...]:
        """Paths of files that are not there as they were verified. Blocking."""
        return tuple(file.path for file in self.files if not file.stands(folder))

    def with_file(self, folder: Path, file: DownloadFile) -> "Manifest":
        """The manifest that also vouches for `file`, which was verified just now. OSError when it is gone."""
        noted = note(folder, file)
        kept = tuple(other for other in self.files if other.path != file.path)
        return self.model_copy(update={"files": (*kept, noted)})


def note(folder: Path, file: DownloadFile) -> Verified:
    """`file` of `folder` as it is now. OSError when it is gone."""
    found = (folder / file.path).stat()
    return Verified(path=file.path, size=file.size_bytes, digest=file.digest, mtime_ns=found.st_mtime_ns)


def read(folder: Path) -> Manifest | None:
    """The manifest of `folder`; None when there is none, or it cannot be read. Blocking."""
    path = folder / NAME
    try:
        if path.stat().st_size > _LIMIT:
            return None
        return Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def write(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, flushed to disk. Blocking; OSError as the disk says."""
    write_bytes(folder / NAME, manifest.model_dump_json().encode(), 0o644)
