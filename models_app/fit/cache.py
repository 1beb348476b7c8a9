"""The size of the KV cache, by the allocation rules of vLLM and llama.cpp, for one card of several."""

from agent.wire.capability import Runtime
from models_app.fit.serve import ServePlan
from models_app.fit.shape import CacheGroup, ModelShape

_CELLS = 256
"""llama.cpp allocates cells in steps of this many."""

_STATE_BYTES = {Runtime.LLAMA_CPP: 4, Runtime.VLLM: 2}


def number_bytes(shape: ModelShape, plan: ServePlan) -> tuple[float, float]:
    """Return the bytes of one number in the cache, of keys and of values."""
    own = 4.0 if plan.dtype in ("float32", "float") else 2.0
    key = plan.key_bytes if plan.key_bytes is not None else own
    return key, plan.value_bytes if plan.value_bytes is not None else own


def token_bytes(shape: ModelShape, plan: ServePlan) -> int | None:
    """Return the bytes that one more token of context takes on each card, None when unknown.

    Sliding layers take nothing past their window.
    """
    if shape.groups is None:
        return None
    key, value = number_bytes(shape, plan)
    total = sum(
        group.layers * _kept(group, plan, key, value) for group in shape.groups if group.kind in ("full", "latent")
    )
    return round(total)


def cache_bytes(shape: ModelShape, plan: ServePlan, context: int) -> int | None:
    """Return the cache of one whole context on each card, None when unknown."""
    if shape.groups is None:
        return None
    key, value = number_bytes(shape, plan)
    total = 0.0
    for group in shape.groups:
        if group.kind == "state":
            total += _states(group, plan)
        else:
            total += group.layers * _cells(group, plan, context) * _kept(group, plan, key, value)
    return round(total)


def _kept(group: CacheGroup, plan: ServePlan, key: float, value: float) -> float:
    """Return the bytes of one token in one layer on each card."""
    whole = group.key_elements * key + group.value_elements * value
    cards = max(1, plan.gpus)
    if plan.runtime == Runtime.LLAMA_CPP:
        # llama.cpp assigns whole layers to each card, so each card keeps its share of everything.
        return whole / cards
    if group.kind == "latent":
        return whole
    # A head is never split: with more cards than heads some cards keep the same head.
    return whole / group.heads * max(1, -(-group.heads // cards))


def _cells(group: CacheGroup, plan: ServePlan, context: int) -> int:
    """Return the number of tokens that one layer holds."""
    if plan.runtime == Runtime.LLAMA_CPP:
        base = _up(context, _CELLS)
        if group.window is None or plan.whole_windows:
            return base
        return _up(min(base, group.window * plan.sequences + plan.batch), _CELLS)
    if group.window is None:
        return _up(context, plan.block)
    return _up(min(group.window - 1 + plan.batch, context), plan.block) + plan.block


def _states(group: CacheGroup, plan: ServePlan) -> float:
    size = _STATE_BYTES.get(Runtime(plan.runtime), 4)
    return group.layers * group.state_elements * size * max(1, plan.sequences) / max(1, plan.gpus)


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
