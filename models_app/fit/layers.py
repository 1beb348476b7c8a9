"""The cache of each layer of a transformer: full, sliding or latent attention, or a state of fixed size."""

from collections import Counter
from typing import Any

from models_app.fit.document import Document
from models_app.fit.shape import CacheGroup, Input

COUNT = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num")
_WINDOW = ("sliding_window", "attention_chunk_size", "sliding_window_size", "window_size")
_MOST_LAYERS = 4096

_FULL = frozenset({"full_attention", "attention", "full", "global", "global_attention", "hybrid"})
_SLIDING = frozenset({"sliding_attention", "chunked_attention", "local", "local_attention", "sliding"})
_STATE = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "m", "rglru"})
_NOTHING = frozenset({"conv", "mlp", "moe", "-", "e"})


class ConfigIncomplete(Exception):
    """The configuration lacks a required value; the message is a sentence."""


def groups(document: Document, kind: str, inputs: list[Input]) -> tuple[CacheGroup, ...]:
    """Group layers that keep the same. Raises ConfigIncomplete; values that were read are appended to `inputs`."""
    count, source = document.whole_number(*COUNT)
    if not count:
        raise ConfigIncomplete("config.json states no number of layers.")
    if count > _MOST_LAYERS:
        raise ConfigIncomplete(f"config.json states an impossible number of layers ({count}).")
    inputs.append(Input("Layers", str(count), source))
    if latent := _latent(document, count, inputs):
        return (latent,)
    kinds = _kinds(document, kind, count, inputs)
    found: list[CacheGroup] = []
    if kinds["full"] or kinds["sliding"]:
        heads, key, value = _heads(document, inputs)
        if kinds["full"]:
            found.append(CacheGroup("full", kinds["full"], heads * key, heads * value, heads))
        if kinds["sliding"]:
            window = _window(document, inputs)
            found.append(CacheGroup("sliding", kinds["sliding"], heads * key, heads * value, heads, window))
    if kinds["state"]:
        state = _state(document)
        if state is None:
            raise ConfigIncomplete(f"config.json states no size of its {kinds['state']} state layers.")
        inputs.append(Input("State layers", f"{kinds['state']} of {state} numbers each", "config.json"))
        found.append(CacheGroup("state", kinds["state"], state_elements=state))
    return tuple(found)


def _latent(document: Document, count: int, inputs: list[Input]) -> CacheGroup | None:
    rank, source = document.whole_number("kv_lora_rank")
    rope = document.number("qk_rope_head_dim")
    if not rank or rope is None:
        return None
    inputs.append(Input("Latent cache", f"{rank} + {rope} numbers per layer and token", f"{source}, qk_rope_head_dim"))
    return CacheGroup("latent", count, rank + rope, 0, 1)


def _heads(document: Document, inputs: list[Input]) -> tuple[int, int, int]:
    """Return the number of KV heads, and the dimensions of a key and of a value."""
    heads, heads_at = document.whole_number(*HEADS)
    kv, kv_at = document.whole_number(*_KV_HEADS)
    if document.find("multi_query")[0] is True and kv is None:
        kv, kv_at = 1, "config.json: multi_query"
    if kv is None:
        kv, kv_at = heads, f"{heads_at}, same as attention heads"
    if not kv:
        raise ConfigIncomplete("config.json states no number of attention heads.")
    inputs.append(Input("KV heads", str(kv), kv_at))
    dimension, at = document.whole_number("head_dim", "kv_channels", "attention_head_dim")
    if not dimension:
        hidden, hidden_at = document.whole_number("hidden_size", "d_model", "n_embd")
        if not hidden or not heads:
            raise ConfigIncomplete("config.json states no head dimension, and no value to derive it from.")
        dimension, at = hidden // heads, f"{hidden_at} ÷ attention heads"
    value = document.number("v_head_dim") or dimension
    inputs.append(Input("Head dimension", str(dimension) if value == dimension else f"{dimension} / {value}", at))
    return kv, dimension, value


def _window(document: Document, inputs: list[Input]) -> int:
    window, source = document.whole_number(
        "sliding_window", "attention_chunk_size", "sliding_window_size", "window_size"
    )
    if not window:
        raise ConfigIncomplete("config.json has sliding layers but states no window.")
    inputs.append(Input("Sliding window", f"{window} tokens", source))
    return window


def _kinds(document: Document, kind: str, count: int, inputs: list[Input]) -> Counter[str]:
    """Count the layers that are ``full``, ``sliding``, ``state`` or ``none``."""
    named, source = _named_kinds(document, count)
    if named is not None:
        inputs.append(Input("Kinds of layers", _words(named), source))
        return named
    window, _ = document.find("sliding_window")
    if document.find("use_sliding_window")[0] is False or not isinstance(window, int) or isinstance(window, bool):
        return Counter(full=count)
    pattern = document.number("sliding_window_pattern", "_sliding_window_pattern", "attention_pattern")
    if pattern and pattern > 1:
        found = Counter(full=count // pattern, sliding=count - count // pattern)
        inputs.append(Input("Kinds of layers", _words(found), f"every {pattern}th layer is full"))
        return found
    most = document.number("max_window_layers")
    if most is not None and kind.startswith("qwen2"):
        found = Counter(full=min(most, count), sliding=max(count - most, 0))
        inputs.append(Input("Kinds of layers", _words(found), "config.json: max_window_layers"))
        return found
    return Counter(sliding=count)


def _named_kinds(document: Document, count: int) -> tuple[Counter[str] | None, str]:
    for name in ("layer_types", "layers_block_type", "hybrid_override_pattern", "block_types", "layer_block_types"):
        value, source = document.find(name)
        if isinstance(value, str):
            value = ["full" if mark == "*" else mark.lower() for mark in value if mark != "|"]
        if isinstance(value, list) and value:
            repeated = (value * (count // len(value) + 1))[:count]
            return Counter(_kind_of(item, name) for item in repeated), source
    period, offset = document.number("attn_layer_period"), document.number("attn_layer_offset")
    if period:
        full = sum(layer % period == (offset or 0) for layer in range(count))
        return Counter(full=full, state=count - full), "config.json: attn_layer_period"
    interval = document.number("full_attention_interval")
    if interval:
        return Counter(full=count // interval, state=count - count // interval), "config.json: full_attention_interval"
    indices = document.listed("attn_layer_indices")
    if indices is not None:
        full = min(len(indices), count)
        return Counter(full=full, state=count - full), "config.json: attn_layer_indices"
    if document.number("state_size", "mamba_d_state") and document.number(*HEADS) is None:
        return Counter(state=count), "config.json: no attention heads, a state in each layer"
    return None, ""


def _kind_of(item: Any, name: str) -> str:
    word = item.lower() if isinstance(item, str) else ""
    for kind, words in (("full", _FULL), ("sliding", _SLIDING), ("state", _STATE), ("none", _NOTHING)):
        if word in words:
            return kind
    raise ConfigIncomplete(f"config.json names an unknown kind of layer ({name}: {str(item)[:40]}).")


def _words(kinds: Counter[str]) -> str:
    words = {"full": "full attention", "sliding": "sliding attention", "state": "state", "none": "no cache"}
    return ", ".join(f"{count} {words[kind]}" for kind, count in kinds.items() if count)


def _state(document: Document) -> int | None:
    """Return the numbers that one state layer keeps of a sequence: the state and the end of its convolution."""
    find = document.number
    if heads := find("linear_num_value_heads"):
        key, value = find("linear_key_head_dim"), find("linear_value_head_dim")
        keys, kernel = find("linear_num_key_heads"), find("linear_conv_kernel_dim") or 4
        if not key or not value or not keys:
            return None
        return heads * key * value + (kernel - 1) * (2 * keys * key + heads * value)
    size = find("mamba_d_state", "ssm_state_size", "state_size")
    heads, dimension = find("mamba_n_heads", "mamba_num_heads", "num_heads"), find("mamba_d_head", "mamba_head_dim")
    kernel = find("mamba_d_conv", "conv_kernel", "d_conv") or 4
    hidden = find("hidden_size", "d_model")
    expand = find("mamba_expand", "expand") or 2
    if not size:
        return None
    if heads and dimension:
        groups_ = find("mamba_n_groups", "n_groups") or 1
        return heads * dimension * size + (kernel - 1) * (heads * dimension + 2 * groups_ * size)
    if not hidden:
        return None
    inner = find("intermediate_size") if find(*HEADS) is None else None
    inner = inner or hidden * expand
    return inner * size + (kernel - 1) * inner
