"""The shape of a model by the headers in its folder. A few bytes of each file are read, never the weights."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from agent.common.formats import gguf as gguf_format
from agent.common.formats import gguf_names, safetensors
from agent.downloads import folders, gguf, headers
from agent.errors import AgentError
from agent.wire.capability import FolderFile
from agent.wire.errors import AgentCode
from agent.wire.shape import CONFIG_LIMIT, FolderShape, GgufModel, SafetensorsFile

INDEX = "model.safetensors.index.json"
_MAX_FILES, _MAX_HEADERS, _MAX_GGUF = 1000, 400, 64


def find_folder(root: Path, name: str, below: str = "") -> Path:
    """Return the folder `name` of the models root, or `below` it. AgentError NOT_FOUND, SPEC_REJECTED; blocking."""
    folder = folders.find(root, name)
    if below:
        folder = folder / _relative(below)
        if not folder.is_dir():
            raise AgentError(AgentCode.NOT_FOUND, f"this node has no model folder {name}/{below}")
    return folder


def read(folder: Path, files: Iterable[Path], file: str = "") -> FolderShape:
    """Return the shape of `folder`, which contains `files`. With `file` only that GGUF is read, else the first ones.

    Blocking. AgentError SPEC_REJECTED for a `file` that is no path below the folder.
    """
    requested = _relative(file) if file else None
    found = list(files)
    listed = found[:_MAX_FILES]
    config, config_problem = _config(folder)
    indexed, index_problem = _index(folder)
    # Engines read the weights in the folder itself; folders below it contain copies in other layouts.
    tensors = [path for path in listed if path.parent == folder and path.suffix == ".safetensors"][:_MAX_HEADERS]
    firsts = [path for path in listed if gguf_names.is_first(path.name) and not gguf_names.is_projector(path.name)]
    if requested is not None:
        firsts = [path for path in firsts if path == folder / requested]
    return FolderShape(
        folder=folder.name,
        files=tuple(_listed(folder, listed)),
        truncated=len(found) > _MAX_FILES,
        config=config,
        config_problem=config_problem,
        indexed=indexed,
        index_problem=index_problem,
        safetensors=tuple(_safetensors(folder, path) for path in tensors),
        gguf=tuple(_gguf(folder, path) for path in firsts[:_MAX_GGUF]),
    )


def _relative(text: str) -> PurePosixPath:
    parts = text.split("/")
    if "\0" in text or "\\" in text or any(part in ("", "..") or part.startswith(".") for part in parts):
        why = f"The path {text!r} must be relative, without empty parts or parts that start with a dot."
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
    data, problem = _bytes(folder / INDEX, safetensors.INDEX_LIMIT)
    if data is None:
        return None, problem
    try:
        return headers.indexed_files(folder / INDEX, data), None
    except (ValueError, OSError, safetensors.BadSafetensors):
        return None, f"{INDEX} is not a valid index of weights."


def _bytes(path: Path, limit: int) -> tuple[bytes | None, str | None]:
    """Return the content, or why it cannot be read; both are None for a file that does not exist."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror}."
    return (None, f"{path.name} is too large.") if len(data) > limit else (data, None)


def _safetensors(folder: Path, path: Path) -> SafetensorsFile:
    name, size = path.relative_to(folder).as_posix(), 0
    try:
        size = path.stat().st_size
        header = headers.sums_of(path)
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
    name, parts = first.relative_to(folder).as_posix(), [first]
    size, headers = 0, []
    try:
        parts = gguf.parts_of(first)
        size = sum(part.stat().st_size for part in parts)
        for part in parts:
            with part.open("rb") as file:
                headers.append(gguf_format.parse(file))
    except gguf_format.BadGguf as error:
        return GgufModel(path=name, parts=len(parts), size_bytes=size, problem=str(error))
    except OSError as error:
        problem = f"The file cannot be read: {error.strerror}."
        return GgufModel(path=name, parts=len(parts), size_bytes=size, problem=problem)
    if (expected := gguf_names.parts_expected(first.name)) > len(parts):
        problem = f"The model has {expected} parts, but only {len(parts)} exist."
        return GgufModel(path=name, parts=len(parts), size_bytes=size, problem=problem)
    head, known = headers[0], all(header.tensor_bytes is not None for header in headers)
    return GgufModel(
        path=name,
        parts=len(parts),
        size_bytes=size,
        values=gguf_format.shape_values(head),
        vocabulary=head.lengths.get("tokenizer.ggml.tokens"),
        tensor_bytes=sum(header.tensor_bytes or 0 for header in headers) if known else None,
        expert_bytes=sum(header.expert_bytes or 0 for header in headers) if known else None,
        input_table_bytes=sum(header.input_table_bytes or 0 for header in headers) if known else None,
    )
