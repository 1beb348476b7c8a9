"""The shape of a repository's weights, from its list of files and the first bytes of a few: no large download."""

import io
from collections.abc import Iterable

from agent.common.formats import gguf, safetensors
from agent.wire.capability import FolderFile
from agent.wire.shape import CONFIG_LIMIT, FolderShape, GgufModel, SafetensorsFile
from models_app.artifacts import hub, selection

_HEADERS = 4
"""The number of safetensors whose header is read; of the others the size is enough."""

_GGUF_BEGIN = 2 * 1024 * 1024
_FIRST = 512 * 1024
_MOST_HEADER = 32 * 1024 * 1024
"""The longest header that is fetched for an estimate; a node that has the file reads any."""


def read(found: hub.Repository, file: str = "") -> FolderShape:
    """Return the facts of a repository. Raises the errors of `hub.content`. Blocking."""
    names = [item.path for item in found.files]
    sizes = {item.path: item.size_bytes for item in found.files}
    config = None
    if "config.json" in sizes:
        data = hub.content(found, "config.json", CONFIG_LIMIT + 1)
        config = data.decode("utf-8", "replace") if len(data) <= CONFIG_LIMIT else None
    tensors = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    selected = [file] if file in sizes else [] if tensors else selection.gguf_models(names)[:1]
    return FolderShape(
        folder=selection.folder_for(found.name),
        files=tuple(FolderFile(path=name, size_bytes=size) for name, size in sorted(sizes.items())),
        config=config,
        config_problem="config.json is too large." if config is None and "config.json" in sizes else None,
        safetensors=tuple(_safetensors(found, name, sizes[name], at < _HEADERS) for at, name in enumerate(tensors)),
        gguf=tuple(_gguf(found, name, names, sizes) for name in selected if name.endswith(".gguf")),
    )


def _safetensors(found: hub.Repository, name: str, size: int, look: bool) -> SafetensorsFile:
    if not look:
        return SafetensorsFile(path=name, size_bytes=size)
    try:
        begin = hub.content(found, name, _FIRST)
        length = safetensors.header_length(begin)
        if length > _MOST_HEADER:
            return SafetensorsFile(path=name, size_bytes=size)
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
    parts = selection.shards_of(name, names)
    size = sum(sizes[part] for part in parts)
    header, problem = gguf.GgufHeader(), None
    try:
        gguf.fill(header, io.BytesIO(hub.content(found, name, _GGUF_BEGIN)), tensors=False)
    except gguf.CutShort:
        # The vocabulary makes headers long; the keys of the shape precede it.
        problem = None if header.values else "The file ends within its header."
    except gguf.BadGguf as error:
        problem = str(error)
    return GgufModel(
        path=name,
        parts=len(parts),
        size_bytes=size,
        values=gguf.shape_values(header),
        vocabulary=header.lengths.get("tokenizer.ggml.tokens"),
        problem=problem,
    )
