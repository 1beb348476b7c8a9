"""Weights under the models root: from the names in a spec to real paths."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from agent.errors import AgentError
from agent.runtimes.base import Source
from agent.runtimes.flags import rejected
from agent.wire.errors import AgentCode
from agent.wire.instances import SourceSpec

_MAX_FILES = 20_000


def _missing(why: str) -> AgentError:
    return AgentError(AgentCode.SOURCE_MISSING, why)


def _relative(text: str, what: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if not text or "\x00" in text or path.is_absolute() or ".." in path.parts or path == PurePosixPath("."):
        raise rejected(f"the {what} '{text}' must be a relative path without '..'.")
    return path


def find_folder(models_root: Path, source: SourceSpec) -> Path:
    """The folder that `source` names. Links are followed: who may write there decides what they show."""
    folder = models_root / _relative(source.folder, "model folder")
    if not folder.is_dir():
        raise _missing(
            f"The model folder '{source.folder}' does not exist under {models_root} on this node; download the model "
            "there or choose another folder."
        )
    return folder


def find_file(folder: Path, source: SourceSpec, suffix: str) -> Path:
    """The file that `source` names, or the only one in the folder that ends with `suffix`."""
    if source.file is not None:
        path = folder / _relative(source.file, "model file")
        if not path.is_file():
            raise _missing(f"The file '{source.file}' does not exist in the model folder '{source.folder}'.")
        return path
    found = sorted(path for path in files_of(folder) if path.name.endswith(suffix))
    heads = [path for path in found if "-of-" not in path.name or "-00001-of-" in path.name]
    if not heads:
        raise _missing(f"The model folder '{source.folder}' holds no {suffix} file.")
    if len(heads) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in heads[:6])
        raise rejected(f"the model folder '{source.folder}' holds several {suffix} files ({names}); name one.")
    return heads[0]


def files_of(folder: Path) -> Iterator[Path]:
    """Files in `folder` and below, links to folders not followed, at most 20,000; names with a leading dot left out."""
    count = 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith("."):
                continue
            yield Path(root) / name
            count += 1
            if count >= _MAX_FILES:
                return


def shards_of(file: Path) -> list[Path]:
    """`file`, and its further parts when it is the first of a split GGUF."""
    if "-00001-of-" not in file.name:
        return [file]
    head, tail = file.name.split("-00001-of-", 1)
    return sorted(path for path in file.parent.glob("*") if path.name.startswith(head) and path.name.endswith(tail))


def describe(path: Path, folder: Path, files: list[Path]) -> Source:
    """A Source for `path`. Files that are links out of the folder are mounted too, at their own place."""
    real_folder = folder.resolve()
    mounts = {real_folder}
    size = 0
    for file in files:
        real = file.resolve()
        try:
            size += real.stat().st_size
        except OSError as error:
            raise _missing(f"The file {file} cannot be read: {error.strerror}.") from error
        if not real.is_relative_to(real_folder):
            mounts.add(real)
    return Source(path=real_folder / path.relative_to(folder), mounts=tuple(sorted(mounts)), size_bytes=size)
