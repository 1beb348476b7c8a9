"""Connections of the gateway and of the link while a node's key is rotated, and when the node is revoked."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from jobs import identity, worker
from jobs.kinds import rotate_cert
from jobs.models import Operation
from models_app.gateway.loader import Database, Loader
from models_app.gateway.pool import Pools
from nodes.errors import NodeOffline, NodeRevoked
from nodes.link import client, streams
from nodes.models import NodePin
from nodes.pki import authority
from tests.jobs.real import RealAgent
from tests.models_app.things import PERSON

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def agent(transactional_db, tmp_path, monkeypatch) -> Iterator[RealAgent]:
    monkeypatch.setattr(rotate_cert, "SETTLE_SECONDS", 1.0)
    authority.ensure()
    made = RealAgent(tmp_path).begin()
    made.connect()
    yield made
    made.clear()


async def _run(operation: Operation) -> str:
    def until_over() -> str:
        for _ in range(400):
            worker.run(operation.pk)
            if (row := Operation.objects.get(pk=operation.pk)).finished_at is not None:
                return row.outcome
            time.sleep(0.05)
        raise AssertionError("not over")

    return await client.in_thread(until_over)


async def test_a_stream_of_the_gateway_outlives_a_rotation_and_ends_within_a_second_of_a_revoke(agent) -> None:
    pools = Pools(warm=1)
    loader = Loader(pools.sync, Database())
    await loader.start()
    try:
        peer = loader.table.endpoints["local"]
        held = await pools.of(peer).connect()  # a stream that is under way
        assert await _run(await client.in_thread(lambda: identity.rotate("local", PERSON))) == "succeeded"
        await asyncio.sleep(1.2)
        fresh = loader.table.endpoints["local"]
        assert fresh.pins != peer.pins
        assert fresh.pins == {await client.in_thread(lambda: NodePin.objects.get().spki_sha256)}
        assert held.alive
        again = await pools.of(fresh).connect()
        assert again.alive

        operation = await client.in_thread(lambda: identity.revoke("local", "local", PERSON))
        assert await _run(operation) == "succeeded"
        began = time.monotonic()
        while held.alive or again.alive:
            assert time.monotonic() - began < 1.0, (held.alive, again.alive)
            await asyncio.sleep(0.02)
        assert "local" not in loader.table.endpoints
    finally:
        await loader.stop()
        pools.close()


async def test_the_event_line_goes_on_after_a_rotation_and_ends_within_a_second_of_a_revoke(agent) -> None:
    async def follow() -> None:
        async for _ in client.events("local", 0):
            pass

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.5)
    assert not following.done()
    operation = await client.in_thread(lambda: identity.revoke("local", "local", PERSON))
    assert await _run(operation) == "succeeded"
    began = time.monotonic()
    with pytest.raises((NodeRevoked, NodeOffline)):
        await asyncio.wait_for(following, 5)
    assert time.monotonic() - began < 1.0 + streams.CHECK_SECONDS
    await client.close()
