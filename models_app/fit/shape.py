"""The shape of a model: bytes of its weights, and what each layer keeps of a token. Unknown is None with a reason."""

from dataclasses import dataclass, replace
from typing import Literal

from agent.wire.shape import FolderShape

Kind = Literal["full", "sliding", "latent", "state"]


@dataclass(frozen=True, slots=True)
class Input:
    """Something that an estimate rests on, for a person: what it is, its value, and where that was read."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that keep the same of each token.

    `key_elements` and `value_elements` are of one layer and one token over all `heads`. A ``latent`` group keeps one
    vector for all heads, which every GPU needs whole. ``sliding`` layers keep no more than `window` tokens. A ``state``
    group keeps `state_elements` of each sequence, however long it is.
    """

    kind: Kind
    layers: int
    key_elements: int = 0
    value_elements: int = 0
    heads: int = 1
    window: int | None = None
    state_elements: int = 0

    @property
    def elements(self) -> int:
        """Keys and values of one layer and one token."""
        return self.key_elements + self.value_elements


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What is known of a model. `problems` says, by the part of the estimate, why that part is unknown.

    `groups` None is unknown, empty keeps no cache. `table_bytes` are of the input embeddings, which a processor reads
    a row of; `expert_bytes` of experts, of which `experts_used` in `experts` work on a token.
    """

    format: Literal["safetensors", "gguf", "pickle", ""] = ""
    architecture: str = ""
    weights_bytes: int | None = None
    bytes_by_type: tuple[tuple[str, int], ...] = ()
    expert_bytes: int | None = None
    table_bytes: int | None = None
    dtype: str = ""
    quantization: str = ""
    groups: tuple[CacheGroup, ...] | None = None
    layers: int | None = None
    hidden: int | None = None
    intermediate: int | None = None
    vocabulary: int | None = None
    attention_heads: int | None = None
    context: int | None = None
    experts: int | None = None
    experts_used: int | None = None
    inputs: tuple[Input, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()

    def why(self, part: str) -> str:
        """Why `part` is unknown; empty when nothing was said of it."""
        return next((reason for name, reason in self.problems if name == part), "")

    @property
    def key_value_heads(self) -> int | None:
        """The most KV heads of any layer; None for a model that keeps none by heads."""
        return max((group.heads for group in self.groups or () if group.kind in ("full", "sliding")), default=None)


def of_folder(facts: FolderShape, file: str = "") -> ModelShape:
    """The shape of the model in a folder. `file` names its GGUF; without one safetensors go before GGUF."""
    from models_app.fit import gguf, hub_config, weights

    if file.endswith(".gguf") or (facts.gguf and not facts.safetensors):
        return gguf.shape(facts, file)
    held = weights.of_folder(facts)
    config = hub_config.read(facts.config, facts.config_problem)
    return replace(
        config,
        format=held.format,
        weights_bytes=held.total_bytes,
        bytes_by_type=held.bytes_by_type,
        expert_bytes=held.expert_bytes,
        inputs=(*held.inputs, *config.inputs),
        problems=(*held.problems, *config.problems),
    )
