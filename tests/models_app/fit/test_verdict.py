"""The comparison of a need with the free memory, part by part."""

from dataclasses import replace

import pytest

from agent.common import budget
from models_app.fit import ModelShape, estimate, serve_plan, speed
from models_app.fit.shape import CacheGroup
from models_app.fit.verdict import Capacity, FitState, judge

pytestmark = pytest.mark.unit
GIB = 2**30
SHAPE = ModelShape(
    "safetensors", weights_bytes=14 * GIB, groups=(CacheGroup("full", 32, 1024, 1024, 8),), layers=32, hidden=4096,
    intermediate=14336, vocabulary=32000, attention_heads=32, context=8192,
)  # fmt: skip
HOST = Capacity("Host memory", "", 64 * GIB, 40 * GIB, 4 * GIB)


def card(free: float | None, *, total: float | None = 24, reserve: float = 0, promised: float = 0) -> Capacity:
    sizes = [None if size is None else int(size * GIB) for size in (total, free)]
    return Capacity("GPU 0", "GPU-a", *sizes, int(reserve * GIB), int(promised * GIB))


def plan(*args: str, gpus: int = 1, **more):
    return serve_plan("vllm", ("--gpu-memory-utilization", "0.8", *args), **more).on(gpus)


TABLE = [
    ("with room to spare", card(23), FitState.FITS),
    ("when the engine takes more than is free", card(18), FitState.DOES_NOT_FIT),
    ("when a reserve takes the room", card(23, reserve=6), FitState.DOES_NOT_FIT),
    ("when another start was promised it", card(23, promised=10), FitState.DOES_NOT_FIT),
    ("when nothing is free", card(0), FitState.DOES_NOT_FIT),
    ("when the free memory is not reported", card(None), FitState.UNKNOWN),
    ("when the size of the card is not reported", card(23, total=None), FitState.FITS),
    ("when less is free than the size of the card says", card(30), FitState.FITS),
]


@pytest.mark.parametrize(("room", "state"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_model_on_a_card(room, state) -> None:
    found = judge(estimate(SHAPE, plan()), [room], HOST)
    assert found.state is state
    assert bool(found.reasons) == (state is not FitState.FITS)


def test_what_can_be_used_never_exceeds_the_capacity_behind_the_reserve() -> None:
    assert card(30, reserve=4).usable == 20 * GIB
    assert card(1, reserve=4).usable == 0
    assert card(None).usable is None


def test_a_model_larger_than_the_share_of_the_engine_says_what_to_change() -> None:
    found = judge(estimate(SHAPE, serve_plan("vllm", ("--gpu-memory-utilization", "0.3")).on(1)), [card(23)], HOST)
    assert found.state is FitState.DOES_NOT_FIT
    assert "Raise --gpu-memory-utilization" in found.reasons[0]


def test_an_engine_that_takes_more_than_is_free_is_told_the_share_that_would_go() -> None:
    found = judge(estimate(SHAPE, serve_plan("vllm").on(1)), [card(20)], HOST)
    assert found.state is FitState.DOES_NOT_FIT
    assert "set --gpu-memory-utilization 0.83" in found.reasons[0]
    again = judge(estimate(SHAPE, serve_plan("vllm", ("--gpu-memory-utilization", "0.83")).on(1)), [card(20)], HOST)
    assert again.state is FitState.FITS


def test_a_budget_is_what_counts_and_makes_an_unknown_shape_known() -> None:
    unknown = ModelShape(problems=(("weights", "Nobody knows."), ("cache", "Nobody knows."), ("context", "No.")))
    assert judge(estimate(unknown, plan()), [card(23)], HOST).state is FitState.UNKNOWN
    need = estimate(unknown, plan(gpu_budget_bytes=10 * GIB, gpus=2))
    assert (need.gpu_bytes, need.host_bytes) == (5 * GIB, 10 * GIB)
    assert judge(need, [card(23), card(22)], HOST).state is FitState.FITS


def test_with_a_budget_the_engine_takes_that_share_and_no_other() -> None:
    need = estimate(SHAPE, serve_plan("vllm", gpu_budget_bytes=18 * GIB).on(1))
    assert (need.gpu_bytes, need.claim, need.problems) == (18 * GIB, None, ())
    assert judge(need, [card(19)], HOST).state is FitState.TIGHT
    stated = estimate(SHAPE, serve_plan("vllm", ("--gpu-memory-utilization", "0.9"), gpu_budget_bytes=18 * GIB).on(1))
    assert judge(stated, [card(19)], HOST).state is FitState.DOES_NOT_FIT


def test_a_budget_that_the_model_does_not_go_into_is_too_small_whatever_is_free() -> None:
    found = judge(estimate(SHAPE, serve_plan("vllm", gpu_budget_bytes=10 * GIB).on(1)), [card(23)], HOST)
    assert found.state is FitState.DOES_NOT_FIT
    assert found.reasons[0].startswith("The model needs about 17.")
    assert "its budget allows 10 GiB." in found.reasons[0]
    assert estimate(SHAPE, serve_plan("vllm", gpu_budget_bytes=20 * GIB).on(2)).problems == ()


def test_llama_cpp_shortens_a_context_that_nobody_set_on_cards_alone() -> None:
    long = replace(SHAPE, context=131072)
    found = judge(estimate(long, serve_plan("llama.cpp").on(1)), [card(20)], HOST)
    assert found.state is FitState.TIGHT
    assert "20 GiB free; the engine shortens it." in found.reasons[0]
    assert found.lines[0].need < 16 * GIB
    for args, more in ((("--ctx-size", "131072"), {}), (("--fit", "off"), {}), ((), {"context_length": 131072})):
        need = estimate(long, serve_plan("llama.cpp", args, **more).on(1))
        assert judge(need, [card(20)], HOST).state is FitState.DOES_NOT_FIT
    assert judge(estimate(long, serve_plan("llama.cpp").on(1)), [card(12)], HOST).state is FitState.DOES_NOT_FIT
    host = Capacity("Host memory", "", 64 * GIB, 24 * GIB, 4 * GIB)
    assert judge(estimate(long, serve_plan("llama.cpp")), (), host).state is FitState.DOES_NOT_FIT


def test_an_unknown_need_is_unknown_with_its_reason_and_never_zero() -> None:
    need = estimate(ModelShape(weights_bytes=GIB, problems=(("cache", "It is a riddle."),)), plan())
    assert need.gpu_bytes is None
    found = judge(need, [card(23)], HOST)
    assert found.state is FitState.UNKNOWN
    assert "Cache: It is a riddle." in found.reasons


@pytest.mark.parametrize(
    ("gpus", "args", "gib"), [(1, (), 6), (4, (), 18), (2, ("--swap-space", "8"), 18), (2, ("--swap_space=0",), 2)]
)
def test_the_host_part_is_the_one_that_admission_counts(gpus, args, gib) -> None:
    need = estimate(SHAPE, serve_plan("vllm", args).on(gpus))
    assert need.host_bytes == gib * GIB == budget.host_part_of("vllm", args, gpus, SHAPE.weights_bytes)


def test_the_host_may_be_what_is_short() -> None:
    found = judge(estimate(SHAPE, plan()), [card(23)], Capacity("Host memory", "", 16 * GIB, 8 * GIB, 4 * GIB))
    assert found.state is FitState.DOES_NOT_FIT
    assert found.reasons == ("Host memory: needs 6 GiB, 4 GiB free.",)


def test_heads_that_cannot_be_split_are_refused_whatever_is_free() -> None:
    cards = [card(23), card(23), card(23)]
    found = judge(estimate(SHAPE, plan(gpus=3)), cards, HOST)
    assert found.state is FitState.DOES_NOT_FIT
    assert found.reasons[0] == "vLLM splits attention heads evenly: 32 cannot be split over 3 GPUs."


def test_weights_and_cache_are_split_and_the_rest_is_not() -> None:
    one, two = estimate(SHAPE, plan()), estimate(SHAPE, plan(gpus=2))
    parts = [{part.name: part.bytes for part in found.parts} for found in (one, two)]
    assert parts[1]["weights"] == parts[0]["weights"] // 2
    assert parts[1]["cache"] == parts[0]["cache"] // 2
    assert parts[1]["engine"] > parts[0]["engine"]


def test_memory_that_is_shared_holds_everything() -> None:
    need = estimate(SHAPE, serve_plan("vllm").on(0, shares_memory=True))
    assert need.host_bytes == need.shape_bytes > 15 * GIB
    assert judge(need, (), Capacity("Host memory", "", 128 * GIB, 120 * GIB, 4 * GIB)).state is FitState.FITS
    # The engine takes nine tenths of it, whatever the model needs.
    assert judge(need, (), Capacity("Host memory", "", 128 * GIB, 100 * GIB, 4 * GIB)).state is FitState.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("rate", "size_gb", "measured"),
    [(24.9e9, 1.12e9, 14.5), (41.9e9, 8.99e9, 3.3)],
    ids=["1.5 B at Q4_K_M", "14 B at Q4_K_M"],
)
def test_tokens_on_a_processor_come_as_fast_as_was_measured(rate, size_gb, measured) -> None:
    assert speed.tokens_per_second(int(size_gb), int(rate)) == pytest.approx(measured, rel=0.08)


def test_a_reply_that_takes_minutes_is_slow_and_an_unknown_one_is_not() -> None:
    assert speed.is_slow(3.0)
    assert not speed.is_slow(20.0)
    assert not speed.is_slow(speed.tokens_per_second(None, 10**10))
    assert speed.tokens_per_second(GIB, None) is None
