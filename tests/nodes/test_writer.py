"""Work that writes together."""

import asyncio

import pytest
from django.db import OperationalError, connection, transaction

from mirbad.kernel import clock
from mirbad.kernel.errors import Conflict
from nodes.link import pools, writer
from nodes.models import Lease

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("live_master")]


def keep(name: str) -> str:
    Lease.objects.create(name=name, owner="x", expires_at=clock.now())
    return name


def refuse(name: str) -> None:
    keep(name)
    raise Conflict("no")


async def together(*works):
    return await asyncio.gather(*(pools.writer().run(work) for work in works), return_exceptions=True)


def names():
    return set(Lease.objects.values_list("name", flat=True))


async def test_each_gets_its_own_result_and_one_that_raises_undoes_itself_alone():
    found = await together(lambda: keep("a"), lambda: refuse("b"), lambda: keep("c"))
    assert (found[0], found[2]) == ("a", "c")
    assert isinstance(found[1], Conflict)
    assert await asyncio.to_thread(read_names) == {"a", "c"}


def read_names():
    try:
        return names()
    finally:
        connection.close()


def test_what_waits_shares_one_transaction():
    commits = []
    works = [lambda n=n: (keep(f"n-{n}"), transaction.on_commit(lambda: commits.append(names()))) for n in range(5)]
    found = writer.together(works)
    assert not any(done.exception() for done in found)
    assert commits[0] == {f"n-{n}" for n in range(5)}, "the first is told of when the last one is there, too"


def test_a_broken_transaction_is_tried_again_one_by_one():
    tries = []

    def unlucky():
        tries.append(1)
        if len(tries) == 1:
            raise OperationalError("deadlock detected")
        return keep("late")

    found = writer.together([lambda: keep("early"), unlucky])
    assert [done.result() for done in found] == ["early", "late"]
    assert names() == {"early", "late"}


async def test_a_caller_that_left_costs_nobody_else_anything():
    gone = asyncio.create_task(pools.writer().run(lambda: keep("gone")))
    await asyncio.sleep(0)
    gone.cancel()
    assert await together(lambda: keep("stays")) == ["stays"]
    await asyncio.gather(gone, return_exceptions=True)
