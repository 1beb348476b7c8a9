"""Configurations and headers that are damaged at random: a named problem or an estimate, never another error."""

import io
import json
import random
import struct

import pytest

from agent.common.formats import gguf, safetensors
from models_app.fit import estimate, hub_config, serve_plan
from tests.models_app.fit.public import MODELS

pytestmark = pytest.mark.unit
VALUES = [
    *(None, True, 0, 1, -1, 2**60, 10**400, 1.5, 1e308, "x", ""),
    *([], [1], {}, {"a": 1}, ["full_attention"], "M*-", [[]]),
]
FIELDS = [
    *sorted({name for model in MODELS for name in (*model.config, *model.config.get("text_config", {}))}),
    *("attn_layer_indices", "layers_block_type", "hybrid_override_pattern", "mamba_d_state", "sliding_window_pattern"),
    *("attn_layer_period", "rope_parameters", "text_config", "llm_config", "thinker_config", "architectures"),
]


def damaged(dice: random.Random) -> str:
    config = json.loads(json.dumps(dice.choice(MODELS).config))
    for _ in range(dice.randint(1, 5)):
        config[dice.choice(FIELDS)] = json.loads(json.dumps(dice.choice(VALUES)))
    text = json.dumps(config)
    return text[: dice.randint(0, len(text))] if dice.random() < 0.1 else text


@pytest.mark.parametrize("seed", range(4))
def test_damaged_configurations_are_estimated_or_refused_in_words(seed) -> None:
    dice = random.Random(seed)
    for _ in range(150):
        shape = hub_config.read(damaged(dice))
        for runtime in ("vllm", "llama.cpp"):
            found = estimate(shape, serve_plan(runtime).on(2))
            assert found.gpu_bytes is None, "the weights are not known"
            assert all(reason.endswith(".") for reason in found.reasons)


def spoilt(data: bytes, dice: random.Random) -> io.BytesIO:
    changed = bytearray(data)
    for _ in range(dice.randint(1, 5)):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return io.BytesIO(bytes(changed[: dice.randint(0, len(changed))]))


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


GGUF = (
    b"GGUF" + struct.pack("<IQQ", 3, 1, 3)
    + text("general.architecture") + struct.pack("<I", 8) + text("llama")
    + text("llama.block_count") + struct.pack("<II", 4, 2)
    + text("llama.attention.head_count_kv") + struct.pack("<IIQII", 9, 4, 2, 8, 4)
    + text("blk.0.ffn_up_exps.weight") + struct.pack("<IQQIQ", 2, 256, 4, 12, 0)
)  # fmt: skip
HEADER = json.dumps({"a.experts.0": {"dtype": "BF16", "data_offsets": [0, 4]}, "__metadata__": {}}).encode()
SAFETENSORS = struct.pack("<Q", len(HEADER)) + HEADER


def test_whole_headers_are_read() -> None:
    found = gguf.parse(io.BytesIO(GGUF))
    assert found.values["llama.attention.head_count_kv"] == [8, 4]
    assert (found.tensor_bytes, found.expert_bytes) == (4 * 144, 4 * 144)
    sums = safetensors.parse(io.BytesIO(SAFETENSORS))
    assert (sums.tensor_bytes, sums.expert_bytes, sums.by_type) == (4, 4, {"BF16": 4})


@pytest.mark.parametrize("cut", range(0, len(GGUF), 7))
def test_a_gguf_that_is_cut_short_is_said_so(cut) -> None:
    with pytest.raises(gguf.CutShort):
        gguf.parse(io.BytesIO(GGUF[:cut]))


@pytest.mark.parametrize(
    ("read", "data", "error"),
    [(gguf.parse, GGUF, gguf.BadGguf), (safetensors.parse, SAFETENSORS, safetensors.BadSafetensors)],
    ids=["gguf", "safetensors"],
)
def test_spoilt_headers_raise_their_own_errors_alone(read, data, error) -> None:
    dice, refused = random.Random(7), 0
    for _ in range(1500):
        try:
            read(spoilt(data, dice))
        except error:
            refused += 1
    assert refused > 1000
