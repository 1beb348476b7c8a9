"""Public models as their repositories state them: what of ``config.json`` counts, and the size that the index states.

`rule` is what the engine's own rule needs of a cache, spelled out by hand from the model's paper or card: layers with
the numbers that one token keeps there, and the window where there is one. It is not read by the code under test.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from agent.wire.capability import FolderFile
from agent.wire.shape import FolderShape, SafetensorsFile

_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}


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
        """What a node would tell of a folder with it."""
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


def _llama(layers: int, heads: int, kv: int, hidden: int, inner: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "hidden_size": hidden, "intermediate_size": inner,
        "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


# fmt: off
MODELS = (
    # huggingface.co/meta-llama/Llama-3.1-8B-Instruct
    Public(
        "meta-llama/Llama-3.1-8B-Instruct",
        16_060_522_496,
        _llama(32, 32, 8, 4096, 14336, vocab_size=128256, max_position_embeddings=131072, rope_scaling=_LLAMA3),
        (Layers(32, 2 * 8 * 128, 8),),
        131072,
    ),
    # huggingface.co/meta-llama/Llama-3.3-70B-Instruct
    Public(
        "meta-llama/Llama-3.3-70B-Instruct",
        141_107_412_992,
        _llama(80, 64, 8, 8192, 28672, vocab_size=128256, max_position_embeddings=131072, rope_scaling=_LLAMA3),
        (Layers(80, 2 * 8 * 128, 8),),
        131072,
    ),
    # huggingface.co/Qwen/Qwen2.5-7B-Instruct: a window is stated and switched off
    Public(
        "Qwen/Qwen2.5-7B-Instruct",
        15_231_233_024,
        {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "vocab_size": 152064,
            "max_position_embeddings": 32768,
            "max_window_layers": 28,
            "sliding_window": 131072,
            "use_sliding_window": False,
            "torch_dtype": "bfloat16",
        },
        (Layers(28, 2 * 4 * 128, 4),),
        32768,
    ),
    # huggingface.co/Qwen/Qwen3-8B
    Public(
        "Qwen/Qwen3-8B",
        16_381_470_720,
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "sliding_window": None,
            "use_sliding_window": False,
            "torch_dtype": "bfloat16",
        },
        (Layers(36, 2 * 8 * 128, 8),),
        40960,
    ),
    # huggingface.co/Qwen/Qwen3-30B-A3B: 128 experts of which 8 work; heads wider than hidden ÷ heads
    Public(
        "Qwen/Qwen3-30B-A3B",
        61_064_245_248,
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "torch_dtype": "bfloat16",
        },
        (Layers(48, 2 * 4 * 128, 4),),
        40960,
        expert_bytes=48 * 128 * 3 * 2048 * 768 * 2,
    ),
    # huggingface.co/mistralai/Mistral-7B-v0.1: every layer slides
    Public(
        "mistralai/Mistral-7B-v0.1",
        14_483_464_192,
        {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "torch_dtype": "bfloat16",
        },
        (Layers(32, 2 * 8 * 128, 8, window=4096),),
        32768,
    ),
    # huggingface.co/mistralai/Mistral-7B-Instruct-v0.3: the weights lie there twice
    Public(
        "mistralai/Mistral-7B-Instruct-v0.3",
        14_496_047_104,
        {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "vocab_size": 32768,
            "max_position_embeddings": 32768,
            "sliding_window": None,
            "torch_dtype": "bfloat16",
        },
        (Layers(32, 2 * 8 * 128, 8),),
        32768,
        beside=(("consolidated.safetensors", 14_496_078_512),),
    ),
    # huggingface.co/mistralai/Mixtral-8x7B-Instruct-v0.1
    Public(
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
        93_405_585_408,
        {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "vocab_size": 32000,
            "max_position_embeddings": 32768,
            "sliding_window": None,
            "torch_dtype": "bfloat16",
        },
        (Layers(32, 2 * 8 * 128, 8),),
        32768,
        expert_bytes=32 * 8 * 3 * 4096 * 14336 * 2,
    ),
    # huggingface.co/google/gemma-2-9b-it: every second layer slides
    Public(
        "google/gemma-2-9b-it",
        18_483_411_968,
        {
            "architectures": ["Gemma2ForCausalLM"],
            "model_type": "gemma2",
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
            "sliding_window": 4096,
            "torch_dtype": "bfloat16",
        },
        (Layers(21, 2 * 8 * 256, 8), Layers(21, 2 * 8 * 256, 8, window=4096)),
        8192,
    ),
    # huggingface.co/google/gemma-3-12b-it: five layers of six slide; the text part stands below, beside a vision part
    Public(
        "google/gemma-3-12b-it",
        24_374_815_456,
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "torch_dtype": "bfloat16",
            "text_config": {
                "model_type": "gemma3_text",
                "num_hidden_layers": 48,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 256,
                "hidden_size": 3840,
                "intermediate_size": 15360,
                "sliding_window": 1024,
                "sliding_window_pattern": 6,
                "vocab_size": 262208,
                "max_position_embeddings": 131072,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            },
            "vision_config": {"num_hidden_layers": 27, "num_attention_heads": 16, "hidden_size": 1152},
        },
        (Layers(8, 2 * 8 * 256, 8), Layers(40, 2 * 8 * 256, 8, window=1024)),
        131072,
    ),
    # huggingface.co/microsoft/Phi-3-mini-4k-instruct: as many KV heads as heads
    Public(
        "microsoft/Phi-3-mini-4k-instruct",
        7_642_159_104,
        {
            "architectures": ["Phi3ForCausalLM"],
            "model_type": "phi3",
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "vocab_size": 32064,
            "max_position_embeddings": 4096,
            "sliding_window": 2047,
            "torch_dtype": "bfloat16",
        },
        (Layers(32, 2 * 32 * 96, 32, window=2047),),
        4096,
    ),
    # huggingface.co/deepseek-ai/DeepSeek-V2-Lite: one latent vector for all heads
    Public(
        "deepseek-ai/DeepSeek-V2-Lite",
        31_412_968_448,
        {
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "num_experts_per_tok": 6,
            "vocab_size": 102400,
            "max_position_embeddings": 163840,
            "torch_dtype": "bfloat16",
            "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
        },
        (Layers(27, 512 + 64, split=False),),
        163840,
        expert_bytes=26 * 64 * 3 * 2048 * 1408 * 2,
    ),
    # huggingface.co/openai/gpt-oss-20b: every second layer slides over 128 tokens; weights packed to 4 bits
    Public(
        "openai/gpt-oss-20b",
        13_761_264_768,
        {
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
            "num_hidden_layers": 24,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
            "vocab_size": 201088,
            "max_position_embeddings": 131072,
            "quantization_config": {"quant_method": "mxfp4"},
            "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
        },
        (Layers(12, 2 * 8 * 64, 8), Layers(12, 2 * 8 * 64, 8, window=128)),
        131072,
        kind="U8",
    ),
    # huggingface.co/tiiuae/falcon-7b: one KV head, names of fields of its own
    Public(
        "tiiuae/falcon-7b",
        14_434_379_520,
        {
            "architectures": ["FalconForCausalLM"],
            "model_type": "falcon",
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "multi_query": True,
            "hidden_size": 4544,
            "vocab_size": 65024,
            "max_position_embeddings": 2048,
            "torch_dtype": "bfloat16",
        },
        (Layers(32, 2 * 1 * 64, 1),),
        2048,
    ),
    # huggingface.co/TinyLlama/TinyLlama-1.1B-Chat-v1.0
    Public(
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        2_200_119_296,
        _llama(22, 32, 4, 2048, 5632, vocab_size=32000, max_position_embeddings=2048),
        (Layers(22, 2 * 4 * 64, 4),),
        2048,
    ),
    # huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct: one layer of four attends, the others keep a state
    Public(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        162_648_793_088,
        {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "full_attention_interval": 4,
            "linear_num_value_heads": 32,
            "linear_num_key_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "vocab_size": 151936,
            "max_position_embeddings": 262144,
            "torch_dtype": "bfloat16",
        },
        (Layers(12, 2 * 2 * 256, 2), Layers(36, 0, state=32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128))),
        262144,
        expert_bytes=48 * 512 * 3 * 2048 * 512 * 2,
    ),
)
# fmt: on


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
