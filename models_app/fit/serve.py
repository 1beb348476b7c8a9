"""The way an engine will be run: the arguments and settings of a definition that decide its memory."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.common import llama_args
from agent.wire.capability import Runtime
from models_app.fit.shape import Input

UTILIZATION = 0.9
"""The default fraction of each card that vLLM takes."""

_SHARE = "--gpu-memory-utilization"
_SHARE_WORDS = "Share of each GPU that vLLM takes"
_CONTEXT = {Runtime.LLAMA_CPP.value: ("-c", "--ctx-size"), Runtime.VLLM.value: ("--max-model-len",)}
"""Arguments that go before a model's context length, even with a value that only the engine understands."""
_BATCHED_TOKENS = 8192
_UBATCH = 512
_SLOTS = 4
_BLOCK = 16
_CACHE_TYPES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32,
    "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
_ACTIVE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)B-A(\d+(?:\.\d+)?)B", re.IGNORECASE)
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
_UNITS = {"": 1, "k": 1000, "m": 1_000_000, "K": 1024, "M": 1024**2}


@dataclass(frozen=True, slots=True)
class ServePlan:
    """`gpus` cards that work as one; 0 is the processor, or with `shares_memory` a GPU without memory of its own.

    `context` is that of all requests together, of which one has its part of `shares`; None is the model's own, which
    an engine that `shortens` reduces until it fits. `key_bytes` and
    `value_bytes` are of one number in the cache; None follows the model's type. `sequences` share the cache of
    llama.cpp; `batch` tokens are processed at once. `offloaded` layers are on the GPUs, None is all. `active_share` is
    the fraction of the weights that work on one token, None when the name does not state it. `threads` are those that
    the arguments give an engine on a processor, None for the node's.
    """

    runtime: str
    gpus: int = 0
    shares_memory: bool = False
    context: int | None = None
    shares: int = 1
    key_bytes: float | None = None
    value_bytes: float | None = None
    sequences: int = 1
    batch: int = _BATCHED_TOKENS
    block: int = _BLOCK
    dtype: str = ""
    quantization: str = ""
    utilization: float | None = None
    graphs: bool = True
    offloaded: int | None = None
    whole_windows: bool = False
    shortens: bool = False
    active_share: float | None = None
    threads: int | None = None
    gpu_budget_bytes: int | None = None
    host_budget_bytes: int | None = None
    args: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()

    @property
    def context_each(self) -> int | None:
        """Return the tokens of context that one request may have; None is the model's own."""
        return None if self.context is None else self.context // self.shares

    def on(self, gpus: int, *, shares_memory: bool = False) -> "ServePlan":
        """Return the same plan on another number of cards."""
        return replace(self, gpus=gpus, shares_memory=shares_memory)


def serve_plan(
    runtime: str,
    args: Sequence[str] = (),
    *,
    context_length: int | None = None,
    gpu_budget_bytes: int | None = None,
    host_budget_bytes: int | None = None,
    name: str = "",
) -> ServePlan:
    """Return the plan of a definition. `name` is of its weights; values in `args` that cannot be parsed are ignored."""
    read = _llama if runtime == Runtime.LLAMA_CPP else _vllm if runtime == Runtime.VLLM else _sim
    plan, inputs = read(tuple(args))
    if gpu_budget_bytes is not None and plan.utilization is not None and not is_stated(args, _SHARE):
        # The agent gives each card its share of the budget.
        plan, inputs = replace(plan, utilization=None), [item for item in inputs if item.name != _SHARE_WORDS]
    if plan.context is None and context_length is not None and not is_stated(args, *_CONTEXT.get(runtime, ())):
        # As the agent does: each of the requests at a time has the whole.
        plan = replace(plan, context=context_length * plan.shares)
        inputs.append(Input("Context", f"{context_length} tokens", "the model's settings"))
    if plan.shares > 1:
        each = f", {plan.context_each} tokens each" if plan.context_each is not None else ""
        inputs.append(Input("Requests at a time", f"{plan.shares}{each}", "argument --parallel"))
    for words, budget in (("GPU memory budget", gpu_budget_bytes), ("Host memory budget", host_budget_bytes)):
        if budget is not None:
            inputs.append(Input(words, f"{budget / 2**30:.2f} GiB", "the model's settings"))
    found = _ACTIVE.search(name)
    share = float(found[2]) / float(found[1]) if found and float(found[1]) > float(found[2]) else None
    return replace(
        plan,
        gpu_budget_bytes=gpu_budget_bytes,
        host_budget_bytes=host_budget_bytes,
        active_share=share,
        args=tuple(args),
        inputs=tuple(inputs),
    )


def value_of(args: Sequence[str], *flags: str) -> str | None:
    """Return the value of the last of `flags` in `args`; underscores in a long flag count as dashes."""
    found: str | None = None
    for at, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if name in flags:
            found = value if equals else (args[at + 1] if at + 1 < len(args) else None)
    return found


def is_stated(args: Sequence[str], *flags: str) -> bool:
    """Return whether one of `flags` has a value in `args`."""
    return value_of(args, *flags) is not None


def is_given(args: Sequence[str], *flags: str) -> bool:
    """Return whether one of `flags`, which take no value, is in `args`."""
    return any((a.replace("_", "-") if a.startswith("--") else a) in flags for a in args)


def _count(text: str | None) -> int | None:
    """Parse ``8192``, ``32k`` (thousands) or ``32K`` (1024); None for anything else."""
    found = _COUNT.fullmatch(text or "")
    if found is None:
        return None
    number = int(float(found[1]) * _UNITS[found[2]])
    return number if 0 < number < 2**40 else None


def _share(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 < number <= 1 else None


def _vllm(args: tuple[str, ...]) -> tuple[ServePlan, list[Input]]:
    inputs: list[Input] = []
    context = _count(value_of(args, "--max-model-len"))
    if context is not None:
        inputs.append(Input("Context", f"{context} tokens", "argument --max-model-len"))
    kind = value_of(args, "--kv-cache-dtype") or "auto"
    cache = 1.0 if kind.startswith("fp8") else 2.0 if kind in ("bfloat16", "float16") else None
    if cache is not None:
        inputs.append(Input("Type of the cache", kind, "argument --kv-cache-dtype"))
    utilization = _share(value_of(args, _SHARE))
    source = f"argument {_SHARE}" if utilization else "vLLM's default"
    if value_of(args, "--kv-cache-memory-bytes") is None:
        utilization = utilization or UTILIZATION
        inputs.append(Input(_SHARE_WORDS, f"{utilization:.0%}", source))
    else:
        utilization = None
    batch = _count(value_of(args, "--max-num-batched-tokens")) or _BATCHED_TOKENS
    plan = ServePlan(
        Runtime.VLLM,
        context=context,
        key_bytes=cache,
        value_bytes=cache,
        batch=batch,
        block=_count(value_of(args, "--block-size")) or _BLOCK,
        dtype=value_of(args, "--dtype") or "",
        quantization=value_of(args, "--quantization", "-q") or "",
        utilization=utilization,
        graphs=not is_given(args, "--enforce-eager"),
    )
    return plan, inputs


def _llama(args: tuple[str, ...]) -> tuple[ServePlan, list[Input]]:
    inputs: list[Input] = []
    context = _count(value_of(args, "-c", "--ctx-size"))
    if context is not None:
        inputs.append(Input("Context", f"{context} tokens", "argument --ctx-size"))
    kinds = [
        value_of(args, "-ctk", "--cache-type-k") or "f16",
        value_of(args, "-ctv", "--cache-type-v") or "f16",
    ]
    source = "arguments --cache-type-k and -v" if kinds != ["f16", "f16"] else "llama.cpp's default"
    inputs.append(Input("Type of the cache", " / ".join(dict.fromkeys(kinds)), source))
    slots = _count(value_of(args, "-np", "--parallel")) or _SLOTS
    layers = value_of(args, "-ngl", "--gpu-layers", "--n-gpu-layers") or ""
    offloaded = int(layers) if layers.isdecimal() and len(layers) < 6 else None
    if offloaded is not None:
        inputs.append(Input("Layers on the GPUs", str(offloaded), "argument --n-gpu-layers"))
    plan = ServePlan(
        Runtime.LLAMA_CPP,
        context=context,
        key_bytes=_CACHE_TYPES.get(kinds[0].lower()),
        value_bytes=_CACHE_TYPES.get(kinds[1].lower()),
        sequences=slots,
        shares=llama_args.context_shares(args),
        threads=_count(value_of(args, "-t", "--threads")),
        batch=_count(value_of(args, "-ub", "--ubatch-size")) or _UBATCH,
        offloaded=offloaded,
        whole_windows=is_given(args, "--swa-full"),
        shortens=(value_of(args, "-fit", "--fit") or "on") not in ("off", "0", "false"),
    )
    return plan, inputs


def _sim(args: tuple[str, ...]) -> tuple[ServePlan, list[Input]]:
    return ServePlan(Runtime.SIM, context=_count(value_of(args, "--context-length"))), []
