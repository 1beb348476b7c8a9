"""llama.cpp's server: settings of computation and answers, less those that name files, addresses or programs."""

from agent.common.engine_settings.engine import EngineSettings
from agent.common.engine_settings.rules import (
    ANY_KEY,
    NUMBER,
    NUMBERS,
    ON_OFF,
    OPTIONAL_ON_OFF,
    SIGNED,
    SWITCH,
    TEXT,
    WORD,
    WORDS,
    choice,
    is_scalar,
    json_object,
    pattern,
    table,
)
from agent.common.engine_settings.variables import EVERY_ENGINE

_MANAGED = "-m --model --host --port --reuse-port -a --alias --api-key --api-key-file --api-prefix --path --tags"

_SWITCHES = """
    --metrics --slots --no-slots --embedding --embeddings --rerank --reranking --jinja --no-jinja --warmup
    --no-warmup --context-shift --no-context-shift -cb --cont-batching -nocb --no-cont-batching --kv-offload -kvo
    --no-kv-offload -nkvo --kv-unified -kvu --no-kv-unified -no-kvu --swa-full --special -sp --check-tensors
    --prefill-assistant --no-prefill-assistant --repack --no-repack -nr --no-host --op-offload --no-op-offload
    --perf --no-perf --escape -e --no-escape --mlock --mmap --no-mmap --direct-io -dio --no-direct-io -ndio
    --cpu-moe -cmoe --cpu-moe-draft -cmoed --spec-draft-cpu-moe --mmproj-auto --no-mmproj --no-mmproj-auto
    --mmproj-offload --no-mmproj-offload --ignore-eos --verbose -v --log-verbose --log-disable --log-prefix
    --no-log-prefix --log-timestamps --no-log-timestamps --log-jsonl --no-log-jsonl --offline --no-webui --no-ui
    --cache-prompt --no-cache-prompt --cache-idle-slots --no-cache-idle-slots --reasoning-preserve
    --no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing --show-timings --no-show-timings
    --backend-sampling -bs --spm-infill --kv-unified-per-slot --spec-draft-backend-sampling
    --no-spec-draft-backend-sampling
"""
_NUMBERS = """
    --threads -t --threads-batch -tb --threads-http --threads-draft -td --threads-batch-draft -tbd --poll
    --poll-batch --poll-draft --ctx-size -c --ctx-size-draft -cd --parallel -np --batch-size -b --ubatch-size -ub
    --n-predict --predict -n --keep --n-gpu-layers --gpu-layers -ngl --n-gpu-layers-draft --gpu-layers-draft -ngld
    --spec-draft-ngl --main-gpu -mg --cache-reuse --cache-ram -cram --ctx-checkpoints -ctxcp --swa-checkpoints
    --checkpoint-min-step --rope-freq-base --rope-freq-scale --rope-scale --yarn-orig-ctx --yarn-beta-slow
    --yarn-beta-fast --slot-prompt-similarity -sps --sleep-idle-seconds --timeout -to --seed -s --repeat-last-n
    --mirostat --verbosity -lv --log-verbosity --n-cpu-moe -ncmoe --n-cpu-moe-draft -ncmoed --spec-draft-n-cpu-moe
    --n-cpu-ffn -ncffn --moe-cache-mib --draft --draft-n --draft-max --draft-min --draft-n-min --draft-p-min
    --draft-p-split --spec-draft-n-max --spec-draft-n-min --spec-draft-p-min --spec-draft-p-split
    --spec-ngram-min-hits --spec-ngram-size-n --spec-ngram-size-m --grp-attn-n -gan --grp-attn-w -gaw --prio
    --prio-batch --prio-draft --cpu-strict --cpu-strict-batch --cpu-mask --cpu-mask-batch --embd-normalize
    --image-min-tokens --image-max-tokens --mtmd-batch-max-tokens --fit-ctx -fitc --reasoning-budget
    --sse-ping-interval --dry-allowed-length --dry-penalty-last-n --video-fps --top-k
"""
_SIGNED = """
    --temp --temperature --top-p --min-p --top-n-sigma --top-nsigma --typical --typical-p --repeat-penalty
    --presence-penalty --frequency-penalty --dynatemp-range --dynatemp-exp --mirostat-lr --mirostat-ent
    --xtc-probability --xtc-threshold --dry-multiplier --dry-base --adaptive-target --adaptive-decay
    --yarn-ext-factor --yarn-attn-factor --defrag-thold -dt
"""
_WORDS = """
    --cache-type-k -ctk --cache-type-v -ctv --cache-type-k-draft -ctkd --cache-type-v-draft -ctvd
    --spec-draft-type-k --spec-draft-type-v --pooling --rope-scaling --split-mode -sm --numa --load-mode --lazy-mode
    --reasoning-format --reasoning-effort --spec-type --attention --log-colors --sampler-seq --sampling-seq
"""
_GGML = """
    CUDA_ENABLE_UNIFIED_MEMORY CUDA_FORCE_MMQ CUDA_FORCE_CUBLAS CUDA_FORCE_CUBLAS_COMPUTE_16F
    CUDA_FORCE_CUBLAS_COMPUTE_32F CUDA_DISABLE_GRAPHS CUDA_NO_PINNED CUDA_DISABLE_FUSION CUDA_P2P CUDA_GRAPH_OPT
    CUDA_REGISTER_HOST NO_BACKTRACE SCHED_DEBUG OP_OFFLOAD_MIN_BATCH CPU_DISABLE_FUSION VK_DISABLE_COOPMAT
    VK_DISABLE_COOPMAT2 VK_DISABLE_F16 VK_DISABLE_FUSION VK_PREFER_HOST_MEMORY VK_ALLOW_SYSMEM_FALLBACK
    VK_DISABLE_HOST_VISIBLE_VIDMEM VK_FORCE_MAX_ALLOCATION_SIZE VK_SUBALLOCATION_BLOCK_SIZE VK_PERF_LOGGER
    META_DEBUG
"""

LLAMA_CPP = EngineSettings(
    name="llama.cpp",
    managed=frozenset(_MANAGED.split()),
    managed_variables=frozenset({"LLAMA_API_KEY"}),
    arguments=table(
        (SWITCH, _SWITCHES),
        (NUMBER, _NUMBERS),
        (SIGNED, _SIGNED),
        (WORD, _WORDS),
        (OPTIONAL_ON_OFF, "--flash-attn -fa"),
        (ON_OFF, "--fit -fit --reasoning -rea"),
        (NUMBERS, "--tensor-split -ts --fit-target -fitt --cpu-range -Cr --cpu-range-batch -Crb"),
        (WORDS, "--device -dev --device-draft -devd --spec-draft-device --samplers"),
        (TEXT, "--chat-template --reasoning-budget-message --grammar --dry-sequence-breaker"),
        (json_object({ANY_KEY: is_scalar}), "--chat-template-kwargs"),
        (
            pattern("TOKEN+BIAS", r"\d{1,9}[+-]\d{1,4}(?:\.\d{1,4})?(?:,\d{1,9}[+-]\d{1,4}(?:\.\d{1,4})?){0,63}"),
            "--logit-bias -l",
        ),
        (
            pattern(
                "KEY=TYPE:VALUE",
                r"[a-z0-9_.-]+=(?:int|float|bool|str):[A-Za-z0-9_.+-]+"
                r"(?:,[a-z0-9_.-]+=(?:int|float|bool|str):[A-Za-z0-9_.+-]+){0,31}",
            ),
            "--override-kv",
        ),
        (
            pattern("TENSORS=BUFFER", r"[^=\s/-][^=\s/]{0,255}=[A-Za-z0-9_]{1,32}"),
            "--override-tensor -ot --override-tensor-draft -otd --spec-draft-override-tensor",
        ),
    ),
    variables={
        **EVERY_ENGINE,
        **table(
            (NUMBER, " ".join(f"GGML_{name}" for name in _GGML.split())),
            (NUMBERS, "GGML_VK_VISIBLE_DEVICES"),
            (NUMBER, "LLAMA_SET_ROWS LLAMA_GRAPH_REUSE_DISABLE LLAMA_ATTN_ROT_DISABLE LLAMA_TRACE LLAMA_BATCH_DEBUG"),
            (NUMBER, "LLAMA_KV_CACHE_DEBUG LLAMA_SERVER_SLOTS_DEBUG"),
            (choice("0", "1"), "LLAMA_OFFLINE"),
        ),
    },
)
