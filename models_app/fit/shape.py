"""The shape of a model: the bytes of its weights, and the cache of each layer. Unknown is None with a reason."""

from dataclasses import dataclass, replace
from typing import Literal

from agent.common.formats import gguf_names
from agent.wire.shape import FolderShape

Kind = Literal["full", "sliding", "latent", "state"]


@dataclass(frozen=True, slots=True)
class Input:
    """A value that an estimate is based on, as shown to a person: its name, its value, and its source."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that keep the same of each token.

    `key_elements` and `value_elements` are of one layer and one token over all `heads`. A ``latent`` group keeps one
    vector for all heads, which every GPU needs whole. ``sliding`` layers keep at most `window` tokens. A ``state``
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
        """Return the keys and values of one layer and one token."""
        return self.key_elements + self.value_elements


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The known facts of a model. `problems` gives, for each unknown part of the estimate, the reason.

    `groups` None is unknown, empty keeps no cache. `table_bytes` are of the input embeddings, of which a processor
    reads one row; `expert_bytes` are of experts, of which `experts_used` out of `experts` work on a token. `projector`
    names the file that reads pictures or sound, and `projector_bytes` are in it; None when they are unknown.
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
    projector: str = ""
    projector_bytes: int | None = None
    inputs: tuple[Input, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()

    def why(self, part: str) -> str:
        """Return the reason for which `part` is unknown; empty when none is given."""
        return next((reason for name, reason in self.problems if name == part), "")

    @property
    def key_value_heads(self) -> int | None:
        """Return the highest number of KV heads of any layer; None for a model that keeps none by heads."""
        return max((group.heads for group in self.groups or () if group.kind in ("full", "sliding")), default=None)


def of_folder(facts: FolderShape, file: str = "", projector: str = "") -> ModelShape:
    """Return the shape of the model in a folder. `file` names its GGUF; without one, safetensors go before GGUF.

    `projector` is the choice for that GGUF: a file, "none", or empty for the one that belongs to it.
    """
    from models_app.fit import gguf, hub_config, weights

    if gguf_names.is_gguf(file) or (facts.gguf and not facts.safetensors):
        return gguf.shape(facts, file, projector)
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
