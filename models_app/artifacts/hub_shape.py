"""The shape of a repository's weights, from its list of files and the begin of a few: nothing large is fetched."""

import io
from collections.abc import Iterable

from agent.wire import gguf, safetensors
from agent.wire.capability import FolderFile
from agent.wire.shape import CONFIG_LIMIT, FolderShape, GgufModel, SafetensorsFile, shape_values
from models_app.artifacts import choose, hub

_HEADERS = 4
"""Safetensors of which the header is read; of the others the size is enough."""

_GGUF_BEGIN = 2 * 1024 * 1024
_FIRST = 512 * 1024


def read(found: hub.Repository, file: str = "") -> FolderShape:
    """The facts of a repository. Raises what `hub.content` raises. Blocking."""
    names = [item.path for item in found.files]
    sizes = {item.path: item.size_bytes for item in found.files}
    config = None
    if "config.json" in sizes:
        data = hub.content(found, "config.json", CONFIG_LIMIT + 1)
        config = data.decode("utf-8", "replace") if len(data) <= CONFIG_LIMIT else None
    tensors = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    wanted = [file] if file in sizes else [] if tensors else choose.gguf_models(names)[:1]
    return FolderShape(
        folder=choose.folder_for(found.name),
        files=tuple(FolderFile(path=name, size_bytes=size) for name, size in sorted(sizes.items())),
        config=config,
        config_problem="config.json is larger than any may be." if config is None and "config.json" in sizes else None,
        safetensors=tuple(_safetensors(found, name, sizes[name], at < _HEADERS) for at, name in enumerate(tensors)),
        gguf=tuple(_gguf(found, name, names, sizes) for name in wanted if name.endswith(".gguf")),
    )


def _safetensors(found: hub.Repository, name: str, size: int, look: bool) -> SafetensorsFile:
    if not look:
        return SafetensorsFile(path=name, size_bytes=size)
    try:
        begin = hub.content(found, name, _FIRST)
        length = safetensors.header_length(begin)
        if 8 + length > len(begin):
            begin = hub.content(found, name, 8 + length)
        header = safetensors.summed(begin[8 : 8 + length])
    except safetensors.BadSafetensors as error:
        return SafetensorsFile(path=name, size_bytes=size, problem=str(error))
    return SafetensorsFile(
        path=name,
        size_bytes=size,
        tensor_bytes=header.tensor_bytes,
        expert_bytes=header.expert_bytes,
        bytes_by_type=header.by_type,
    )


def _gguf(found: hub.Repository, name: str, names: Iterable[str], sizes: dict[str, int]) -> GgufModel:
    parts = choose.shards_of(name, names)
    size = sum(sizes[part] for part in parts)
    header, problem = gguf.Header(), None
    try:
        gguf.fill(header, io.BytesIO(hub.content(found, name, _GGUF_BEGIN)), tensors=False)
    except gguf.CutShort:
        # The vocabulary makes headers long; the keys of the shape stand before it.
        problem = None if header.values else "The file is cut short in its header."
    except gguf.BadGguf as error:
        problem = str(error)
    return GgufModel(
        path=name,
        parts=len(parts),
        size_bytes=size,
        values=shape_values(header),
        vocabulary=header.lengths.get("tokenizer.ggml.tokens"),
        problem=problem,
    )
