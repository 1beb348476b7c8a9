"""Event streams to the master: bounded, in order, and complete again after a gap."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from agent.server.seq import Sequence
from agent.wire.instances import InstanceView
from agent.wire.status import Event, NodeStatus

log = logging.getLogger(__name__)

QUEUED_EVENTS = 256
"""Events kept for one subscriber. A slower one receives a fresh status instead of the rest."""

MAX_SUBSCRIBERS = 16
"""Concurrent streams; one more ends the oldest, most likely the dead end of a lost connection."""


class Subscriber:
    """One open stream. `stale` means that it needs a status before anything else."""

    def __init__(self) -> None:
        self.stale = True
        self.closed = False
        self._queue: deque[Event] = deque()
        self._wake = asyncio.Event()

    @property
    def queued(self) -> int:
        """Count of waiting events."""
        return len(self._queue)

    def offer(self, event: Event) -> None:
        """Queue `event`. A status replaces waiting events; an event past the bound makes the subscriber stale."""
        if event.kind == "status":
            self._queue.clear()
            self.stale = False
        elif self.stale:
            return
        elif len(self._queue) >= QUEUED_EVENTS:
            self._queue.clear()
            self.stale = True
            self._wake.set()
            return
        self._queue.append(event)
        self._wake.set()

    def close(self) -> None:
        """End the stream at its next step."""
        self.closed = True
        self._wake.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for an event. Return False when none arrived in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> list[Event]:
        """Return the queued events in order, and clear the queue."""
        self._wake.clear()
        events = list(self._queue)
        self._queue.clear()
        return events


class EventBroadcaster:
    """Numbers every observation and passes it to all subscribers."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._subscribers: list[Subscriber] = []
        self._loop = asyncio.get_running_loop()
        self._read_status: Callable[[], Awaitable[Callable[[int], NodeStatus]]] | None = None
        self._reading = asyncio.Lock()

    def bind(self, read_status: Callable[[], Awaitable[Callable[[int], NodeStatus]]]) -> None:
        """Set how a status is read: first the slow part, then, at one moment, everything that must match its number."""
        self._read_status = read_status

    @property
    def sequence(self) -> Sequence:
        """The source of the numbers."""
        return self._sequence

    @property
    def subscribers(self) -> int:
        """Count of open streams."""
        return len(self._subscribers)

    def changed(self, view: InstanceView) -> None:
        """Send a changed instance to all subscribers. Safe in any thread."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._tell_instance(view)
        else:
            self._loop.call_soon_threadsafe(self._tell_instance, view)

    def _tell_instance(self, view: InstanceView) -> None:
        self._tell(Event(kind="instance", boot_id=self._sequence.boot_id, seq=self._sequence.next(), instance=view))

    async def refresh(self) -> NodeStatus:
        """Read a whole status, send it to every subscriber, and return it. All readers receive the same numbers."""
        if self._read_status is None:
            raise RuntimeError("no status reader is bound")
        async with self._reading:
            finish = await self._read_status()
            # No await from here on: the number and the status belong together.
            status = finish(self._sequence.next())
            self._tell(Event(kind="status", boot_id=status.boot_id, seq=status.seq, status=status))
            return status

    def ping(self) -> Event:
        """Return an event that says only that the agent is alive."""
        return Event(kind="ping", boot_id=self._sequence.boot_id, seq=self._sequence.last)

    def listen(self) -> Subscriber:
        """Open a stream, stale at first. End it with `leave`."""
        subscriber = Subscriber()
        self._subscribers.append(subscriber)
        while len(self._subscribers) > MAX_SUBSCRIBERS:
            log.warning("more than %d event streams are open; closing the oldest", MAX_SUBSCRIBERS)
            self._subscribers.pop(0).close()
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a stream that has ended."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    def close(self) -> None:
        """End all streams."""
        for subscriber in self._subscribers:
            subscriber.close()

    def _tell(self, event: Event) -> None:
        for subscriber in self._subscribers:
            subscriber.offer(event)
