"""Memory of engines and reserves, by their literal values."""

import pytest

from agent.common import budget

pytestmark = pytest.mark.unit

GIB, MIB = 2**30, 2**20


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], None),
        (["--swap-space", "8"], 8.0),
        (["--swap-space=0.5"], 0.5),
        (["--swap_space", "3"], 3.0),
        (["--swap", "2"], 2.0),
        (["--swa", "2"], None),
        (["--swap-space"], None),
        (["--max-num-seqs", "64", "--swap-space"], None),
        (["--swap-space", "8", "--swap-space", "1"], 1.0),
        (["--swap-space", "nan"], None),
        (["--swap-space", "inf"], None),
        (["--swap-space", "-1"], None),
        (["--swap-space", "many"], None),
    ],
)
def test_the_last_swap_space_counts(args, expected):
    assert budget.swap_space_gib(args) == expected


@pytest.mark.parametrize(
    ("runtime", "args", "gpus", "weights", "expected"),
    [
        ("sim", [], 0, None, 96 * MIB),
        ("sim", [], 2, GIB, 96 * MIB),
        ("vllm", [], 1, None, 6 * GIB),
        ("vllm", [], 3, None, 14 * GIB),
        ("vllm", ["--swap-space", "1"], 2, None, 4 * GIB),
        ("vllm", [], 0, None, None),
        ("vllm", [], 0, 10 * GIB, 14 * GIB),
        ("llama.cpp", [], 0, 10 * GIB, 11 * GIB + 192 * MIB),
        ("llama.cpp", [], 2, 10 * GIB, 11 * GIB + 192 * MIB),
        ("llama.cpp", [], 0, None, None),
    ],
)
def test_the_host_part_of_an_engine(runtime, args, gpus, weights, expected):
    assert budget.host_part_of(runtime, args, gpus, weights) == expected


@pytest.mark.parametrize(
    ("total", "setting", "owner", "expected"),
    [
        (64 * GIB, None, None, 4 * GIB),
        (8 * GIB, None, None, 2 * GIB),
        (None, None, None, 4 * GIB),
        (64 * GIB, 0, None, 0),
        (64 * GIB, 7, None, 7),
        (64 * GIB, None, 5, 5),
        (64 * GIB, None, 0, 0),
        (64 * GIB, 7, 5, 7),
        (64 * GIB, 3, 5, 5),
        (4 * GIB, None, 4 * GIB, GIB),
        (4 * GIB, 9, 5 * GIB, 9),
        (None, None, 9, 9),
    ],
)
def test_the_larger_reserve_counts_unless_it_leaves_nothing(total, setting, owner, expected):
    assert budget.host_reserve(total, setting, owner) == expected


@pytest.mark.parametrize(
    ("owner", "total", "expected"),
    [
        (None, GIB, False),
        (None, None, False),
        (GIB, None, False),
        (GIB - 1, GIB, False),
        (GIB, GIB, True),
        (9, 8, True),
    ],
)
def test_a_reserve_of_all_is_known(owner, total, expected):
    assert budget.reserves_all(owner, total) is expected


@pytest.mark.parametrize(
    ("total", "gpus", "expected"), [(10, 1, 10), (10, 3, 4), (9, 3, 3), (None, 2, None), (10, 0, None), (0, 2, 0)]
)
def test_a_budget_is_split_and_rounded_up(total, gpus, expected):
    assert budget.share(total, gpus) == expected


@pytest.mark.parametrize(
    ("need", "fraction", "total", "expected"),
    [
        (5, None, None, 5), (None, 0.5, 10, 5), (7, 0.5, 10, 7), (3, 0.5, 10, 5), (None, None, 10, None),
        (None, 0.5, None, None), (0, None, None, 0),
    ],
)  # fmt: skip
def test_what_an_engine_takes_is_the_larger_of_need_and_claim(need, fraction, total, expected):
    assert budget.required(need, fraction, total) == expected


@pytest.mark.parametrize(
    ("host", "gpu", "expected"), [(3, None, 3), (None, None, None), (3, 5, 8), (None, 5, 5 + 2 * GIB), (0, 5, 5)]
)
def test_on_shared_memory_both_parts_count(host, gpu, expected):
    assert budget.on_shared_memory(host, gpu) == expected


@pytest.mark.parametrize(
    ("free", "reserve", "taken", "expected"), [(10, 3, 2, 5), (10, None, 0, 10), (None, 3, 2, None), (1, 3, 0, -2)]
)
def test_what_is_usable_is_less_reserve_and_promises(free, reserve, taken, expected):
    assert budget.usable(free, reserve, taken) == expected
