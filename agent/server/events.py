"""Who listens to this machine, and what each is told: bounded, in order, whole again after a gap."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from agent.server.seq import Sequence
from agent.wire.instances import InstanceView
from agent.wire.status import Event, NodeStatus

log = logging.getLogger(__name__)

QUEUED_EVENTS = 256
"""Events kept for one listener. One that is slower gets a fresh status instead of the rest."""

LISTENERS = 16
"""Streams at once; one more ends the oldest, which is most likely the dead end of a lost connection."""


class Listener:
    """One open stream. `stale` means that it needs a status before anything else."""

    def __init__(self) -> None:
        self.stale = True
        self.closed = False
        self._queue: deque[Event] = deque()
        self._wake = asyncio.Event()

    @property
    def queued(self) -> int:
        """How many events wait."""
        return len(self._queue)

    def offer(self, event: Event) -> None:
        """Queue `event`. A status replaces what waits; an event past the bound makes the listener stale."""
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
        """Wait for something to happen; False when nothing did."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> list[Event]:
        """What is queued, in order; the queue is empty afterwards."""
        self._wake.clear()
        events = list(self._queue)
        self._queue.clear()
        return events


class Hub:
    """Gives every observation its number and hands it to all listeners."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._listeners: list[Listener] = []
        self._loop = asyncio.get_running_loop()
        self._read_status: Callable[[], Awaitable[Callable[[int], NodeStatus]]] | None = None
        self._reading = asyncio.Lock()

    def bind(self, read_status: Callable[[], Awaitable[Callable[[int], NodeStatus]]]) -> None:
        """Say how a status is read: first what takes time, then, at one moment, all that must agree with its number."""
        self._read_status = read_status

    @property
    def sequence(self) -> Sequence:
        """The numbers that the hub gives out."""
        return self._sequence

    @property
    def listeners(self) -> int:
        """How many streams are open."""
        return len(self._listeners)

    def changed(self, view: InstanceView) -> None:
        """An instance changed. May be called from any thread."""
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
        """Read a whole status, tell it to every listener, and return it. Every reader gets the same numbers."""
        if self._read_status is None:
            raise RuntimeError("the hub has no status to read")
        async with self._reading:
            finish = await self._read_status()
            # No await from here on: the number and what it stands for belong together.
            status = finish(self._sequence.next())
            self._tell(Event(kind="status", boot_id=status.boot_id, seq=status.seq, status=status))
            return status

    def ping(self) -> Event:
        """A line that says only that the agent lives."""
        return Event(kind="ping", boot_id=self._sequence.boot_id, seq=self._sequence.last)

    def listen(self) -> Listener:
        """A new stream, stale at first. End it with `leave`."""
        listener = Listener()
        self._listeners.append(listener)
        while len(self._listeners) > LISTENERS:
            log.warning("more than %d event streams are open; the oldest ends", LISTENERS)
            self._listeners.pop(0).close()
        return listener

    def leave(self, listener: Listener) -> None:
        """The stream has ended."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def close(self) -> None:
        """End all streams."""
        for listener in self._listeners:
            listener.close()

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener.offer(event)
