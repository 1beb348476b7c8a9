"""Connections of the gateway and of the link while a node's key is rotated, and when the node is revoked."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from jobs import worker
from jobs.kinds import rotate_cert
from jobs.models import Operation
from jobs.requests import identity
from models_app.gateway.loader import GatewayDatabase, TableLoader
from models_app.gateway.pool import UpstreamPools
from nodes.errors import NodeOffline, NodeRevoked
from nodes.link import client, streams
from nodes.models import NodePin
from nodes.pki import authority
from tests.jobs.real import RealAgent
from tests.models_app.things import PERSON
from tests.waiting import stays_async, until, until_async

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
    def outcome() -> str:
        worker.run(operation.pk)
        row = Operation.objects.get(pk=operation.pk)
        return row.outcome if row.finished_at is not None else ""

    return await client.in_thread(lambda: until(outcome, "the operation to end"))


async def test_a_stream_of_the_gateway_outlives_a_rotation_and_ends_within_a_second_of_a_revoke(agent) -> None:
    pools = UpstreamPools(warm=1)
    loader = TableLoader(pools.sync, GatewayDatabase())
    await loader.start()
    try:
        peer = loader.table.endpoints["local"]
        held = await pools.of(peer).connect()  # a stream that is under way
        assert await _run(await client.in_thread(lambda: identity.rotate("local", PERSON))) == "succeeded"
        pin = await client.in_thread(lambda: NodePin.objects.get().spki_sha256)
        assert pin not in peer.pins
        await until_async(lambda: loader.table.endpoints["local"].pins == {pin}, "the new pin alone in the table")
        fresh = loader.table.endpoints["local"]
        assert held.alive
        again = await pools.of(fresh).connect()
        assert again.alive

        operation = await client.in_thread(lambda: identity.revoke("local", "local", PERSON))
        assert await _run(operation) == "succeeded"
        await until_async(lambda: not held.alive and not again.alive, "both connections to end", 1.0)
        assert "local" not in loader.table.endpoints
    finally:
        await loader.stop()
        pools.close()


async def test_the_event_line_goes_on_after_a_rotation_and_ends_within_a_second_of_a_revoke(agent) -> None:
    async def follow() -> None:
        async for _ in client.events("local", 0):
            pass

    following = asyncio.create_task(follow())
    await stays_async(lambda: not following.done(), "the event line is open", 0.5)
    operation = await client.in_thread(lambda: identity.revoke("local", "local", PERSON))
    assert await _run(operation) == "succeeded"
    began = time.monotonic()
    with pytest.raises((NodeRevoked, NodeOffline)):
        await asyncio.wait_for(following, 5)
    assert time.monotonic() - began < 1.0 + streams.CHECK_SECONDS
    await client.close()
