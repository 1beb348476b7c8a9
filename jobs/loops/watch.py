"""The watcher: holds an event stream to every node and writes the reports that arrive. It decides nothing.

One watcher at a time, by a lease. One asyncio task per node: an approved node is connected and its events are followed;
one that waits for approval is probed from time to time. Database calls run in threads beside the loop.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import structlog

from agent.wire.status import Event
from jobs.loops import reports
from jobs.loops.reports import Reports
from mirbad.kernel import clock
from mirbad.kernel.errors import MirbadError
from models_app import running
from models_app.placement import gpu_conditions
from nodes import leases, reachability
from nodes.link import client, health
from nodes.models import MasterIdentity, Node
from nodes.states import APPROVED, PENDING

log = structlog.get_logger(__name__)

LEASE = "watcher"
LEASE_LIFE = timedelta(seconds=15)
ROUND_SECONDS = 1.0
PENDING_SECONDS = 5.0
CONNECTS_AT_ONCE = 32
RECONNECTS_AT_ONCE = 128
"""Nodes that did not answer last time may wait for their time-outs, many at once, without delaying others."""

LATE_SECONDS = 5.0
"""A round this late means that the process was held up, so that silence of a node proves nothing."""

_PAUSE_SECONDS = (0.5, 8.0)


@dataclass(frozen=True, slots=True)
class Watched:
    """The values that a node's task depends on: with others it is replaced by a new one.

    `claim` is the master's own: after a takeover every node gets it at once, and not with its next command.
    """

    lifecycle: str
    address: str
    port: int
    uid: str
    claim: tuple[int, str] | None = None


def to_watch() -> dict[str, Watched]:
    """Return every node that is approved or waits for approval. Two statements."""
    claim = MasterIdentity.objects.values_list("epoch", "instance_id").first()
    rows = Node.objects.filter(lifecycle__in=(APPROVED, PENDING)).values_list(
        "pk", "lifecycle", "address", "port", "uid"
    )
    return {pk: Watched(lifecycle, address, port, str(uid), claim) for pk, lifecycle, address, port, uid in rows}


@dataclass(slots=True)
class Watcher:
    """One run of the watcher. `stop` ends it; `is_healthy` is for its heartbeat."""

    owner: str = field(default_factory=leases.owner_name)
    _tasks: dict[str, tuple[Watched, asyncio.Task[None]]] = field(default_factory=dict)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _connects: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONNECTS_AT_ONCE))
    _reconnects: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(RECONNECTS_AT_ONCE))
    _last_round: float = field(default_factory=clock.monotonic)
    _reports: Reports = field(default_factory=Reports)
    _refused: set[str] = field(default_factory=set)
    _heard: dict[str, float] = field(default_factory=dict)
    _broken: dict[str, str] = field(default_factory=dict)

    def stop(self) -> None:
        """End the run soon; may be called from a signal handler of its loop."""
        self._stopping.set()

    def is_healthy(self) -> bool:
        """Return whether a round ended recently; for the heartbeat, from any thread."""
        return clock.monotonic() - self._last_round < 10 * ROUND_SECONDS

    async def run(self) -> None:
        """Watch until `stop`."""
        try:
            await client.in_thread(lambda: leases.release_dead(LEASE))
            while not self._stopping.is_set():
                await self._guarded_round()
                await _sleep_unless(self._stopping, ROUND_SECONDS)
        finally:
            await self._end_all()
            await self._guarded_write_down()
            await client.in_thread(lambda: leases.release(LEASE, self.owner))
            await client.close()

    async def _guarded_round(self) -> None:
        try:
            await self.round()
        except Exception:
            # The loop's edge: a database that is away for a moment must not end the watcher.
            log.exception("a round of the watcher failed")
            await self._drop_if_lease_is_doubtful()

    async def round(self) -> bool:
        """Take or renew the lease, then begin and end tasks by the nodes' rows; False without the lease."""
        if not await client.in_thread(lambda: leases.take(LEASE, self.owner, LEASE_LIFE)):
            self._reports.clear()
            await self._end_all()
            self._last_round = clock.monotonic()
            return False
        await self._write_down()
        await self._note_silence()
        expected = await client.in_thread(to_watch)
        for node_id in [
            node_id for node_id, (known, task) in self._tasks.items() if self._is_over(node_id, known, task, expected)
        ]:
            await self._end(node_id)
        for node_id, watched in expected.items():
            if node_id not in self._tasks:
                self._begin(node_id, watched)
        self._last_round = clock.monotonic()
        return True

    @staticmethod
    def _is_over(node_id: str, known: Watched, task: asyncio.Task[None], expected: dict[str, Watched]) -> bool:
        return task.done() or expected.get(node_id) != known

    def _begin(self, node_id: str, watched: Watched) -> None:
        tend = self._follow if watched.lifecycle == APPROVED else self._probe_pending
        task = asyncio.create_task(self._tend(node_id, tend), name=f"watch-{node_id}")
        self._tasks[node_id] = (watched, task)

    async def _end(self, node_id: str) -> None:
        _, task = self._tasks.pop(node_id)
        for kept in (self._heard, self._broken):
            kept.pop(node_id, None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close(node_id)

    async def _end_all(self) -> None:
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        self._heard.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _guarded_write_down(self) -> None:
        try:
            await self._write_down()
        except Exception:
            # The process ends: the next one receives the last reports again.
            log.exception("the last reports could not be written")

    async def _write_down(self) -> None:
        words = self._reports.take()
        if not words:
            return
        try:
            # In the writer, like everything that locks nodes here: two writers of several nodes could deadlock.
            for chunk in reports.chunks(words):
                self._refused.update(await client.in_writer(partial(reports.write, chunk)))
        except BaseException:
            self._reports.give_back(words)
            raise

    async def _note_silence(self) -> None:
        """Write the loss of nodes that sent nothing for 15 seconds, in any state of their streams."""
        now = clock.monotonic()
        if now - self._last_round > LATE_SECONDS:
            # Reports of the meantime were not read yet.
            self._heard.update(dict.fromkeys(self._heard, now))
            return
        limit = now - reachability.OFFLINE_AFTER.total_seconds()
        for node_id in [node_id for node_id, at in self._heard.items() if at <= limit]:
            del self._heard[node_id]
            await self._lose(node_id, self._broken.get(node_id, "The node sent nothing for 15 seconds."))

    async def _drop_if_lease_is_doubtful(self) -> None:
        if clock.monotonic() - self._last_round > LEASE_LIFE.total_seconds():
            await self._end_all()

    async def _tend(self, node_id: str, tend: Callable[[str], Awaitable[None]]) -> None:
        pause, longest = _PAUSE_SECONDS
        while True:
            began = clock.monotonic()
            try:
                await tend(node_id)
            except MirbadError as error:
                await self._lose(node_id, error.detail)
            except Exception:
                # A node's edge: an error of its stream must not end its task, nor those of others.
                log.exception("unexpected error in the stream of a node", node=node_id)
                await self._lose(node_id, "The event stream broke; see the watcher's log.")
            # A stream that lasted a while is reconnected at once; one that breaks at once, ever more slowly.
            pause = _PAUSE_SECONDS[0] if clock.monotonic() - began > longest else min(pause * 2, longest)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the load, guards nothing

    async def _lose(self, node_id: str, reason: str) -> None:
        self._broken[node_id] = reason
        words = self._reports.take_of(node_id)
        try:
            await client.in_writer(lambda: reports.write_loss(node_id, reason, words))
        except Exception:
            # The same edge: the next try writes it.
            log.exception("the loss of a node could not be written", node=node_id)

    async def _probe_pending(self, node_id: str) -> None:
        while True:
            async with self._connects:
                await health.aprobe(node_id)
            await asyncio.sleep(PENDING_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311 - spreads the load

    async def _follow(self, node_id: str) -> None:
        again = node_id in self._broken
        async with self._reconnects if again else self._connects:
            self._heard.setdefault(node_id, clock.monotonic())
            connected = await health.aconnect(node_id)
            await client.in_writer(lambda: reports.write_first(node_id, connected.status, again=again))
        self._broken.pop(node_id, None)
        self._refused.discard(node_id)
        log.info("connected", node=node_id, agent_version=connected.info.agent_version)
        capabilities_seq = connected.status.capabilities_seq
        async for event in client.events(node_id, connected.status.seq):
            if node_id in self._refused:
                return
            self._heard[node_id] = clock.monotonic()
            self._reports.heard(node_id, event.status)
            if event.status is not None and event.status.capabilities_seq != capabilities_seq:
                capabilities_seq = event.status.capabilities_seq
                await self._read_again(node_id, capabilities_seq)
            elif event.instance is not None:
                await client.in_writer(_take_instance(node_id, event))

    async def _read_again(self, node_id: str, capabilities_seq: int) -> None:
        await health.arefresh(node_id, capabilities_seq)
        await client.in_thread(lambda: gpu_conditions.refresh(node_id))


def _take_instance(node_id: str, event: Event) -> Callable[[], int]:
    def take() -> int:
        assert event.instance is not None  # noqa: S101 - the caller looked
        return running.observe_instance(node_id, event.boot_id, event.seq, event.instance)

    return take


async def _sleep_unless(stopping: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return
