"""The shape of a GGUF model from its header, by the keys that llama.cpp reads."""

from dataclasses import replace
from typing import Any

from agent.common.formats import gguf_names
from agent.wire.shape import FolderShape, GgufModel
from mirbad.kernel.sizes import size
from models_app.fit.shape import CacheGroup, Input, ModelShape

# Architectures whose layers slide except every n-th; for all others llama.cpp keeps all tokens in every layer.
_EVERY = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gemma-embedding": 6, "cohere2": 4, "gpt-oss": 2, "llama4": 4,
    "exaone4": 4, "smallthinker": 4, "olmo2": 4,
}  # fmt: skip
_ENCODERS = frozenset(
    {"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "neo-bert", "modern-bert"}
)
_PURE_STATE = frozenset({"mamba", "mamba2", "rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7"})


def shape(facts: FolderShape, file: str = "", projector: str = "") -> ModelShape:
    """Return the shape of the GGUF `file`, or of the only model, with its projector."""
    named = [model for model in facts.gguf if not file or model.path == file]
    found = [model for model in named if gguf_names.is_model(model.values)]
    if named and not found:
        return _unknown(f"{named[0].path} is an adapter (LoRA), a projector or a by-product, and no model.")
    if not found:
        reason = f"The folder has no GGUF file {file}." if file else "The folder has no GGUF file."
        return _unknown(reason)
    if len(found) > 1:
        return _unknown(f"The folder has {len(found)} GGUF models; name the file of this one.")
    model = found[0]
    if model.problem:
        return _unknown(f"{model.path}: {model.problem}")
    return _with_projector(_read(model), facts, model.path, projector)


def _with_projector(model: ModelShape, facts: FolderShape, file: str, choice: str) -> ModelShape:
    """Return `model` with the projector that the node would give the engine, by the same rule."""
    if choice == gguf_names.NO_PROJECTOR:
        return replace(model, inputs=(*model.inputs, Input("Projector", "none", "the model's settings")))
    sizes = {one.path: one.size_bytes for one in facts.files}
    name = choice or gguf_names.projector_for(file, sizes)
    if not name:
        unsure = [one for one in sizes if gguf_names.is_projector(one)]
        if not unsure:
            return model
        words = f"none: {len(unsure)} in the folder, none that is clearly of this model"
        return replace(model, inputs=(*model.inputs, Input("Projector", words, "names of the files")))
    held = sizes.get(name)
    if held is None:
        problem = ("projector", f"The folder has no projector {name}.")
        return replace(model, projector=name, problems=(*model.problems, problem))
    source = "the model's settings" if choice else "names of the files"
    shown = Input("Projector", f"{name} ({size(held)})", source)
    return replace(model, projector=name, projector_bytes=held, inputs=(*model.inputs, shown))


def _unknown(reason: str) -> ModelShape:
    return ModelShape("gguf", problems=tuple((part, reason) for part in ("weights", "cache", "context")))


class _Keys:
    """Values under the architecture's name; each value read is recorded."""

    def __init__(self, model: GgufModel) -> None:
        self.values = model.values
        name = model.values.get("general.architecture")
        self.architecture = name if isinstance(name, str) else ""

    def get(self, key: str) -> Any:
        return self.values.get(f"{self.architecture}.{key}")

    def number(self, key: str) -> int | None:
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None

    def each(self, key: str, layers: int) -> list[int] | None:
        """Return one number for each layer, from a number or a list."""
        value = self.get(key)
        if isinstance(value, tuple) and len(value) >= layers:
            return [int(number) for number in value[:layers]]
        number = self.number(key)
        return None if number is None else [number] * layers


def _read(model: GgufModel) -> ModelShape:
    keys = _Keys(model)
    source = f"header of {model.path}"
    total = model.tensor_bytes if model.tensor_bytes is not None else model.size_bytes
    files = f"{size(total)} in {model.parts} file{'' if model.parts == 1 else 's'}"
    inputs = [Input("Weights", files, source if model.tensor_bytes is not None else "sizes of the files")]
    problems: list[tuple[str, str]] = []
    layers, context = keys.number("block_count"), keys.number("context_length")
    groups: tuple[CacheGroup, ...] | None = None
    if not layers or layers > 4096:
        problems.append(("cache", "The header states no number of layers."))
    else:
        inputs.append(Input("Layers", str(layers), f"{source}: block_count"))
        groups = _groups(keys, layers, source, inputs, problems)
    if context is None:
        problems.append(("context", "The header states no context length."))
    else:
        inputs.append(Input("Longest context", f"{context} tokens", f"{source}: context_length"))
    heads = keys.each("attention.head_count", 1)
    return ModelShape(
        "gguf",
        architecture=keys.architecture,
        weights_bytes=total,
        expert_bytes=model.expert_bytes,
        table_bytes=model.input_table_bytes,
        groups=groups,
        layers=layers,
        hidden=keys.number("embedding_length"),
        intermediate=max(keys.each("feed_forward_length", 1) or [0]) or None,
        vocabulary=model.vocabulary or keys.number("vocab_size"),
        attention_heads=heads[0] if heads else None,
        context=context,
        experts=keys.number("expert_count"),
        experts_used=keys.number("expert_used_count"),
        inputs=tuple(inputs),
        problems=tuple(problems),
    )


def _groups(
    keys: _Keys, layers: int, source: str, inputs: list[Input], problems: list[tuple[str, str]]
) -> tuple[CacheGroup, ...] | None:
    if keys.architecture in _ENCODERS or keys.get("attention.causal") is False:
        inputs.append(Input("Cache", "none: the model reads a text at once", f"{source}: architecture"))
        return ()
    if rank := keys.number("attention.kv_lora_rank"):
        rope = keys.number("rope.dimension_count") or 64
        inputs.append(Input("Latent cache", f"{rank} + {rope} numbers per layer and token", f"{source}: kv_lora_rank"))
        return (CacheGroup("latent", layers, rank + rope, 0, 1),)
    state = _state(keys)
    if keys.architecture in _PURE_STATE:
        return _states(layers, state, problems)
    heads = keys.each("attention.head_count", layers)
    kv = keys.each("attention.head_count_kv", layers) or heads
    hidden = keys.number("embedding_length")
    if not kv or not heads or (keys.number("attention.key_length") is None and (not hidden or not max(heads))):
        problems.append(("cache", "The header states no attention heads."))
        return None
    key = keys.number("attention.key_length") or (hidden or 0) // max(heads)
    value = keys.number("attention.value_length") or key
    shown = str(kv[0]) if len(set(kv)) == 1 else f"{min(kv)} to {max(kv)}"
    inputs += [
        Input("KV heads", shown, f"{source}: attention.head_count_kv"),
        Input("Head dimension", str(key) if key == value else f"{key} / {value}", f"{source}: attention.key_length"),
    ]
    interval = keys.number("full_attention_interval")
    if interval:
        kv = [count if (layer + 1) % interval == 0 else 0 for layer, count in enumerate(kv)]
    found = _attention(keys, kv, key, value, source, inputs)
    empty = kv.count(0)
    if empty and state is not None:
        found += _states(empty, state, problems) or ()
    return found


def _attention(
    keys: _Keys, kv: list[int], key: int, value: int, source: str, inputs: list[Input]
) -> tuple[CacheGroup, ...]:
    """Group layers that have the same heads and the same window."""
    window = keys.number("attention.sliding_window")
    marks = keys.get("attention.sliding_window_pattern")
    every = _EVERY.get(keys.architecture)
    counts: dict[tuple[int, bool], int] = {}
    for layer, heads in enumerate(kv):
        slides = bool(window) and (
            bool(marks[layer]) if isinstance(marks, tuple) and layer < len(marks) else _slides(layer, every)
        )
        if heads:
            counts[heads, slides] = counts.get((heads, slides), 0) + 1
    sliding = sum(count for (_, slides), count in counts.items() if slides)
    if sliding:
        inputs.append(Input("Sliding window", f"{window} tokens in {sliding} layers", f"{source}: sliding_window"))
    return tuple(
        CacheGroup(
            "sliding" if slides else "full", count, heads * key, heads * value, heads, window if slides else None
        )
        for (heads, slides), count in counts.items()
    )


def _slides(layer: int, every: int | None) -> bool:
    return every is not None and layer % every < every - 1


def _states(layers: int, state: int | None, problems: list[tuple[str, str]]) -> tuple[CacheGroup, ...] | None:
    if state is None:
        problems.append(("cache", "The header states no size of the layers' state."))
        return None
    return (CacheGroup("state", layers, state_elements=state),)


def _state(keys: _Keys) -> int | None:
    inner, size, kernel = keys.number("ssm.inner_size"), keys.number("ssm.state_size"), keys.number("ssm.conv_kernel")
    if not inner or not size:
        return None
    groups = keys.number("ssm.group_count") or 0
    return inner * size + ((kernel or 4) - 1) * (inner + 2 * groups * size)
