"""``GET /agent/v1/folders/{folder}/shape``: the headers of the files in a model folder, never the weights."""

from pydantic import Field

from agent.common.formats.gguf import GgufValue
from agent.wire.base import Whole, WireModel
from agent.wire.capability import FolderFile

CONFIG_LIMIT = 1024 * 1024
"""Bytes of a ``config.json`` that are read."""


class SafetensorsFile(WireModel):
    """One safetensors file. The sums are over its tensors; None when `problem` says why its header is unreadable."""

    path: str
    size_bytes: Whole
    tensor_bytes: Whole | None = None
    expert_bytes: Whole | None = None
    bytes_by_type: dict[str, Whole] = {}
    problem: str | None = None


class GgufModel(WireModel):
    """One GGUF model with all its parts. `vocabulary` counts its tokens; `values` are the keys of its shape."""

    path: str
    parts: int
    size_bytes: Whole
    values: dict[str, GgufValue] = {}
    vocabulary: Whole | None = None
    tensor_bytes: Whole | None = None
    expert_bytes: Whole | None = None
    input_table_bytes: Whole | None = None
    problem: str | None = None


class FolderShape(WireModel):
    """The facts from which a model's memory is estimated.

    `config` is the raw text of ``config.json``, which need not be JSON; `indexed` are the files that
    ``model.safetensors.index.json`` names, None without one. Paths are relative to `folder`.
    """

    folder: str
    files: tuple[FolderFile, ...] = ()
    truncated: bool = False
    config: str | None = Field(default=None, max_length=CONFIG_LIMIT)
    config_problem: str | None = None
    indexed: tuple[str, ...] | None = None
    index_problem: str | None = None
    safetensors: tuple[SafetensorsFile, ...] = ()
    gguf: tuple[GgufModel, ...] = ()
