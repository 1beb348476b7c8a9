"""Memory that a launch needs, by its budgets and by its estimate."""

from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent.admission import GIB, MemoryNeed, NodeCapacity, admit
from agent.errors import AgentError
from agent.running.capacity import card_fraction, need_for
from agent.telemetry.nvml import Card, Cards
from agent.wire.capability import MemoryModel, Runtime
from agent.wire.instances import MemoryEstimate
from tests.agent.engines.conftest import spec


@pytest.mark.unit
@pytest.mark.parametrize(
    ("model", "host", "gpu", "args", "gpus", "needs"),
    [
        # a discrete node: a share for each card, and a host part of its own
        (MemoryModel.DISCRETE, None, 40 * GIB, (), 2, (10 * GIB, 20 * GIB)),
        (MemoryModel.DISCRETE, None, 40 * GIB, ("--swap-space", "1"), 2, (4 * GIB, 20 * GIB)),
        (MemoryModel.DISCRETE, 7 * GIB, 40 * GIB, ("--swap-space", "1"), 2, (7 * GIB, 20 * GIB)),
        # shared memory: one budget, from the host
        (MemoryModel.UNIFIED, None, 40 * GIB, (), 0, (42 * GIB, None)),
        (MemoryModel.UNIFIED, 7 * GIB, 40 * GIB, (), 0, (47 * GIB, None)),
        (MemoryModel.UNIFIED, 7 * GIB, None, (), 0, (7 * GIB, None)),
    ],
)
def test_what_a_launch_needs_is_counted_by_the_memory_model(model, host, gpu, args, gpus, needs) -> None:
    launch = spec(
        runtime=Runtime.VLLM,
        args=args,
        gpu_uuids=tuple(f"GPU-{number}" for number in range(gpus)),
        host_memory_budget_bytes=host,
        gpu_memory_budget_bytes=gpu,
    )
    need = need_for(launch, None, model)
    assert (need.host_bytes, need.share()) == needs


@pytest.mark.unit
@pytest.mark.parametrize(
    ("model", "sizes", "budget", "gpus", "part"),
    [
        (MemoryModel.DISCRETE, (24, 24), 20, ("GPU-0", "GPU-1"), 0.416),
        (MemoryModel.DISCRETE, (24, 48), 20, ("GPU-0", "GPU-1"), 0.208),
        (MemoryModel.DISCRETE, (24, 24), 100, ("GPU-0",), 1.0),
        (MemoryModel.DISCRETE, (24, None), 20, ("GPU-0", "GPU-1"), None),
        (MemoryModel.DISCRETE, (24, 24), None, ("GPU-0",), None),
        (MemoryModel.UNIFIED, (None,), 30, (), 0.25),
        (MemoryModel.UNIFIED, (), 30, (), None),
    ],
)
def test_a_budget_is_a_part_of_each_card_and_never_more_than_was_admitted(model, sizes, budget, gpus, part) -> None:
    found = tuple(
        Card(uuid=f"GPU-{at}", index=at, total_bytes=None if size is None else size * GIB)
        for at, size in enumerate(sizes)
    )
    context = SimpleNamespace(memory_model=model, cards=Cards(found))
    launch = spec(gpu_uuids=gpus, gpu_memory_budget_bytes=None if budget is None else budget * GIB)
    assert card_fraction(launch, context, 120 * GIB) == part


def estimated(**parts: float) -> MemoryNeed:
    return MemoryNeed(None, None, ("a", "b"), estimate=MemoryEstimate(**parts))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("need", "refused"),
    [
        (estimated(gpu_bytes=9 * GIB), None),
        (estimated(gpu_bytes=10 * GIB), ("b", 10 * GIB)),
        # an engine takes its part of a card whatever the model needs
        (estimated(gpu_bytes=GIB, fraction=0.5), ("b", 12 * GIB)),
        (estimated(fraction=0.9), ("a", int(24 * GIB * 0.9))),
        (estimated(gpu_bytes=13 * GIB, fraction=0.5), ("a", 13 * GIB)),
        # an engine that shortens its context needs the least alone
        (estimated(gpu_bytes=20 * GIB, gpu_least_bytes=9 * GIB), None),
        (estimated(gpu_bytes=20 * GIB, gpu_least_bytes=10 * GIB), ("b", 20 * GIB)),
        # a budget goes before the estimate
        (MemoryNeed(None, 18 * GIB, ("a", "b"), estimate=MemoryEstimate(gpu_bytes=20 * GIB)), None),
        (estimated(), None),
    ],
)  # fmt: skip
def test_an_estimate_is_checked_on_each_card_without_a_budget(need: MemoryNeed, refused) -> None:
    room = NodeCapacity(None, None, {"a": 12 * GIB, "b": 9 * GIB}, {}, "", {"a": 24 * GIB, "b": 24 * GIB})
    if refused is None:
        admit(need, room, [], 0)
        return
    with pytest.raises(AgentError) as error:
        admit(need, room, [], 0)
    assert (error.value.fields["gpuUuid"], error.value.fields["neededBytes"]) == refused
    host, first, second = error.value.fields["parts"]
    assert (host["gpuUuid"], host["neededBytes"], host["freeBytes"]) == (None, None, None)
    assert [(part["gpuUuid"], part["freeBytes"]) for part in (first, second)] == [("a", 12 * GIB), ("b", 9 * GIB)]


@pytest.mark.unit
def test_the_estimate_of_a_start_under_way_is_not_free_for_the_next_one() -> None:
    room = NodeCapacity(64 * GIB, 64 * GIB, {"a": 24 * GIB, "b": 24 * GIB}, {}, "", {"a": 24 * GIB, "b": 24 * GIB})
    first = MemoryNeed(6 * GIB, None, ("a",), estimate=MemoryEstimate(gpu_bytes=GIB, fraction=0.5))
    admit(first, room, [first], 0)
    with pytest.raises(AgentError) as error:
        admit(first, room, [first, first], 0)
    assert error.value.fields["freeBytes"] == 0
    admit(MemoryNeed(6 * GIB, None, ("b",), estimate=MemoryEstimate(gpu_bytes=20 * GIB)), room, [first, first], 0)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("model", "budgets", "gpus", "host", "card"),
    [
        (MemoryModel.DISCRETE, {}, 2, 5 * GIB, 12 * GIB),
        (MemoryModel.DISCRETE, {"gpu_memory_budget_bytes": 8 * GIB}, 2, 5 * GIB, 12 * GIB),
        (MemoryModel.DISCRETE, {"host_memory_budget_bytes": GIB}, 2, GIB, 12 * GIB),
        (MemoryModel.UNIFIED, {}, 0, 32 * GIB, None),
        (MemoryModel.UNIFIED, {"gpu_memory_budget_bytes": 40 * GIB}, 0, 42 * GIB, None),
    ],
)
def test_budgets_go_before_the_estimate_and_the_share_of_the_engine_counts_always(
    model, budgets, gpus, host, card
) -> None:
    estimate = MemoryEstimate(host_bytes=5 * GIB, gpu_bytes=3 * GIB, fraction=0.5)
    launch = spec(runtime=Runtime.VLLM, gpu_uuids=tuple("ab"[:gpus]), estimate=estimate, **budgets)
    need = need_for(launch, None, model)
    assert need.on_host(64 * GIB) == host
    assert need.on_gpu(24 * GIB) == (card if gpus else 12 * GIB)


@pytest.mark.unit
@given(
    st.integers(1, 2**36),
    st.integers(1, 2**36),
    st.sampled_from([None, 0.5, 0.9]),
    st.integers(0, 2**36),
    st.integers(0, 2**36),
    st.integers(0, 2**34),
    st.integers(0, 2**34),
    st.booleans(),
)
def test_the_node_refuses_what_the_pages_say_does_not_fit_and_nothing_else(
    need, least, claim, total, used, reserve, promised, shortens
) -> None:
    from models_app.fit.estimate import Estimate
    from models_app.fit.verdict import Capacity, FitState, judge

    # A model that is larger than the share that its engine takes is refused by the engine, whatever is free.
    assume(claim is None or need <= int(total * claim))
    # No engine both takes a share of each card and shortens its context.
    free, least = max(0, total - used), min(least, need) if shortens and claim is None else None
    known = Estimate(1, need, 0, (), claim, None, None, None, (), least_bytes=least)
    card = Capacity("GPU 0", "a", total=total, free=free, reserve=reserve, promised=promised)
    verdict = judge(known, [card], Capacity("Host memory", total=2**40, free=2**40)).lines[0]
    sent = MemoryEstimate(host_bytes=0, gpu_bytes=need, gpu_least_bytes=least, fraction=claim)
    room = NodeCapacity(2**40, 2**40, {"a": free}, {}, "", {"a": total})
    other = MemoryNeed(0, promised, ("a",))
    try:
        admit(MemoryNeed(0, None, ("a",), gpu_reserve={"a": reserve}, estimate=sent), room, [other], 0)
        refused = False
    except AgentError:
        refused = True
    assert refused is (verdict.state is FitState.DOES_NOT_FIT)
