"""A public model as a test describes it, and what engines need for its cache by their rules, spelled out by hand."""

import json
from dataclasses import dataclass, field
from typing import Any

from agent.wire.capability import FolderFile
from agent.wire.shape import FolderShape, SafetensorsFile


@dataclass(frozen=True)
class Layers:
    """`count` layers in each of which a token keeps `numbers` (keys and values of all heads) of `heads`."""

    count: int
    numbers: int
    heads: int = 1
    window: int | None = None
    split: bool = True
    state: int = 0


@dataclass(frozen=True)
class Public:
    """One model: repository, configuration, bytes of its weights, and its cache by hand."""

    name: str
    total_size: int
    config: dict[str, Any]
    rule: tuple[Layers, ...]
    context: int
    beside: tuple[tuple[str, int], ...] = ()
    kind: str = "BF16"
    expert_bytes: int | None = field(default=0)

    def folder(self) -> FolderShape:
        """Return the shape that a node would report of a folder with it."""
        weights = SafetensorsFile(
            path="model.safetensors",
            size_bytes=self.total_size + 4096,
            tensor_bytes=self.total_size,
            expert_bytes=self.expert_bytes,
            bytes_by_type={self.kind: self.total_size},
        )
        others = tuple(
            SafetensorsFile(path=path, size_bytes=size, tensor_bytes=size, bytes_by_type={self.kind: size})
            for path, size in self.beside
            if path.endswith(".safetensors")
        )
        files = [FolderFile(path="model.safetensors", size_bytes=weights.size_bytes)]
        files += [FolderFile(path=path, size_bytes=size) for path, size in self.beside]
        return FolderShape(
            folder=self.name.replace("/", "--"),
            files=tuple(files),
            config=json.dumps(self.config),
            safetensors=(weights, *others),
        )


def vllm_cache(model: Public, context: int, cards: int = 1, *, number_bytes: int = 2) -> int:
    """The bytes that vLLM wants to have for one whole context on each card, by the rule of its cache specs.

    Full: ``cdiv(max_model_len, block) * page``. Sliding: ``min(window - 1 + batched, max_model_len)`` in blocks and one
    more. ``page = block * (keys and values) * heads of this card * bytes``; a latent page is whole on each card.
    """
    block, batched, total = 16, 8192, 0.0
    for group in model.rule:
        if group.state:
            total += group.count * group.state * number_bytes / cards
            continue
        blocks = -(-context // block)
        if group.window is not None:
            blocks = -(-min(group.window - 1 + batched, context) // block) + 1
        heads = max(1, group.heads // cards) if group.split else group.heads
        total += group.count * blocks * block * group.numbers / group.heads * heads * number_bytes
    return round(total)


def llama_cache(model: Public, context: int, *, slots: int = 4, ubatch: int = 512) -> int:
    """The bytes that llama.cpp allocates for `context` cells in f16, shared by `slots`: in steps of 256 cells."""
    total = 0
    for group in model.rule:
        cells = -(-context // 256) * 256
        if group.window is not None:
            cells = -(-min(cells, group.window * slots + ubatch) // 256) * 256
        total += group.count * cells * group.numbers * 2
    return total
