"""Calls to several nodes at the same moment."""

import asyncio

import pytest

from nodes.link import pools

pytestmark = pytest.mark.unit


def test_results_are_in_the_order_of_the_calls_and_so_many_run_at_once():
    running, most = set(), []

    async def call(number):
        running.add(number)
        most.append(len(running))
        await asyncio.sleep(0)
        running.discard(number)
        return number

    assert pools.together([call(number) for number in range(7)], at_once=3) == list(range(7))
    assert max(most) == 3
    assert pools.together([]) == []


def test_one_that_fails_is_raised_when_all_have_ended():
    ended = []

    async def call(number):
        if number == 0:
            raise ValueError("the first one")
        await asyncio.sleep(0)
        ended.append(number)

    with pytest.raises(ValueError, match="the first one"):
        pools.together([call(number) for number in range(5)], at_once=2)
    assert ended == [1, 2, 3, 4]


def test_no_call_waits_for_another_one_of_its_group():
    async def meet(barrier):
        await asyncio.wait([asyncio.ensure_future(barrier.wait())])
        return True

    barrier = asyncio.Barrier(4)
    assert pools.together([meet(barrier) for _ in range(4)]) == [True] * 4
