"""An inline task goes on without the loop's turns, ends as a task would, and never loses a word or a cancellation."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.common.http1.inline_task import InlineTask, InlineTasks, Waiter, as_task, current

pytestmark = pytest.mark.unit


def begun(coroutine):
    """Run `coroutine` as a task; return it and the list of ended tasks."""
    ended = []
    work = InlineTask(coroutine, ended.append)
    work.begin()
    return work, ended


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_work_begins_at_once_and_goes_on_inside_the_word():
    seen, waiter = [], Waiter()

    async def job():
        seen.append("begun")
        await waiter
        seen.append("woken")

    work, ended = begun(job())
    assert seen == ["begun"]
    assert (waiter.waited_for, work.done(), ended) == (True, False, [])
    waiter.wake()
    assert seen == ["begun", "woken"]
    assert (waiter.waited_for, work.done(), ended) == (False, True, [work])
    waiter.wake()  # nobody is there: nothing happens
    assert ended == [work]


async def test_a_word_that_comes_before_the_wait_is_not_kept():
    waiter = Waiter()
    waiter.wake()

    async def job():
        await waiter

    work, _ = begun(job())
    assert not work.done()
    waiter.wake()
    assert work.done()


async def test_a_waiter_works_in_a_task_too():
    waiter = Waiter()

    async def job():
        await waiter
        return 7

    task = asyncio.create_task(job())
    await asyncio.sleep(0)
    waiter.wake()
    assert await task == 7


async def test_futures_tasks_and_turns_of_the_loop_may_be_awaited():
    future = asyncio.get_running_loop().create_future()
    seen = []

    async def job():
        seen.append(await future)
        await asyncio.sleep(0)
        async with asyncio.Lock():
            seen.append(await as_task(asyncio.to_thread(lambda: "slept")))

    ended = asyncio.Event()
    InlineTask(job(), lambda _: ended.set()).begin()
    future.set_result("came")
    await asyncio.wait_for(ended.wait(), 5)
    assert seen == ["came", "slept"]


@pytest.mark.parametrize("where", ["waiter", "future", "task"])
async def test_a_cancelled_one_is_told_where_it_waits_and_what_it_awaits_is_cancelled(where):
    waiter, future, told = Waiter(), asyncio.get_running_loop().create_future(), []
    inner = asyncio.create_task(asyncio.Event().wait())

    async def job():
        try:
            await {"waiter": waiter, "future": future, "task": inner}[where]
        except asyncio.CancelledError:
            told.append(where)
            raise

    work, ended = begun(job())
    assert work.cancel()
    assert told == []  # not inside of who cancels
    await turns()
    assert (told, ended) == ([where], [work])
    assert not work.cancel()
    assert not waiter.waited_for
    assert future.cancelled() is (where == "future")
    assert inner.cancelled() is (where == "task")
    inner.cancel()


async def test_a_cancellation_that_meets_the_result_of_what_is_awaited_is_not_lost():
    future = asyncio.get_running_loop().create_future()
    waiter = Waiter()

    async def job():
        await future
        await waiter

    work, _ = begun(job())
    work.cancel()
    future.set_result(None)  # its callback and the cancellation come in the same turn
    await turns()
    assert work.done()


async def test_one_who_says_a_last_word_after_a_cancellation_may_wait_for_it():
    waiter, seen = Waiter(), []

    async def job():
        try:
            await waiter
        except asyncio.CancelledError:
            await waiter
            seen.append("said")

    work, ended = begun(job())
    work.cancel()
    await asyncio.sleep(0)
    waiter.wake()
    assert (seen, ended) == (["said"], [work])


async def test_an_error_ends_the_work_and_is_logged(caplog):
    async def job():
        raise ValueError("broken")

    work, ended = begun(job())
    assert ended == [work]
    assert "ValueError: broken" in caplog.text


async def test_each_knows_itself_also_when_one_wakes_another():
    waiter, seen = Waiter(), {}

    async def sleeper():
        await waiter
        seen["sleeper"] = current()

    async def waker():
        waiter.wake()
        seen["waker"] = current()

    sleeping, _ = begun(sleeper())
    waking, _ = begun(waker())
    assert seen == {"sleeper": sleeping, "waker": waking}
    with pytest.raises(RuntimeError):
        current()


async def test_all_of_them_are_waited_for_within_a_limit_or_cancelled():
    works, waiter = InlineTasks(), Waiter()

    async def job():
        await waiter

    work = InlineTask(job(), works.discard)
    works.add(work)
    work.begin()
    await works.all_over(0.01)
    assert not work.done()
    asyncio.get_running_loop().call_later(0.01, waiter.wake)
    await works.all_over(5)
    assert work.done()
    await works.all_over(5)

    other = InlineTask(job(), works.discard)
    works.add(other)
    other.begin()
    works.cancel()
    await works.all_over(5)
    assert other.done()


@given(st.lists(st.sampled_from("wfc "), max_size=12))
@settings(max_examples=200, deadline=None)
def test_whatever_the_order_of_words_and_cancellations_it_ends_once(events):
    async def all_of_it():
        waiter, futures, ended = Waiter(), [], []

        async def job():
            for turn in range(3):
                if turn % 2:
                    futures.append(asyncio.get_running_loop().create_future())
                    await futures[-1]
                else:
                    await waiter

        work = InlineTask(job(), ended.append)
        work.begin()
        for event in [*events, "c", "w", "f", " ", "w", "f", " ", " ", "w", " "]:
            if event == "w":
                waiter.wake()
            elif event == "f" and futures and not futures[-1].done():
                futures[-1].set_result(None)
            elif event == "c":
                work.cancel()
            else:
                await asyncio.sleep(0)
        assert ended == [work]

    asyncio.run(all_of_it())
