"""The memory that a model takes on each GPU and of the host. Pure; unknown values are None and have a reason."""

from dataclasses import dataclass

from agent.common import budget, llama_args
from agent.wire.capability import Runtime
from mirbad.kernel.sizes import size
from models_app.fit import cache
from models_app.fit.serve import ServePlan
from models_app.fit.shape import Input, ModelShape

MIB = 1024**2
GIB = 1024**3

# Measured allowances for memory that no shape shows: the driver's context and the engine's libraries on a card,
# captured graphs, and buffers for the traffic between cards.
_CONTEXT_BYTES = {Runtime.VLLM: 512 * MIB, Runtime.LLAMA_CPP: 448 * MIB}
_GRAPHS_BYTES = 640 * MIB
_TALK_BYTES = 384 * MIB
_LEAST_PICTURE_BYTES, _MOST_PICTURE_BYTES = 128 * MIB, GIB
_SERVER_BYTES = {Runtime.VLLM: 2 * GIB, Runtime.LLAMA_CPP: 192 * MIB}

SHORTEST_CONTEXT = 4096
"""The shortest context, in tokens, to which llama.cpp shortens a context that nobody set, so that it fits."""

_TYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_SQUEEZED = {"fp8": 0.5, "bitsandbytes": 0.28, "experts_int8": 0.5}
"""The fraction of 16-bit weights that remains after the engine quantizes them while loading."""


@dataclass(frozen=True, slots=True)
class MemoryComponent:
    """One part of the estimate, on each card or of the host. `words` explains its size."""

    name: str
    bytes: int | None
    words: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory of a model: `gpu_bytes` on each card (None without cards), `host_bytes` of the host.

    None is unknown, for the given `reasons`. `parts` add up to the total of the shape, which a budget may replace.
    `problems` are settings that the engine will refuse, each as a code and a sentence. `least_bytes` is the need with
    the shortest context that the engine would choose itself, None where it does not shorten. `claim` is the fraction of
    a card that the engine takes whatever it needs. `context` is the limit of one request. `active_bytes` are the
    weights read for one token.
    """

    gpus: int
    gpu_bytes: int | None
    host_bytes: int | None
    parts: tuple[MemoryComponent, ...]
    claim: float | None
    context: int | None
    token_bytes: int | None
    active_bytes: int | None
    inputs: tuple[Input, ...]
    reasons: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    shape_bytes: int | None = None
    least_bytes: int | None = None

    @property
    def known(self) -> bool:
        """Return whether the whole need is known."""
        return self.host_bytes is not None and (self.gpu_bytes is not None or not self.gpus)


def estimate(shape: ModelShape, plan: ServePlan) -> Estimate:
    """Estimate the memory of a model of this `shape` when run by this `plan`."""
    if plan.runtime == Runtime.SIM:
        part = MemoryComponent(
            "engine", budget.host_part_of(plan.runtime, (), 0, None), "a small program without weights"
        )
        need = plan.host_budget_bytes or part.bytes
        return Estimate(plan.gpus, 0 if plan.gpus else None, need, (part,), None, None, None, None, plan.inputs)
    context = plan.context or shape.context
    inputs = [*shape.inputs, *plan.inputs]
    if plan.context is None and context is not None:
        inputs.append(Input("Context", f"{context} tokens", "the model's default"))
    parts = _parts(shape, plan, context)
    reasons = tuple(dict.fromkeys(f"{_LABELS[p.name]}: {p.words}" for p in parts if p.bytes is None))
    total = None if reasons else sum(part.bytes or 0 for part in parts)
    gpu, host = _needs(shape, plan, total)
    unknown = reasons if (host is None or (plan.gpus and gpu is None)) else ()
    if host is None and not unknown:
        unknown = (f"Host memory: {shape.why('weights') or 'the size of the weights is unknown.'}",)
    return Estimate(
        gpus=plan.gpus,
        gpu_bytes=gpu,
        host_bytes=host,
        parts=parts,
        claim=plan.utilization if plan.gpus or plan.shares_memory else None,
        context=None if context is None else context // plan.shares,
        token_bytes=cache.token_bytes(shape, plan),
        active_bytes=_active(shape, plan),
        inputs=tuple(inputs),
        reasons=unknown,
        problems=(*_refused(shape, plan), *_too_small(plan, total)),
        shape_bytes=total,
        least_bytes=_least(shape, plan, total),
    )


_LABELS = {
    "weights": "Weights", "cache": "Cache", "buffers": "Buffers", "engine": "Engine", "projector": "Projector",
}  # fmt: skip


def _parts(shape: ModelShape, plan: ServePlan, context: int | None) -> tuple[MemoryComponent, ...]:
    cards = max(1, plan.gpus)
    loaded = loaded_bytes(shape, plan)
    each = None if loaded is None else -(-loaded // cards)
    split = f", split over {cards} GPUs" if cards > 1 else ""
    if loaded is None:
        weights = MemoryComponent("weights", None, shape.why("weights") or "the size of the weights is unknown.")
    else:
        weights = MemoryComponent("weights", each, f"{size(loaded)} as loaded{split}")
    found = (weights, _cache(shape, plan, context), _buffers(shape, plan, context), _engine(plan))
    given = shape.projector and plan.runtime == Runtime.LLAMA_CPP and llama_args.uses_projector(plan.args)
    return (*found, _projector(shape, plan)) if given else found


def _projector(shape: ModelShape, plan: ServePlan) -> MemoryComponent:
    """Return the memory of the projector and of its work on a picture; each card may be the one that holds it."""
    held = shape.projector_bytes
    if plan.gpus and llama_args.projector_on_host(plan.args):
        return MemoryComponent("projector", 0, "in host memory")
    if held is None:
        return MemoryComponent("projector", None, shape.why("projector") or "its size is unknown.")
    work = max(_LEAST_PICTURE_BYTES, min(held, _MOST_PICTURE_BYTES))
    return MemoryComponent("projector", held + work, f"{size(held)}, and buffers for pictures")


def loaded_bytes(shape: ModelShape, plan: ServePlan) -> int | None:
    """Return the bytes of the weights as the engine holds them.

    It converts plain numbers to its own type, and may quantize them itself.
    """
    total = shape.weights_bytes
    if total is None or plan.runtime == Runtime.LLAMA_CPP:
        return _offloaded(shape, plan, total)
    own = 4 if plan.dtype in ("float32", "float") else 2
    plain = {kind: held for kind, held in shape.bytes_by_type if kind in _TYPE_BYTES}
    if not shape.quantization and plain:
        total += sum(held * own // _TYPE_BYTES[kind] - held for kind, held in plain.items())
    if not shape.quantization and (left := _SQUEEZED.get(plan.quantization)) is not None:
        tables = 2 * (shape.vocabulary or 0) * (shape.hidden or 0) * own
        total = int(min(tables, total) + max(total - tables, 0) * left)
    return total


def _offloaded(shape: ModelShape, plan: ServePlan, total: int | None) -> int | None:
    if total is None or not plan.gpus or plan.offloaded is None or not shape.layers:
        return total
    return int(total * min(1.0, plan.offloaded / (shape.layers + 1)))


def _cache(shape: ModelShape, plan: ServePlan, context: int | None) -> MemoryComponent:
    if shape.groups is None:
        return MemoryComponent("cache", None, shape.why("cache") or "the cache size of a token is unknown.")
    if not shape.groups:
        return MemoryComponent("cache", 0, "none: the model keeps no cache")
    if context is None:
        return MemoryComponent("cache", None, shape.why("context") or "the context length is unknown.")
    held = cache.cache_bytes(shape, plan, context)
    each = cache.token_bytes(shape, plan)
    words = f"one request of {context} tokens" if plan.runtime == Runtime.VLLM else f"{context} tokens for all requests"
    if each:
        words += f", {each / 1024:.4g} KiB each"
    return MemoryComponent("cache", held, words)


def _buffers(shape: ModelShape, plan: ServePlan, context: int | None) -> MemoryComponent:
    """Return the working memory for the tokens that are processed at once."""
    hidden, inner, words = shape.hidden, shape.intermediate, shape.vocabulary
    if not hidden or not words:
        return MemoryComponent("buffers", 512 * MIB, "an allowance: the model states no width")
    inner = inner or 4 * hidden
    if plan.runtime == Runtime.LLAMA_CPP:
        numbers = plan.batch * 4 * (3 * inner + 5 * hidden) + plan.batch * (context or 0) * 2
        outputs = plan.sequences * words * 4
        return MemoryComponent("buffers", numbers + outputs, f"{plan.batch} tokens at once")
    cards = max(1, plan.gpus)
    numbers = plan.batch * 2 * (2 * inner // cards + 6 * hidden) + 256 * words * 4
    return MemoryComponent("buffers", numbers, f"{plan.batch} tokens at once")


def _engine(plan: ServePlan) -> MemoryComponent:
    runtime = Runtime(plan.runtime)
    if not plan.gpus and not plan.shares_memory:
        return MemoryComponent("engine", _SERVER_BYTES[runtime], "the server")
    total, words = _CONTEXT_BYTES[runtime], "the driver's context and libraries"
    if runtime is Runtime.VLLM and plan.graphs:
        total, words = total + _GRAPHS_BYTES, f"{words}, captured graphs"
    if runtime is Runtime.VLLM and plan.gpus > 1:
        total, words = total + _TALK_BYTES, f"{words}, buffers between the GPUs"
    if plan.shares_memory:
        total, words = total + _SERVER_BYTES[runtime], f"{words}, the server"
    return MemoryComponent("engine", total, words)


def _needs(shape: ModelShape, plan: ServePlan, total: int | None) -> tuple[int | None, int | None]:
    """Return (each GPU, host). A configured budget replaces the estimate, as in the node's admission of a start."""
    if plan.gpus:
        gpu = total if plan.gpu_budget_bytes is None else budget.share(plan.gpu_budget_bytes, plan.gpus)
        mapped = None if shape.weights_bytes is None else shape.weights_bytes + (shape.projector_bytes or 0)
        host = budget.host_part_of(plan.runtime, plan.args, plan.gpus, mapped)
        return gpu, host if plan.host_budget_bytes is None else plan.host_budget_bytes
    if plan.shares_memory and plan.gpu_budget_bytes is not None:
        return None, budget.on_shared_memory(plan.host_budget_bytes, plan.gpu_budget_bytes)
    if plan.host_budget_bytes is not None:
        return None, plan.host_budget_bytes
    return None, total


def _least(shape: ModelShape, plan: ServePlan, total: int | None) -> int | None:
    """Return the need with the shortest context to which llama.cpp shortens the model's own to fit on the cards.

    On the processor it shortens by the total memory of the machine, even if little of it is free: no help there.
    """
    if not plan.gpus or plan.gpu_budget_bytes is not None or plan.context is not None or not plan.shortens:
        return None
    if total is None or shape.context is None:
        return None
    short = _parts(shape, plan, min(shape.context, SHORTEST_CONTEXT))
    return sum(part.bytes or 0 for part in short)


def _refused(shape: ModelShape, plan: ServePlan) -> tuple[tuple[str, str], ...]:
    """Return the problem of attention heads that vLLM does not split over this number of cards."""
    if plan.runtime != Runtime.VLLM or plan.gpus < 2:
        return ()
    heads, kv = shape.attention_heads, shape.key_value_heads
    text = ""
    if heads is not None and heads % plan.gpus:
        text = f"vLLM splits attention heads evenly: {heads} cannot be split over {plan.gpus} GPUs."
    elif kv and (kv % plan.gpus if kv >= plan.gpus else plan.gpus % kv):
        text = f"vLLM splits or repeats KV heads evenly: {kv} do not fit {plan.gpus} GPUs."
    return (("tensor_parallel_mismatch", text),) if text else ()


def _too_small(plan: ServePlan, total: int | None) -> tuple[tuple[str, str], ...]:
    """Return the problem of a budget that vLLM keeps to and that is too small for the model."""
    allowed = budget.share(plan.gpu_budget_bytes, plan.gpus)
    if plan.runtime != Runtime.VLLM or plan.utilization is not None or allowed is None or total is None:
        return ()
    if total <= allowed:
        return ()
    text = (
        f"The model needs about {size(total)} on each GPU, but its budget allows {size(allowed)}. Raise the "
        "GPU memory budget, shorten the context, or use more GPUs."
    )
    return (("budget_too_small", text),)


def _active(shape: ModelShape, plan: ServePlan) -> int | None:
    """Return the bytes of the weights that are read for one token."""
    total = loaded_bytes(shape, plan.on(0))
    if total is None:
        return None
    total -= shape.table_bytes or 0
    experts, used = shape.experts, shape.experts_used
    if shape.expert_bytes and experts and used and used < experts:
        return max(0, total - shape.expert_bytes + shape.expert_bytes * used // experts)
    if experts and experts > 1 and plan.active_share is not None:
        return int(total * plan.active_share)
    return total
