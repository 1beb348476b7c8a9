"""The estimate of public models against the rules that engines allocate by, spelled out by hand for each."""

import pytest

from agent.wire.shape import GgufModel
from models_app.fit import estimate, gguf, of_folder, serve_plan
from tests.models_app.fit.described import llama_cache, vllm_cache
from tests.models_app.fit.public import MODELS

pytestmark = pytest.mark.unit


def part(found, name: str) -> int | None:
    return next(part.bytes for part in found.parts if part.name == name)


@pytest.mark.parametrize("cards", [1, 2, 4])
@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_weights_count_once_and_the_cache_is_what_vllm_wants(model, cards) -> None:
    shape = of_folder(model.folder())
    found = estimate(shape, serve_plan("vllm").on(cards))
    assert shape.context == model.context
    assert part(found, "weights") == -(-model.total_size // cards)
    assert part(found, "cache") == vllm_cache(model, model.context, cards)
    assert found.gpu_bytes == sum(item.bytes for item in found.parts)
    assert found.reasons == ()


@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_a_shorter_context_and_a_smaller_type_make_a_smaller_cache(model) -> None:
    shape = of_folder(model.folder())
    short = estimate(shape, serve_plan("vllm", ("--max-model-len", "2048", "--kv-cache-dtype", "fp8")).on(1))
    if not any(group.state for group in model.rule):  # the state of such a layer keeps its own type
        assert part(short, "cache") == vllm_cache(model, 2048, number_bytes=1)
    assert part(short, "cache") < part(estimate(shape, serve_plan("vllm").on(1)), "cache")


def values(model) -> dict:
    """The same model as llama.cpp's converter writes its header."""
    text = {**model.config, **model.config.get("text_config", {})}
    kind = {"gemma3_text": "gemma3", "gemma2": "gemma2", "gpt_oss": "gpt-oss"}.get(text["model_type"], "llama")
    heads = text["num_attention_heads"]
    found = {
        "general.architecture": kind,
        f"{kind}.block_count": text["num_hidden_layers"],
        f"{kind}.context_length": model.context,
        f"{kind}.embedding_length": text["hidden_size"],
        f"{kind}.feed_forward_length": text.get("intermediate_size", 4 * text["hidden_size"]),
        f"{kind}.attention.head_count": heads,
        f"{kind}.attention.head_count_kv": 1 if text.get("multi_query") else text["num_key_value_heads"],
        f"{kind}.attention.key_length": text.get("head_dim") or text["hidden_size"] // heads,
    }
    if kind != "llama":
        found[f"{kind}.attention.sliding_window"] = text["sliding_window"]
    return found


PLAIN = [
    model
    for model in MODELS
    if model.config["model_type"] not in ("mistral", "phi3") and all(g.split and not g.state for g in model.rule)
]


@pytest.mark.parametrize("model", PLAIN, ids=[model.name for model in PLAIN])
def test_the_cache_of_a_gguf_is_what_llama_cpp_allocates(model) -> None:
    held = GgufModel(path="m.gguf", parts=1, size_bytes=model.total_size, values=values(model), vocabulary=32000)
    shape = gguf._read(held)
    for context in (4096, 10_000, model.context):
        found = estimate(shape, serve_plan("llama.cpp", ("--ctx-size", str(context))))
        assert part(found, "cache") == llama_cache(model, context)


def test_experts_that_do_not_work_on_a_token_are_not_read() -> None:
    mixtral = next(model for model in MODELS if "Mixtral" in model.name)
    found = estimate(of_folder(mixtral.folder()), serve_plan("vllm"))
    assert found.active_bytes == mixtral.total_size - mixtral.expert_bytes * 6 // 8
