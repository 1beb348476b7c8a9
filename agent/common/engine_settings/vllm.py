"""vLLM's server: settings of computation and answers, less those that name files, addresses, classes or programs."""

from agent.common.engine_settings.engine import EngineSettings
from agent.common.engine_settings.rules import (
    ANY_KEY,
    NUMBER,
    ON_OFF,
    SEVERAL_NUMBERS,
    SWITCH,
    WORD,
    WORDS,
    Shape,
    choice,
    either,
    is_flag,
    is_number,
    is_numbers,
    is_scalar,
    is_word,
    json_object,
    one_of,
    pattern,
    table,
)
from agent.common.engine_settings.variables import BETWEEN_SHARDS, EVERY_ENGINE, TORCH

_MANAGED = """
    --model --model-tag --host --port --uds --fd --api-key --served-model-name --root-path --tensor-parallel-size
    -tp --nnodes -n --node-rank -r --master-addr --master-port --headless --device-ids
"""
_SWITCHES = """
    --trust-remote-code --enforce-eager --disable-sliding-window --disable-cascade-attn --enable-prefix-caching
    --enable-chunked-prefill --enable-expert-parallel -ep --disable-custom-all-reduce --enable-sleep-mode
    --skip-mm-profiling --enable-prompt-embeds --enable-mm-embeds --interleave-mm-strings --language-model-only
    --mm-encoder-only --enable-log-requests --disable-log-requests --disable-log-stats --enable-log-outputs
    --enable-log-deltas --enable-auto-tool-choice --exclude-tools-when-tool-choice-none --return-tokens-as-token-ids
    --disable-uvicorn-access-log --disable-fastapi-docs --enable-prompt-tokens-details --enable-server-load-tracking
    --enable-force-include-usage --enable-request-id-headers --disable-frontend-multiprocessing --log-error-stack
    --async-scheduling --disable-hybrid-kv-cache-manager --disable-chunked-mm-input --scheduler-reserve-full-isl
    --enable-dbo --enable-eplb --enable-ep-weight-filter --numa-bind --kv-sharing-fast-prefill --calculate-kv-scales
    --allow-deprecated-quantization --use-tqdm-on-load --skip-tokenizer-init --enable-cumem-allocator
    --enable-flashinfer-autotune --kv-cache-metrics --cudagraph-metrics --enable-mfu-metrics --enable-reasoning
    --enable-logging-iteration-details --aggregate-engine-logging --use-fp64-gumbel --disable-mm-preprocessor-cache
    --disable-nccl-for-dp-synchronization --multi-step-stream-outputs --enable-batch-sharded-sampling
    --swa-bounded-replay --use-v2-block-manager --disable-async-output-proc --guided-decoding-disable-fallback
    --guided-decoding-disable-any-whitespace --guided-decoding-disable-additional-properties
"""
_NUMBERS = """
    --seed --max-model-len --max-num-seqs --max-num-batched-tokens --max-num-scheduled-tokens
    --max-num-partial-prefills --max-long-partial-prefills --max-num-active-seqs --max-num-queued-reqs
    --max-num-queued-tokens --long-prefill-token-threshold --num-lookahead-slots --num-scheduler-steps
    --scheduler-delay-factor --watermark --prefill-schedule-interval --stream-interval --gpu-memory-utilization
    --device-memory-utilization --kv-cache-memory-bytes --num-gpu-blocks-override --block-size --swap-space
    --cpu-offload-gb --kv-offloading-size --max-logprobs --max-log-len --pipeline-parallel-size -pp
    --data-parallel-size -dp --data-parallel-size-local -dpl --decode-context-parallel-size -dcp
    --prefill-context-parallel-size -pcp --dcp-kv-cache-interleave-size --cp-kv-cache-interleave-size
    --api-server-count -asc --renderer-num-workers --max-parallel-loading-workers --ubatch-size
    --dbo-decode-token-threshold --dbo-prefill-token-threshold --mm-processor-cache-gb
    --mm-shm-cache-max-object-size-mb --mm-ipc-gpu-memory-gb --video-pruning-rate --mamba-block-size
    --prefix-cache-retention-interval --max-seq-len-to-capture --max-cudagraph-capture-size
    --kv-cache-metrics-sample --distributed-timeout-seconds --cpu-distributed-timeout-seconds --offload-group-size
    --offload-num-in-group --offload-prefetch-step --shutdown-timeout --rope-theta
    --safetensors-prefetch-num-threads --safetensors-prefetch-block-size --spec-tokens
"""
_WORDS = """
    --dtype --kv-cache-dtype --quantization -q --tokenizer-mode --config-format --runner --convert --task
    --attention-backend --mamba-backend --mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-cache-mode
    --reasoning-parser --tool-call-parser --chat-template-content-format --response-role --uvicorn-log-level
    --log-level --guided-decoding-backend --logprobs-mode --scheduling-policy --prefix-caching-hash-algo
    --all2all-backend --dcp-comm-backend --expert-placement-strategy --mm-processor-cache-type --mm-encoder-tp-mode
    --mm-encoder-attn-backend --mm-encoder-attn-dtype --mm-hasher-algorithm --video-pruning-method --moe-backend
    --linear-backend --sparse-indexer-topk-backend --gdn-prefill-backend --performance-mode
    --safetensors-load-strategy --show-hidden-metrics-for-version --preemption-mode --offload-backend
    --jit-monitor-mode
"""

_LEVEL = choice("0", "1", "2", "3")
_NGRAM = (
    "ngram",
    "ngram_gpu",
    "suffix",
    "mtp",
    "deepseek_mtp",
    "ernie_mtp",
    "qwen3_next_mtp",
    "qwen3_5_mtp",
    "mimo_mtp",
)
_SPECULATIVE: Shape = {
    "method": one_of(*_NGRAM, "glm4_moe_mtp", "longcat_flash_mtp", "pangu_ultra_moe_mtp"),
    **dict.fromkeys(("num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "max_model_len"), is_number),
    **dict.fromkeys(("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"), is_number),
    **dict.fromkeys(("suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob"), is_number),
    **dict.fromkeys(("disable_padded_drafter_batch", "enforce_eager", "parallel_drafting"), is_flag),
}
_COMPILATION: Shape = {
    "level": is_number,
    "mode": is_scalar,
    "cudagraph_mode": is_word,
    **dict.fromkeys(("cudagraph_capture_sizes", "compile_sizes", "compile_ranges_endpoints"), is_numbers),
    **dict.fromkeys(("max_cudagraph_capture_size", "cudagraph_num_of_warmups"), is_number),
    **dict.fromkeys(("use_cudagraph", "full_cuda_graph", "use_inductor", "cudagraph_copy_inputs"), is_flag),
    "use_inductor_graph_partition": is_flag,
    "pass_config": {ANY_KEY: lambda value: is_number(value) or is_flag(value)},
}
_ROPE: Shape = {ANY_KEY: lambda value: is_scalar(value) or is_numbers(value)}
_STRUCTURED: Shape = {
    "backend": one_of("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer"),
    "reasoning_parser": is_word,
    **dict.fromkeys(("disable_fallback", "disable_any_whitespace", "disable_additional_properties"), is_flag),
    "enable_in_reasoning": is_flag,
}
_ATTENTION: Shape = {
    "backend": is_word,
    **dict.fromkeys(("flash_attn_version", "flash_attn_max_num_splits_for_cuda_graph"), is_number),
    **dict.fromkeys(("use_trtllm_attention", "disable_flashinfer_q_quantization", "use_cudnn_prefill"), is_flag),
}
_POOLER: Shape = {ANY_KEY: is_scalar}
_EXPERTS: Shape = {
    **dict.fromkeys(("window_size", "step_interval", "num_redundant_experts"), is_number),
    **dict.fromkeys(("log_balancedness", "use_async"), is_flag),
    "policy": one_of("default"),
}

_VARIABLE_NUMBERS = """
    USE_V1 USE_V2_MODEL_RUNNER LOG_STATS_INTERVAL ENGINE_ITERATION_TIMEOUT_S ENGINE_READY_TIMEOUT_S RPC_TIMEOUT
    EXECUTE_MODEL_TIMEOUT_SECONDS WORKER_SHUTDOWN_TIMEOUT_SECONDS HTTP_TIMEOUT_KEEP_ALIVE CPU_KVCACHE_SPACE
    CPU_NUM_OF_RESERVED_CPU CPU_SGL_KERNEL CPU_MOE_PREPACK ALLOW_LONG_MAX_MODEL_LEN ENABLE_V1_MULTIPROCESSING
    USE_FLASHINFER_SAMPLER USE_TRITON_FLASH_ATTN FLASH_ATTN_VERSION USE_DEEP_GEMM MOE_USE_DEEP_GEMM
    USE_DEEP_GEMM_E8M0 USE_FLASHINFER_MOE_FP16 USE_FLASHINFER_MOE_FP8 USE_FLASHINFER_MOE_FP4 USE_FLASHINFER_MOE_INT4
    USE_FLASHINFER_MOE_MXFP4_BF16 USE_FLASHINFER_MOE_MXFP4_MXFP8 USE_TRTLLM_ATTENTION MLA_DISABLE
    MARLIN_USE_ATOMIC_ADD FUSED_MOE_CHUNK_SIZE ENABLE_FUSED_MOE_ACTIVATION_CHUNKING DISABLE_COMPILE_CACHE
    SKIP_P2P_CHECK DISABLE_PYNCCL USE_NCCL_SYMM_MEM ALLREDUCE_USE_SYMM_MEM IMAGE_FETCH_TIMEOUT VIDEO_FETCH_TIMEOUT
    AUDIO_FETCH_TIMEOUT MAX_AUDIO_CLIP_FILESIZE_MB MAX_IMAGE_PIXELS MAX_MEDIA_DOWNLOAD_SIZE_MB
    MEDIA_LOADING_THREAD_COUNT MEDIA_FETCH_MAX_RETRIES MM_INPUT_CACHE_GIB XGRAMMAR_CACHE_MB
    REGEX_COMPILATION_TIMEOUT_S TOOL_PARSE_REGEX_TIMEOUT_SECONDS MQ_MAX_CHUNK_BYTES_MB SLEEP_WHEN_IDLE
    KEEP_ALIVE_ON_ENGINE_DEATH CONFIGURE_LOGGING LOG_BATCHSIZE_INTERVAL V1_OUTPUT_PROC_CHUNK_SIZE MAX_N_SEQUENCES
    ENABLE_CUDAGRAPH_GC MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS ENABLE_INDUCTOR_MAX_AUTOTUNE
    ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING USE_TRITON_AWQ ENABLE_RESPONSES_API_STORE
    WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY WEIGHT_OFFLOADING_DISABLE_UVA WSL2_ENABLE_PIN_MEMORY DISABLE_LOG_LOGO
    BATCH_INVARIANT ROCM_USE_AITER ROCM_USE_AITER_LINEAR ROCM_USE_AITER_MOE ROCM_USE_AITER_MHA ROCM_USE_AITER_MLA
    ROCM_USE_AITER_RMSNORM ROCM_USE_AITER_UNIFIED_ATTENTION ROCM_USE_SKINNY_GEMM ROCM_FP8_PADDING ROCM_MOE_PADDING
    ROCM_CUSTOM_PAGED_ATTN USE_STANDALONE_COMPILE ENFORCE_STRICT_TOOL_CALLING DEBUG_LOG_API_SERVER_RESPONSE
"""

VLLM = EngineSettings(
    name="vllm",
    managed=frozenset(_MANAGED.split()),
    managed_variables=frozenset({"VLLM_API_KEY", "VLLM_PORT", "VLLM_HOST_IP"}),
    arguments=table(
        (SWITCH, _SWITCHES),
        (NUMBER, _NUMBERS),
        (WORD, _WORDS),
        (_LEVEL, "--optimization-level"),
        (json_object(_COMPILATION, _LEVEL), "--compilation-config -cc -O"),
        (json_object(_SPECULATIVE), "--speculative-config -sc"),
        (choice(*_NGRAM), "--spec-method"),
        (json_object({"rope_scaling": _ROPE, "rope_parameters": _ROPE, "rope_theta": is_number}), "--hf-overrides"),
        (json_object(_ROPE), "--rope-scaling"),
        (json_object(_STRUCTURED), "--structured-outputs-config"),
        (json_object(_ATTENTION), "--attention-config -ac"),
        (json_object(_POOLER), "--pooler-config --override-pooler-config"),
        (json_object(_EXPERTS), "--eplb-config"),
        (json_object({ANY_KEY: lambda value: is_number(value) or is_flag(value)}), "--override-generation-config"),
        (json_object({ANY_KEY: is_scalar}), "--default-chat-template-kwargs"),
        (json_object({ANY_KEY: lambda value: is_number(value) or is_flag(value)}), "--mm-processor-kwargs"),
        (json_object({ANY_KEY: {ANY_KEY: is_number}}), "--media-io-kwargs"),
        (
            json_object(
                {ANY_KEY: lambda value: is_number(value) or _is_limit(value)},
                pattern("image=2,video=1", r"[a-z]{1,16}=\d{1,6}(?:,[a-z]{1,16}=\d{1,6}){0,7}"),
            ),
            "--limit-mm-per-prompt",
        ),
        (choice("auto", "vllm"), "--generation-config"),
        (choice("mp", "uni"), "--distributed-executor-backend"),
        (choice("mp"), "--data-parallel-backend -dpb"),
        (choice("native"), "--kv-offloading-backend"),
        (choice("auto", "vllm", "transformers"), "--model-impl"),
        (
            either(
                choice("auto", "safetensors", "pt", "npcache", "dummy", "gguf", "bitsandbytes", "mistral"),
                choice("sharded_state", "fastsafetensors", "runai_streamer", "runai_streamer_sharded"),
            ),
            "--load-format",
        ),
        (SEVERAL_NUMBERS, "--cudagraph-capture-sizes --cuda-graph-sizes --numa-bind-nodes"),
    ),
    variables={
        **EVERY_ENGINE,
        **BETWEEN_SHARDS,
        **TORCH,
        **table(
            (NUMBER, " ".join(f"VLLM_{name}" for name in _VARIABLE_NUMBERS.split())),
            (choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), "VLLM_LOGGING_LEVEL"),
            (WORD, "VLLM_ATTENTION_BACKEND VLLM_KV_CACHE_LAYOUT VLLM_ALL2ALL_BACKEND VLLM_FLASHINFER_MOE_BACKEND"),
            (WORD, "VLLM_FLOAT32_MATMUL_PRECISION VLLM_DEEP_GEMM_WARMUP"),
            (choice("spawn", "fork", "forkserver"), "VLLM_WORKER_MULTIPROC_METHOD"),
            (WORDS, "VLLM_PP_LAYER_PARTITION VLLM_DISABLED_KERNELS"),
            (ON_OFF, "VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK VLLM_LOGGING_COLOR"),
        ),
    },
    joins_values=True,
    has_members=True,
    negates=True,
    attached={"-O": _LEVEL},
)


def _is_limit(value: object) -> bool:
    return isinstance(value, dict) and all(is_word(key) and is_number(part) for key, part in value.items())
