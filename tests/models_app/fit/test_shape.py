"""Reading shapes: each file once, each layer by its kind, and nothing made up where nothing is said."""

import json

import pytest

from agent.wire.capability import FolderFile
from agent.wire.shape import FolderShape, GgufModel, SafetensorsFile
from models_app.fit import estimate, hub_config, of_folder, serve_plan
from models_app.fit.document import BadModelConfig, parse
from tests.models_app.fit.public import MODELS

pytestmark = pytest.mark.unit
GB = 10**9
LLAMA = MODELS[0].config


def tensors(path: str, size: int, **more) -> SafetensorsFile:
    return SafetensorsFile(
        path=path, size_bytes=size, **({"tensor_bytes": size, "bytes_by_type": {"BF16": size}} | more)
    )


def files(*paths: str) -> tuple[FolderFile, ...]:
    return tuple(FolderFile(path=path, size_bytes=24 * GB) for path in paths)


SHARDS = (tensors("model-00001-of-00002.safetensors", 24 * GB), tensors("model-00002-of-00002.safetensors", 24 * GB))


def test_two_shards_beside_a_consolidated_copy_and_an_optimizer_count_alone() -> None:
    facts = FolderShape(
        folder="m",
        files=files("model-00001-of-00002.safetensors", "consolidated.safetensors", "optimizer.pt"),
        safetensors=(tensors("consolidated.safetensors", 48 * GB), *SHARDS),
    )
    shape = of_folder(facts)
    assert shape.weights_bytes == 48 * GB
    assert ("Weights", "44.7 GiB in 2 files") in [(item.name, item.value) for item in shape.inputs]


def test_a_consolidated_file_alone_is_the_weights() -> None:
    assert (
        of_folder(FolderShape(folder="m", safetensors=(tensors("consolidated.safetensors", GB),))).weights_bytes == GB
    )


def test_the_index_says_which_files_count() -> None:
    facts = FolderShape(
        folder="m", indexed=tuple(file.path for file in SHARDS), safetensors=(*SHARDS, tensors("extra.safetensors", GB))
    )
    assert of_folder(facts).weights_bytes == 48 * GB


def test_a_shard_that_is_not_there_makes_the_weights_unknown() -> None:
    facts = FolderShape(folder="m", indexed=tuple(file.path for file in SHARDS), safetensors=SHARDS[:1])
    shape = of_folder(facts)
    assert shape.weights_bytes is None
    assert "model-00002-of-00002.safetensors" in shape.why("weights")


def test_a_header_that_cannot_be_read_makes_the_weights_unknown() -> None:
    broken = SafetensorsFile(path="model.safetensors", size_bytes=GB, problem="The file is cut short in its header.")
    shape = of_folder(FolderShape(folder="m", safetensors=(broken,)))
    assert (shape.weights_bytes, shape.why("weights")) == (
        None,
        "model.safetensors: The file is cut short in its header.",
    )


def test_pickles_count_only_where_nothing_else_is() -> None:
    facts = FolderShape(folder="m", files=files("pytorch_model.bin", "optimizer.pt", "training_args.bin"))
    assert of_folder(facts).weights_bytes == 24 * GB
    assert of_folder(FolderShape(folder="m", files=files("optimizer.pt"))).weights_bytes is None


def test_infinity_in_a_configuration_reads_as_nothing() -> None:
    text = json.dumps(LLAMA).replace('"hidden_size": 4096', '"hidden_size": 4096, "rope_theta": Infinity, "x": NaN')
    shape = hub_config.read(text)
    assert shape.groups is not None
    assert parse('{"num_hidden_layers": -Infinity, "head_dim": 1e999}').number("num_hidden_layers", "head_dim") is None
    shape = hub_config.read('{"num_hidden_layers": Infinity, "num_attention_heads": 8}')
    assert shape.groups is None
    assert shape.why("cache") == "config.json states no number of layers."


def test_heads_stand_in_the_text_part_and_those_of_the_eyes_are_left_alone() -> None:
    text = {
        "model_type": "x",
        "num_hidden_layers": 10,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    }
    eyes = {"num_hidden_layers": 99, "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_size": 1024}
    shape = hub_config.read(json.dumps({"vision_config": eyes, "text_config": text, "model_type": "seeing"}))
    (group,) = shape.groups
    assert (group.layers, group.heads, group.elements, shape.attention_heads) == (10, 8, 2 * 8 * 64, 32)
    only = hub_config.read(
        json.dumps({"vision_config": eyes, "text_config": {"model_type": "x", "num_hidden_layers": 10}})
    )
    assert only.groups is None
    assert "attention heads" in only.why("cache")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{", '"x"', "[" * 100_000, "{" + '"a":{' * 50_000, "1e9", "\x00", "NaN"],
    ids=["empty", "list", "null", "cut", "text", "deep list", "deep object", "number", "nul", "nan"],
)
def test_what_is_no_configuration_is_a_problem_in_words(text) -> None:
    shape = hub_config.read(text)
    assert shape.groups is None
    assert shape.why("cache").endswith(".")
    with pytest.raises(BadModelConfig):
        parse(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_hidden_layers": True}, {"num_hidden_layers": "32"}, {"num_hidden_layers": -1},
        {"num_hidden_layers": 10**9}, {"num_hidden_layers": 32.5}, {"num_hidden_layers": None},
        {"num_hidden_layers": [32]}, {"num_hidden_layers": 10**400},
    ],
    ids=lambda wrong: str(wrong)[:40],
)  # fmt: skip
def test_a_number_of_layers_that_is_none_is_unknown_and_never_zero(wrong) -> None:
    shape = hub_config.read(json.dumps(LLAMA | wrong))
    assert shape.groups is None
    found = estimate(shape, serve_plan("vllm").on(1))
    assert found.gpu_bytes is None
    assert found.reasons


def test_a_kind_of_layer_that_nobody_knows_makes_the_cache_unknown() -> None:
    shape = hub_config.read(json.dumps(LLAMA | {"layer_types": ["full_attention", "quantum"]}))
    assert shape.groups is None
    assert "quantum" in shape.why("cache")


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"hybrid_override_pattern": "M-M*-", "num_hidden_layers": 5, "mamba_num_heads": 4, "mamba_head_dim": 64,
          "ssm_state_size": 128}, {"full": 1, "state": 2}),
        ({"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16}, {"full": 4, "state": 28}),
        ({"layer_types": ["mamba"] * 9 + ["attention"], "num_hidden_layers": 10, "mamba_d_state": 16,
          "mamba_n_heads": 8, "mamba_d_head": 64}, {"full": 1, "state": 9}),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28},
         {"full": 28, "sliding": 4}),
        ({"layer_types": ["conv", "full_attention"] * 16}, {"full": 16}),
    ],
    ids=["nemotron", "jamba", "granite", "qwen2", "lfm2"],
)  # fmt: skip
def test_layers_of_several_kinds_are_counted_apart(change, kinds) -> None:
    shape = hub_config.read(json.dumps(LLAMA | change))
    assert {group.kind: group.layers for group in shape.groups} == kinds


def test_a_model_that_reads_at_once_keeps_no_cache() -> None:
    shape = hub_config.read(json.dumps({"model_type": "bert", "num_hidden_layers": 12, "max_position_embeddings": 512}))
    assert shape.groups == ()


def test_a_context_that_is_stretched_is_as_long_as_vllm_makes_it() -> None:
    yarn = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}
    assert hub_config.read(json.dumps(LLAMA | {"max_position_embeddings": 40960} | yarn)).context == 131072
    linear = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    assert hub_config.read(json.dumps(LLAMA | {"max_position_embeddings": 4096} | linear)).context == 8192


def test_several_gguf_models_need_a_name_and_a_broken_one_says_why() -> None:
    good = GgufModel(path="a.gguf", parts=1, size_bytes=GB, values={"general.architecture": "llama"})
    broken = GgufModel(path="b.gguf", parts=1, size_bytes=GB, problem="The file is cut short in its header.")
    facts = FolderShape(folder="m", gguf=(good, broken))
    assert "name the file" in of_folder(facts).why("weights")
    assert of_folder(facts, "b.gguf").why("weights") == "b.gguf: The file is cut short in its header."
    assert of_folder(facts, "a.gguf").weights_bytes == GB
    assert of_folder(facts, "a.gguf").groups is None
    assert of_folder(facts, "c.gguf").why("cache") == "The folder has no GGUF file c.gguf."


def test_heads_that_differ_by_layer_are_counted_by_layer() -> None:
    values = {
        "general.architecture": "deci", "deci.block_count": 4, "deci.context_length": 4096,
        "deci.embedding_length": 4096, "deci.attention.head_count": (32, 32, 0, 32),
        "deci.attention.head_count_kv": (8, 4, 0, 8),
    }  # fmt: skip
    model = GgufModel(path="a.gguf", parts=1, size_bytes=GB, values=values)
    shape = of_folder(FolderShape(folder="m", gguf=(model,)))
    assert {(group.heads, group.layers) for group in shape.groups} == {(8, 2), (4, 1)}


def test_a_checkpoint_in_32_bits_is_loaded_in_16() -> None:
    file = tensors("model.safetensors", 8 * GB, bytes_by_type={"F32": 8 * GB})
    shape = of_folder(FolderShape(folder="m", config=json.dumps(LLAMA), safetensors=(file,)))
    weights = {p.name: p.bytes for p in estimate(shape, serve_plan("vllm").on(1)).parts}["weights"]
    assert weights == 4 * GB
    whole = {p.name: p.bytes for p in estimate(shape, serve_plan("vllm", ("--dtype", "float32")).on(1)).parts}[
        "weights"
    ]
    assert whole == 8 * GB
