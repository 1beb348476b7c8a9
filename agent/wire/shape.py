"""``GET /agent/v1/folders/{folder}/shape``: what the headers in a model folder say; never the weights themselves."""

from pydantic import Field

from agent.wire.base import Whole, WireModel
from agent.wire.capability import FolderFile
from agent.wire.gguf import Header

CONFIG_LIMIT = 1024 * 1024
"""Bytes of a ``config.json`` that are read."""

Plain = bool | int | float | str | tuple[int | float, ...]
"""A value of a GGUF header: plain, or a short list of numbers."""


class SafetensorsFile(WireModel):
    """One safetensors file. The sums are of its tensors; None with the problem that kept its header from being read."""

    path: str
    size_bytes: Whole
    tensor_bytes: Whole | None = None
    expert_bytes: Whole | None = None
    bytes_by_type: dict[str, Whole] = {}
    problem: str | None = None


class GgufModel(WireModel):
    """One GGUF model with all its parts. `vocabulary` counts its tokens; `values` are the keys that say its shape."""

    path: str
    parts: int
    size_bytes: Whole
    values: dict[str, Plain] = {}
    vocabulary: Whole | None = None
    tensor_bytes: Whole | None = None
    expert_bytes: Whole | None = None
    input_table_bytes: Whole | None = None
    problem: str | None = None


class FolderShape(WireModel):
    """The facts from which a model's memory is estimated.

    `config` is the text of ``config.json`` as it lies there, which need not be JSON; `indexed` are the files that
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


def shape_values(header: Header) -> dict[str, Plain]:
    """The keys of a header that say the model's shape: general ones, and those of its architecture."""
    prefixes = ("general.", f"{header.values.get('general.architecture')}.", "split.")
    found: dict[str, Plain] = {}
    for name, value in header.values.items():
        if not name.startswith(prefixes) or value is None or (isinstance(value, str) and len(value) > 200):
            continue
        found[name] = tuple(value) if isinstance(value, list) else value
    return found
