"""The simulated engine in shards: how they meet, what each says of itself, and what ends them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent.runtimes import sim_shard
from agent.runtimes.sim_shard import Meeting
from tests.bench.services import free_port

pytestmark = pytest.mark.unit


class Shard:
    """One side, taking part."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self.ended = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()

    async def begin(self) -> "Shard":
        await self._stack.enter_async_context(self.meeting.attend(self.ended))
        return self

    async def end(self) -> None:
        await self._stack.aclose()

    @property
    def status(self) -> int:
        closed = self.meeting.closed()
        return 200 if closed is None else closed[0]


@pytest.fixture
async def begin(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setattr(sim_shard, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(sim_shard, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(sim_shard, "_AGAIN_SECONDS", 0.05)
    port, made = free_port(), []

    async def one(rank: int, size: int = 3, name: str = "m1") -> Shard:
        shard = await Shard(Meeting(name, rank, size, "127.0.0.1", port)).begin()
        made.append(shard)
        return shard

    one.port = port  # type: ignore[attr-defined]
    yield one
    for shard in made:
        await shard.end()


async def until(look: Any, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not look():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


async def test_none_serves_before_all_have_joined(begin: Any) -> None:
    worker = await begin(2)
    head = await begin(0)
    await until(lambda: "2 of 3" in (head.meeting.closed() or (0, ""))[1])
    assert (head.status, worker.status) == (503, 503)
    third = await begin(1)
    await until(lambda: head.status == worker.status == third.status == 200)


async def test_a_shard_that_is_lost_closes_rank_0_for_good(begin: Any) -> None:
    head, first, second = [await begin(rank) for rank in (0, 1, 2)]
    await until(lambda: head.status == second.status == 200)
    await first.end()
    await until(lambda: head.status == 500)
    assert head.meeting.closed() == (500, "shard 1 is lost")
    again = await begin(1)
    await asyncio.sleep(0.3)
    assert (head.status, again.status) == (500, 503), "what was lost does not come back"
    assert not head.ended.is_set(), "rank 0 stays, and says that it is not well"


async def test_the_others_end_when_rank_0_goes(begin: Any) -> None:
    head, *others = [await begin(rank) for rank in (0, 1, 2)]
    await until(lambda: all(shard.status == 200 for shard in others))
    await head.end()
    await until(lambda: all(shard.ended.is_set() for shard in others))
    assert all(shard.meeting.is_broken for shard in others)


async def test_a_shard_that_leaves_before_all_are_there_may_come_back(begin: Any) -> None:
    head, first = await begin(0), await begin(1)
    await until(lambda: "2 of 3" in (head.meeting.closed() or (0, ""))[1])
    await first.end()
    await until(lambda: "1 of 3" in (head.meeting.closed() or (0, ""))[1])
    await begin(1)
    await begin(2)
    await until(lambda: head.status == 200)


async def test_shards_of_another_start_are_not_let_in(begin: Any) -> None:
    head = await begin(0, 2)
    stranger = await begin(1, 2, "m0")
    await asyncio.sleep(0.3)
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
