"""Weights under the models root: from the names in a spec to real paths."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from agent.errors import AgentError
from agent.runtimes.base import WeightsSource
from agent.runtimes.flags import rejected
from agent.wire.errors import AgentCode
from agent.wire.instances import SourceSpec

_MAX_FILES = 20_000


def missing(why: str) -> AgentError:
    """Return the refusal of a launch whose weights are not on this node."""
    return AgentError(AgentCode.SOURCE_MISSING, why)


def relative(text: str, what: str) -> PurePosixPath:
    """Return a path of a spec. AgentError SPEC_REJECTED unless it is relative and without ``..``."""
    path = PurePosixPath(text)
    if not text or "\x00" in text or path.is_absolute() or ".." in path.parts or path == PurePosixPath("."):
        raise rejected(f"the {what} '{text}' must be a relative path without '..'.")
    return path


def find_folder(models_root: Path, source: SourceSpec) -> Path:
    """Return the folder that `source` names. Links are followed: write access there is trusted."""
    folder = models_root / relative(source.folder, "model folder")
    if not folder.is_dir():
        raise missing(
            f"The model folder '{source.folder}' does not exist in {models_root} on this node. Download the model "
            "or choose another folder."
        )
    return folder


def files_of(folder: Path, failed: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Yield the files in `folder` and below: at most 20,000, no linked folders, no names with a leading dot.

    `failed` is called for each folder that cannot be listed; without it such a folder counts as empty.
    """
    count = 0
    for root, folders, names in os.walk(folder, onerror=failed):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith("."):
                continue
            yield Path(root) / name
            count += 1
            if count >= _MAX_FILES:
                return


def describe(path: Path, folder: Path, files: list[Path]) -> WeightsSource:
    """Return the WeightsSource for `path`. Files that link out of the folder are mounted at their own path too."""
    real_folder = _real(folder)
    mounts = {real_folder}
    size = 0
    for file in files:
        real = _real(file)
        try:
            size += real.stat().st_size
        except OSError as error:
            raise missing(f"The file {file} cannot be read: {error.strerror}.") from error
        if not real.is_relative_to(real_folder):
            mounts.add(real)
    return WeightsSource(path=real_folder / path.relative_to(folder), mounts=tuple(sorted(mounts)), size_bytes=size)


def _real(path: Path) -> Path:
    # Unlike Path.resolve it raises nothing for links that form a loop; the file itself then cannot be read.
    return Path(os.path.realpath(path))
