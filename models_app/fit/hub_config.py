"""The shape of a model from its ``config.json``: layers, heads, context, and the cache of each token."""

from models_app.fit import layers
from models_app.fit.document import LARGEST, BadModelConfig, Document, parse
from models_app.fit.shape import CacheGroup, Input, ModelShape

# Fields that a configuration omits when they have the default of their class.
_DEFAULTS: dict[str, dict[str, object]] = {
    "gemma2": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window_pattern": 2},
    "gemma3_text": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window_pattern": 6,
        "max_position_embeddings": 131072, "vocab_size": 262208,
    },
    "cohere2": {"sliding_window_pattern": 4},
    "gemma": {"head_dim": 256},
}  # fmt: skip
# These architectures read a text at once and keep no cache of it.
_ENCODERS = frozenset(
    {
        *("bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "deberta", "deberta-v2", "camembert"),
        *("mpnet", "nomic_bert", "modernbert", "new", "gte", "jina_bert", "xlm-roberta-xl"),
    }
)
# Kinds of position scaling that leave the stated context as it is.
_UNSCALED = frozenset({"su", "longrope", "llama3", "default", "mrope", ""})


def read(text: str | None, problem: str | None = None) -> ModelShape:
    """Return the shape that `text` describes; without a text, an unknown shape with `problem` as its reason."""
    if text is None:
        reason = problem or "The folder has no config.json."
        return ModelShape(problems=(("cache", reason), ("context", reason)))
    try:
        document = parse(text)
    except BadModelConfig as error:
        return ModelShape(problems=(("cache", str(error)), ("context", str(error))))
    kind = document.words("model_type")
    document.defaults = _DEFAULTS.get(kind, {})
    architectures = document.whole.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else ""
    inputs: list[Input] = []
    problems: list[tuple[str, str]] = []
    groups = _groups(document, kind, inputs, problems)
    context = _context(document, kind, inputs)
    if context is None:
        problems.append(("context", "config.json states no context length."))
    quantization = document.whole.get("quantization_config") or document.part("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return ModelShape(
        architecture=str(named or kind)[:80],
        dtype=_dtype(document, inputs),
        quantization=method if isinstance(method, str) else "",
        groups=groups,
        layers=_noted(document, inputs, "Layers", *layers.COUNT),
        hidden=document.number("hidden_size", "d_model", "n_embd", "dim"),
        intermediate=document.number("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
        vocabulary=document.number("vocab_size", "padded_vocab_size"),
        attention_heads=_noted(document, inputs, "Attention heads", *layers.HEADS),
        context=context,
        experts=document.number("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
        experts_used=_experts_used(document),
        inputs=tuple(inputs),
        problems=tuple(problems),
    )


def _groups(
    document: Document, kind: str, inputs: list[Input], problems: list[tuple[str, str]]
) -> tuple[CacheGroup, ...] | None:
    if kind in _ENCODERS:
        inputs.append(Input("Cache", "none: the model reads a text at once", f"config.json: model_type {kind}"))
        return ()
    if document.whole.get("is_encoder_decoder") is True:
        problems.append(("cache", "The model has an encoder and a decoder; their cache is not estimated."))
        return None
    try:
        return layers.groups(document, kind, inputs)
    except layers.ConfigIncomplete as error:
        problems.append(("cache", str(error)))
        return None


def _noted(document: Document, inputs: list[Input], name: str, *fields: str) -> int | None:
    value, source = document.whole_number(*fields)
    if value is not None and all(item.name != name for item in inputs):
        inputs.append(Input(name, str(value), source))
    return value


def _dtype(document: Document, inputs: list[Input]) -> str:
    for name in ("dtype", "torch_dtype"):
        value, source = document.find(name)
        if isinstance(value, str) and value:
            found = value.removeprefix("torch.")[:20]
            inputs.append(Input("Type of the model", found, source))
            return found
    return ""


def _context(document: Document, kind: str, inputs: list[Input]) -> int | None:
    names = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len", "n_ctx")
    stated, source = document.whole_number(*names)
    if not stated:
        return None
    scaling = document.part("rope_scaling") or document.part("rope_parameters")
    how = scaling.get("rope_type") or scaling.get("type") or ""
    factor = scaling.get("factor")
    if how in _UNSCALED or "gemma3" in kind or not isinstance(factor, int | float) or isinstance(factor, bool):
        inputs.append(Input("Longest context", f"{stated} tokens", source))
        return stated
    original = scaling.get("original_max_position_embeddings")
    begin = original if how == "yarn" and isinstance(original, int) and 0 < original < LARGEST else stated
    total = int(begin * factor) if 0 < factor < 1e6 else stated
    inputs.append(Input("Longest context", f"{total} tokens", f"{source}, stretched by {how} {factor:g} from {begin}"))
    return total


def _experts_used(document: Document) -> int | None:
    value, _ = document.find("num_experts_per_tok")
    if isinstance(value, list):
        whole = [number for number in value if isinstance(number, int)]
        return max(whole, default=None)
    return document.number("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k")
