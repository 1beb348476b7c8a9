"""Connections to a node: few handshakes at a time, none if one is released, no waiting for a dead node."""

import asyncio
import contextlib

import pytest

from agent.common.http1.client import ClientConnection, ConnectFailed
from models_app.gateway.pool import DIALS_AT_ONCE, NodePool
from nodes.link.transport import Endpoint
from tests.gateway.upstream import FakeTransport

pytestmark = pytest.mark.unit


class Dialled(NodePool):
    """Its dials end when the test says so."""

    def __init__(self):
        super().__init__(Endpoint("n", "127.0.0.1", 1, "n", None, loopback_allowed=True), warm=0)
        self.dials = []
        self.most = 0

    async def _dial(self):
        dial = self.loop.create_future()
        self.dials.append(dial)
        self.most = max(self.most, sum(not one.done() for one in self.dials))
        return await dial

    def end_dial(self, error=None):
        dial = next(one for one in self.dials if not one.done())
        if error is not None:
            dial.set_exception(error)
            return None
        connection = ClientConnection(self.loop)
        connection.connection_made(FakeTransport())
        dial.set_result(connection)
        return connection


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_two_hundred_at_once_shake_hands_few_at_a_time_and_all_get_a_connection():
    pool = Dialled()
    asking = [asyncio.create_task(pool.obtain()) for _ in range(200)]
    await turns()
    while not all(task.done() for task in asking):
        pool.end_dial()
        await turns()
    assert pool.most == DIALS_AT_ONCE
    assert len({await task for task in asking}) == 200


async def test_what_becomes_free_goes_to_who_waits_longest():
    pool = Dialled()
    first, second = asyncio.create_task(pool.obtain()), asyncio.create_task(pool.obtain())
    await turns()
    used = pool.end_dial()
    await turns()
    assert first.result() is used
    used._state, used._keep_alive = "done", True
    pool.release(used)
    await turns()
    assert second.result() is used
    fresh = pool.end_dial()  # nobody waits any more: it is kept
    await turns()
    assert pool.take_idle() is fresh


async def test_a_node_that_cannot_be_reached_is_told_to_all_who_wait():
    pool = Dialled()
    asking = [asyncio.create_task(pool.obtain()) for _ in range(50)]
    await turns()
    pool.end_dial(OSError("no route"))
    await turns()
    assert all(isinstance(task.exception(), ConnectFailed) for task in asking)


async def test_one_handshake_that_fails_among_others_fails_one_request():
    pool = Dialled()
    asking = [asyncio.create_task(pool.obtain()) for _ in range(10)]
    await turns()
    pool.end_dial()
    await turns()
    pool.end_dial(OSError("reset"))
    await turns()
    assert sum(task.done() for task in asking) == 2
    for _ in range(8):
        pool.end_dial()
        await turns()
    assert sum(task.exception() is not None for task in asking) == 1


async def test_who_leaves_the_queue_takes_no_connection_with_it():
    pool = Dialled()
    leaving, staying = asyncio.create_task(pool.obtain()), asyncio.create_task(pool.obtain())
    await turns()
    leaving.cancel()
    await turns()
    connection = pool.end_dial()
    await turns()
    assert staying.result() is connection
    late = asyncio.create_task(pool.obtain())
    await turns()
    handed = pool.end_dial()
    await asyncio.sleep(0)
    late.cancel()  # just when it was handed one, or just before
    with contextlib.suppress(asyncio.CancelledError):
        await late
    await turns()
    assert pool.take_idle() is handed


async def test_a_pool_that_is_retired_lets_no_one_wait():
    pool = Dialled()
    asking = [asyncio.create_task(pool.obtain()) for _ in range(20)]
    await turns()
    pool.retire(cut=True)
    await turns()
    assert all(isinstance(task.exception(), ConnectFailed) for task in asking)
