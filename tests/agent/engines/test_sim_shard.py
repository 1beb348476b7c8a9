"""The simulated engine in shards: their rendezvous, health and end."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent.runtimes import sim_shard
from agent.runtimes.sim_shard import ShardRendezvous
from tests.bench.services import free_port
from tests.waiting import until_async

pytestmark = pytest.mark.unit


class Shard:
    """One side, taking part."""

    def __init__(self, rendezvous: ShardRendezvous) -> None:
        self.rendezvous = rendezvous
        self.ended = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()

    async def begin(self) -> "Shard":
        await self._stack.enter_async_context(self.rendezvous.join(self.ended))
        return self

    async def end(self) -> None:
        await self._stack.aclose()

    @property
    def status(self) -> int:
        closed = self.rendezvous.unavailable()
        return 200 if closed is None else closed[0]


@pytest.fixture
async def begin(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setattr(sim_shard, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(sim_shard, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(sim_shard, "_RETRY_SECONDS", 0.05)
    port, made, lines = free_port(), [], list[str]()
    monkeypatch.setattr(sim_shard, "_say", lines.append)

    async def one(rank: int, size: int = 3, name: str = "m1") -> Shard:
        shard = await Shard(ShardRendezvous(name, rank, size, "127.0.0.1", port)).begin()
        made.append(shard)
        return shard

    one.port, one.lines = port, lines  # type: ignore[attr-defined]
    yield one
    for shard in made:
        await shard.end()


async def until(is_so: Any, seconds: float = 5.0) -> None:
    await until_async(is_so, "the state of the shards", seconds)


async def test_none_serves_before_all_have_joined(begin: Any) -> None:
    worker = await begin(2)
    head = await begin(0)
    await until(lambda: "2 of 3" in (head.rendezvous.unavailable() or (0, ""))[1])
    assert (head.status, worker.status) == (503, 503)
    third = await begin(1)
    await until(lambda: head.status == worker.status == third.status == 200)


async def test_a_shard_that_is_lost_closes_rank_0_for_good(begin: Any) -> None:
    head, first, second = [await begin(rank) for rank in (0, 1, 2)]
    await until(lambda: head.status == second.status == 200)
    await first.end()
    await until(lambda: head.status == 500)
    assert head.rendezvous.unavailable() == (500, "shard 1 is lost")
    again = await begin(1)
    await until(lambda: any("refuses this shard" in line for line in begin.lines))
    assert (head.status, again.status) == (500, 503), "what was lost does not come back"
    assert not head.ended.is_set(), "rank 0 stays, unhealthy"


async def test_the_others_end_when_rank_0_goes(begin: Any) -> None:
    head, *others = [await begin(rank) for rank in (0, 1, 2)]
    await until(lambda: all(shard.status == 200 for shard in others))
    await head.end()
    await until(lambda: all(shard.ended.is_set() for shard in others))
    assert all(shard.rendezvous.is_broken for shard in others)


async def test_a_shard_that_leaves_before_all_are_there_may_come_back(begin: Any) -> None:
    head, first = await begin(0), await begin(1)
    await until(lambda: "2 of 3" in (head.rendezvous.unavailable() or (0, ""))[1])
    await first.end()
    await until(lambda: "1 of 3" in (head.rendezvous.unavailable() or (0, ""))[1])
    await begin(1)
    await begin(2)
    await until(lambda: head.status == 200)


async def test_shards_of_another_start_are_not_let_in(begin: Any) -> None:
    head = await begin(0, 2)
    stranger = await begin(1, 2, "m0")
    await until(lambda: any("refuses this shard" in line for line in begin.lines))
    assert (head.status, stranger.status) == (503, 503)
    await begin(1, 2)
    await until(lambda: head.status == 200)
    assert not stranger.ended.is_set(), "it waits for its own rank 0"


async def test_silence_is_a_loss(begin: Any) -> None:
    head = await begin(0, 2)
    _, writer = await asyncio.open_connection("127.0.0.1", begin.port)
    writer.write(json.dumps({"meeting": "m1", "worldSize": 2, "rank": 1}).encode() + b"\n")
    await until(lambda: head.status == 200)
    await until(lambda: head.status == 500)
    writer.close()


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b"\xff\xfe\n", b'{"meeting": "m1"}\n', b"x" * 10_000])
async def test_what_is_no_shard_changes_nothing(begin: Any, line: bytes) -> None:
    head = await begin(0, 2)
    reader, writer = await asyncio.open_connection("127.0.0.1", begin.port)
    writer.write(line)
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(2):
            await reader.read()
    writer.close()
    await begin(1, 2)
    await until(lambda: head.status == 200)
