"""What the headers in a model folder say of the model in it. A few bytes of each file are read, never the weights."""

import json
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from agent.downloads import folders, gguf
from agent.errors import AgentError
from agent.wire import gguf as wire_gguf
from agent.wire import safetensors
from agent.wire.capability import FolderFile
from agent.wire.errors import AgentCode
from agent.wire.shape import CONFIG_LIMIT, FolderShape, GgufModel, SafetensorsFile, shape_values

INDEX = "model.safetensors.index.json"
_MOST_FILES, _MOST_HEADERS, _MOST_GGUF = 1000, 400, 64
_SPLIT = re.compile(r"-00001-of-(\d{5})\.gguf$")
_INDEX_LIMIT = 32 * 1024 * 1024


def place(root: Path, name: str, below: str = "") -> Path:
    """The folder `name` of the models root, or the one `below` it. AgentError NOT_FOUND, SPEC_REJECTED; blocking."""
    folder = folders.find(root, name)
    if below:
        folder = folder / _relative(below)
        if not folder.is_dir():
            raise AgentError(AgentCode.NOT_FOUND, f"this node has no model folder {name}/{below}")
    return folder


def read(folder: Path, files: Iterable[Path], file: str = "") -> FolderShape:
    """The facts of `folder`, which holds `files`. With `file`, that GGUF alone is read, else the first ones. Blocking.

    AgentError SPEC_REJECTED for a `file` that is no path below the folder.
    """
    wanted = _relative(file) if file else None
    found = list(files)
    listed = found[:_MOST_FILES]
    config, config_problem = _config(folder)
    indexed, index_problem = _index(folder)
    # Engines read the weights that lie in the folder itself; copies in other layouts stand below it.
    tensors = [path for path in listed if path.parent == folder and path.suffix == ".safetensors"][:_MOST_HEADERS]
    firsts = [path for path in listed if gguf.is_first(path) and "mmproj" not in path.name.lower()]
    if wanted is not None:
        firsts = [path for path in firsts if path == folder / wanted]
    return FolderShape(
        folder=folder.name,
        files=tuple(_listed(folder, listed)),
        truncated=len(found) > _MOST_FILES,
        config=config,
        config_problem=config_problem,
        indexed=indexed,
        index_problem=index_problem,
        safetensors=tuple(_safetensors(folder, path) for path in tensors),
        gguf=tuple(_gguf(folder, path) for path in firsts[:_MOST_GGUF]),
    )


def _relative(text: str) -> PurePosixPath:
    parts = text.split("/")
    if "\0" in text or "\\" in text or any(part in ("", "..") or part.startswith(".") for part in parts):
        why = f"The path {text!r} must be relative, with no part that is empty or begins with a dot."
        raise AgentError(AgentCode.SPEC_REJECTED, why)
    return PurePosixPath(text)


def _listed(folder: Path, paths: Iterable[Path]) -> Iterable[FolderFile]:
    for path in paths:
        try:
            yield FolderFile(path=path.relative_to(folder).as_posix(), size_bytes=path.stat().st_size)
        except OSError:
            continue


def _config(folder: Path) -> tuple[str | None, str | None]:
    data, problem = _bytes(folder / "config.json", CONFIG_LIMIT)
    return (None, problem) if data is None else (data.decode("utf-8", "replace"), None)


def _index(folder: Path) -> tuple[tuple[str, ...] | None, str | None]:
    data, problem = _bytes(folder / INDEX, _INDEX_LIMIT)
    if data is None:
        return None, problem
    try:
        return indexed_files(data), None
    except ValueError:
        return None, f"{INDEX} cannot be read as an index of weights."


def indexed_files(data: bytes) -> tuple[str, ...]:
    """The files that an index of safetensors names. ValueError when it is none."""
    try:
        found: Any = json.loads(data)
        names = set(found["weight_map"].values())
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError("no index of weights") from error
    if not all(isinstance(name, str) for name in names):
        raise ValueError("no index of weights")
    return tuple(sorted(names))


def _bytes(path: Path, limit: int) -> tuple[bytes | None, str | None]:
    """The content, or why there is none; both None for a file that is not there."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror}."
    return (None, f"{path.name} is larger than any may be.") if len(data) > limit else (data, None)


def _safetensors(folder: Path, path: Path) -> SafetensorsFile:
    name, size = path.relative_to(folder).as_posix(), 0
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = safetensors.parse(file)
    except safetensors.BadSafetensors as error:
        return SafetensorsFile(path=name, size_bytes=size, problem=str(error))
    except OSError as error:
        return SafetensorsFile(path=name, size_bytes=size, problem=f"The file cannot be read: {error.strerror}.")
    return SafetensorsFile(
        path=name,
        size_bytes=size,
        tensor_bytes=header.tensor_bytes,
        expert_bytes=header.expert_bytes,
        bytes_by_type=header.by_type,
    )


def _gguf(folder: Path, first: Path) -> GgufModel:
    name, parts = first.relative_to(folder).as_posix(), gguf.parts_of(first)
    size, headers = 0, []
    try:
        size = sum(part.stat().st_size for part in parts)
        for part in parts:
            with part.open("rb") as file:
                headers.append(wire_gguf.parse(file))
    except wire_gguf.BadGguf as error:
        return GgufModel(path=name, parts=len(parts), size_bytes=size, problem=str(error))
    except OSError as error:
        problem = f"The file cannot be read: {error.strerror}."
        return GgufModel(path=name, parts=len(parts), size_bytes=size, problem=problem)
    if (wanted := _parts_wanted(first)) > len(parts):
        problem = f"The model has {wanted} parts, of which {len(parts)} are there."
        return GgufModel(path=name, parts=len(parts), size_bytes=size, problem=problem)
    head, known = headers[0], all(header.tensor_bytes is not None for header in headers)
    return GgufModel(
        path=name,
        parts=len(parts),
        size_bytes=size,
        values=shape_values(head),
        vocabulary=head.lengths.get("tokenizer.ggml.tokens"),
        tensor_bytes=sum(header.tensor_bytes or 0 for header in headers) if known else None,
        expert_bytes=sum(header.expert_bytes or 0 for header in headers) if known else None,
        input_table_bytes=sum(header.input_table_bytes or 0 for header in headers) if known else None,
    )


def _parts_wanted(first: Path) -> int:
    found = _SPLIT.search(first.name)
    return int(found[1]) if found else 1
