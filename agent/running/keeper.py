"""The keeper of one instance: starts it, waits until it is ready, watches it, ends it.

One task at a time works on an instance. Every change is on disk before the next act, so that an agent that is killed
between any two lines finds out what it was doing (`recovery`).
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from agent import clock
from agent.admission import Need
from agent.deliveries.base import DeliveryFailed, EngineDelivery, Handle, Seen
from agent.errors import AgentError
from agent.logs import LogFile
from agent.running import ports, pulse, room
from agent.running.endings import Ended, how_it_ended, unwritable
from agent.running.health import Beat
from agent.running.orders import make
from agent.running.record import Record
from agent.running.yard import Yard
from agent.runtimes import RUNTIMES
from agent.wire.instances import InstanceState, InstanceView, LogSlice, PullProgress

_log = logging.getLogger("mirbad.agent.instances")

_PORT_TRIES = 4
_LAST_LINES = 30
_PORT_WORDS = re.compile(r"address already in use|couldn't bind|could not bind|cannot listen|errno 98", re.IGNORECASE)
_STOP_AGAIN_SECONDS = 5.0


class Keeper:
    """Holds one record and the task that works on it."""

    def __init__(self, record: Record, yard: Yard, need: Need, lanes: frozenset[str]) -> None:
        self.record = record
        self.yard = yard
        self.need = need
        self.lanes = lanes
        self.progress: PullProgress | None = None
        self.memory_bytes: int | None = None
        self._secrets = (record.api_key, *(value.get_secret_value() for value in record.spec.secret_env.values()))
        self._reading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._spawn: asyncio.Task[Handle] | None = None
        self._follow: asyncio.Task[None] | None = None

    @property
    def delivery(self) -> EngineDelivery:
        """How this instance is run."""
        return self.yard.deliveries[self.record.spec.delivery]

    @property
    def log(self) -> LogFile:
        """Its log as it is now."""
        path = self.yard.records.log_path(self.record.instance_id)
        return LogFile(path, self.record.log_base, self._secrets)

    def view(self) -> InstanceView:
        """What the master is told."""
        return self.record.view(self.progress, self.memory_bytes)

    async def read_log(self, lines: int, after: int | None) -> LogSlice:
        """The last `lines` of the log, or at most so many from the place `after`."""
        async with self._reading:
            if after is None:
                return await asyncio.to_thread(self.log.tail, lines)
            return await asyncio.to_thread(self.log.after, after, lines)

    def begin(self) -> None:
        """Start working: from the beginning, or from where the record stands."""
        self._task = asyncio.create_task(self._work(), name=f"instance {self.record.instance_id}")

    def later(self, take_up: Callable[["Keeper"], Awaitable[None]]) -> None:
        """Try again to find out what became of it, while its container engine does not answer."""

        async def again() -> None:
            await self._set(
                state=InstanceState.UNHEALTHY if self.record.ready_at else self.record.state,
                reason="The agent cannot tell whether the engine runs: Docker does not answer on this node.",
                reason_code="runtime_unavailable",
            )
            await asyncio.sleep(self.yard.pace.finding)
            await take_up(self)

        self._task = asyncio.create_task(again(), name=f"find {self.record.instance_id}")

    def adopt(self) -> None:
        """Take up an engine that runs: watch it, or go on ending it."""
        if self.record.stop_requested:
            self._task = asyncio.create_task(self._stop(None), name=f"stop {self.record.instance_id}")
            return
        if self.record.ready_at is None:
            self.yard.starts.try_take(self.record.instance_id, self.lanes, self.need, force=True)
        self.begin()

    async def stop(self, grace_seconds: float) -> None:
        """Ask for the end; returns when that is on disk. Nothing when it has ended or is ending."""
        if not self.record.is_live or self.record.stop_requested:
            return
        working = self._task
        self.record.stop_requested = True
        self.record.stop_grace_seconds = grace_seconds
        self._task = asyncio.create_task(self._stop(working), name=f"stop {self.record.instance_id}")
        await self._set(state=InstanceState.STOPPING, reason=None, reason_code=None)

    async def wait_final(self) -> None:
        """Until nothing works on it any more."""
        while (task := self._task) is not None and not task.done():
            await asyncio.wait([task])

    async def close(self) -> None:
        """The agent ends: leave the engine alone."""
        if self._spawn is not None:
            await asyncio.wait([self._spawn])
        for task in (self._task, self._follow):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _work(self) -> None:
        try:
            async with self.yard.starts.held(self.record.instance_id):
                if self.record.handle is None:
                    await self._start()
                if self.record.ready_at is None:
                    await self._until_ready()
            await self._watch()
        except Ended as end:
            await self._conclude(end)
        except (DeliveryFailed, AgentError) as error:
            await self._conclude(Ended(str(error.code), str(error)))
        except Exception:  # noqa: BLE001  the edge of the loop of one instance; the traceback is logged
            _log.exception("instance %s: its keeper failed", self.record.instance_id)
            await self._conclude(Ended("internal", "The agent failed while it worked on this instance; see its log."))

    async def _conclude(self, end: Ended) -> None:
        """`finish`, tried again: an engine that may still run is never left without a keeper."""
        while True:
            try:
                await self.finish(end)
            except Exception:  # noqa: BLE001  the edge of the loop of one instance; the traceback is logged
                _log.exception("instance %s: its end failed, and is tried again", self.record.instance_id)
                await asyncio.sleep(_STOP_AGAIN_SECONDS)
            else:
                return

    async def _start(self) -> None:
        """Until an engine of this launch runs, on another port if the first one was taken meanwhile."""
        record, runtime = self.record, RUNTIMES[self.record.spec.runtime]
        source = await asyncio.to_thread(runtime.prepare, record.spec, self.yard.config)
        await self._take_turn()
        for number in range(1, _PORT_TRIES + 1):
            await self._choose_port()
            order = await asyncio.to_thread(make, record, source, self.yard)
            await self.delivery.prepare(order, self._show)
            self.progress = None
            # before the intent: after it, a line in the log says that this launch ran
            await asyncio.to_thread(order.log.unlink, missing_ok=True)
            try:
                await self._set(
                    before_acting=True,
                    state=InstanceState.STARTING,
                    spawning=True,
                    attempts=record.attempts + 1,
                    log_base=0,
                    boot_id=clock.boot_id(),
                    init_ticks=clock.init_ticks(),
                    spawned_monotonic=clock.monotonic(),
                    started_at=clock.now_text(),
                )
                self._spawn = asyncio.create_task(self.delivery.start(order))
                await self._started(await asyncio.shield(self._spawn))
                await self._until_ready()
            except (Ended, DeliveryFailed) as error:
                if number == _PORT_TRIES or not await self._port_was_taken(error):
                    raise
                await self._clean()
                await self._say(f"Port {record.port} is used by another program; another port is tried.")
                await self._set(handle=None, spawning=False, launch_id="")
            else:
                return

    async def _take_turn(self) -> None:
        """Wait while another start holds the same GPU or the node's limit, then ask for room."""
        starts, key = self.yard.starts, self.record.instance_id
        if starts.try_take(key, self.lanes, self.need):
            return
        await self._say("Waits until another model on this node has started.")
        await starts.take(key, self.lanes, self.need)
        await room.check(self.yard, key, self.need, force=self.record.spec.force)
        self.progress = None

    async def _choose_port(self) -> None:
        self.yard.ports.discard(self.record.port)
        port = await asyncio.to_thread(ports.choose, set(self.yard.ports))
        self.yard.ports.add(port)
        await self._set(before_acting=True, port=port, launch_id=secrets.token_hex(16), spawning=False)

    async def _port_was_taken(self, error: Ended | DeliveryFailed) -> bool:
        if isinstance(error, DeliveryFailed):
            return error.port_taken
        if error.code != "engine_exited":
            return False
        lines = await asyncio.to_thread(self.log.tail, _LAST_LINES)
        if not _PORT_WORDS.search("\n".join(lines.lines)):
            return False
        return not await asyncio.to_thread(ports.is_free, self.record.port)

    async def _started(self, handle: Handle) -> None:
        """The engine runs: keep where it is, and forget the values that it needed."""
        spec = self.record.spec.model_copy(update={"secret_env": {}})
        await self._set(handle=handle, spec=spec)

    async def _until_ready(self) -> None:
        """Look at its health until it is ready. Ended when it dies or takes too long."""
        record = self.record
        handle = self._handle()
        await self._follow_log(handle)
        begun = record.spawned_monotonic or clock.monotonic()
        while True:
            await self._must_run(handle)
            beat = await pulse.take(self.yard, record)
            if beat is Beat.READY and await pulse.is_its_own(self.delivery, handle, record):
                await self._must_run(handle)
                self.progress = None
                seconds = round(max(0.0, clock.monotonic() - begun), 3)
                await self._set(state=InstanceState.READY, ready_at=clock.now_text(), start_seconds=seconds)
                return
            if clock.monotonic() - begun > record.spec.start_timeout_seconds:
                raise Ended(
                    "start_timeout",
                    f"The engine was not ready after {record.spec.start_timeout_seconds} s and was ended. See its last "
                    "lines; a longer start time-out may help.",
                )
            if beat is Beat.LOADING and record.state is InstanceState.STARTING:
                await self._set(state=InstanceState.LOADING)
            await self._show_last_line()
            await self._keep_log_short()
            await asyncio.sleep(self.yard.pace.starting)

    async def _show_last_line(self) -> None:
        text = await asyncio.to_thread(self.log.last_line)
        if text and (self.progress is None or self.progress.text != text):
            self._show(PullProgress(text=text))

    async def _watch(self) -> None:
        """Until it dies: health, memory, length of its log."""
        record, pace = self.record, self.yard.pace
        handle = self._handle()
        await self._follow_log(handle)
        failures, measured = 0, 0.0
        while True:
            await self._must_run(handle)
            if clock.monotonic() - measured >= pace.memory:
                measured = clock.monotonic()
                self.memory_bytes = await self.delivery.memory_bytes(handle)
                await self._keep_log_short()
            beat = await pulse.take(self.yard, record)
            failures = 0 if beat is Beat.READY else failures + 1
            if failures == 0 and record.state is InstanceState.UNHEALTHY:
                await self._set(state=InstanceState.READY, reason=None, reason_code=None)
            elif failures == pace.failures and record.state is InstanceState.READY:
                await self._set(
                    state=InstanceState.UNHEALTHY,
                    reason="The engine runs but no longer says that it is healthy.",
                    reason_code="unhealthy",
                )
            await asyncio.sleep(pace.watching)

    async def _keep_log_short(self) -> None:
        if not await asyncio.to_thread(self.log.is_too_long):
            return
        async with self._reading:
            # a reader that comes between the two would take its place for one in the other file
            self.record.log_base += await asyncio.to_thread(self.log.empty)
        await self._set()

    async def _must_run(self, handle: Handle) -> None:
        seen = await self.delivery.seen(handle)
        if not seen.running:
            raise Ended("out_of_memory" if seen.out_of_memory else "engine_exited", how_it_ended(seen), seen)

    async def _stop(self, working: asyncio.Task[None] | None) -> None:
        """End the engine for good; tried again for as long as it cannot be ended."""
        if self._spawn is not None:
            await asyncio.wait([self._spawn])
        if working is not None:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        if not self.record.is_live:
            return
        while True:
            try:
                seen = await self._end_engine(self.record.stop_grace_seconds)
                await self._conclude(Ended("stopped", "Stopped on request.", seen))
            except DeliveryFailed as error:
                await self._set(state=InstanceState.STOPPING, reason=str(error), reason_code=error.code)
                await asyncio.sleep(_STOP_AGAIN_SECONDS)
            else:
                return

    async def _end_engine(self, grace_seconds: float) -> Seen | None:
        """None when no engine of this launch was found."""
        handle = self.record.handle
        if handle is None and self.record.launch_id:
            handle = await self.delivery.recover(self.record.launch_id, None)
            if handle is not None:
                self.record.handle = handle
        return None if handle is None else await self.delivery.stop(handle, grace_seconds)

    async def finish(self, end: Ended) -> None:
        """Nothing of it runs any more; say how it ended."""
        record = self.record
        seen = end.seen
        if end.code not in {"engine_exited", "stopped"}:
            seen = await self._end_after_failure() or seen
        await self._end_follow()
        lines = await asyncio.to_thread(self.log.tail, _LAST_LINES)
        await self._clean()
        self.yard.ports -= {record.port, record.rendezvous_port}
        self.progress, self.memory_bytes = None, None
        await self.yard.starts.release(record.instance_id)
        await self._set(
            state=InstanceState.LOST if end.code == "lost" else InstanceState.EXITED,
            reason=end.reason,
            reason_code=end.code,
            exited_at=clock.now_text(),
            exit_code=seen.exit_code if seen else None,
            last_lines=lines.lines,
            spec=record.spec.model_copy(update={"secret_env": {}}),
        )

    async def _end_after_failure(self) -> Seen | None:
        try:
            return await self._end_engine(self.record.stop_grace_seconds)
        except DeliveryFailed:
            _log.exception("instance %s: its engine could not be ended", self.record.instance_id)
            return None

    async def _clean(self) -> None:
        await self._end_follow()
        if self.record.handle is None:
            return
        try:
            await self.delivery.clean(self.record.handle)
        except DeliveryFailed:
            _log.exception("instance %s: what its engine left could not be removed", self.record.instance_id)

    def _handle(self) -> Handle:
        if self.record.handle is None:
            raise Ended("internal", "The agent lost track of this engine.")
        return self.record.handle

    async def _follow_log(self, handle: Handle) -> None:
        if self._follow is None or self._follow.done():
            if self.delivery.reads_log_again and self.record.log_base:
                await self._set(log_base=0)
            self._follow = asyncio.create_task(self.delivery.follow(handle, self.log.path))

    async def _end_follow(self) -> None:
        """Give the last lines a moment to come in."""
        if self._follow is None:
            return
        _, late = await asyncio.wait([self._follow], timeout=3.0)
        for task in late:
            task.cancel()
        await asyncio.gather(self._follow, return_exceptions=True)
        self._follow = None

    def _show(self, progress: PullProgress) -> None:
        """Progress is told, not kept."""
        self.progress = progress
        self.yard.changed(self.view())

    async def _say(self, text: str) -> None:
        self._show(PullProgress(text=text))

    async def _set(self, *, before_acting: bool = False, **changes: Any) -> None:
        """Change the record, put it on disk, tell.

        A disk that is full must not make an engine unwatched: what was seen is told all the same, and goes to disk with
        the next change. Only an intent has to be there: with `before_acting` DeliveryFailed says that it is not.
        """
        for name, value in changes.items():
            setattr(self.record, name, value)
        try:
            await self.yard.records.save(self.record)
        except OSError as error:
            if before_acting:
                raise unwritable(error) from error
            _log.exception("instance %s: its record cannot be written", self.record.instance_id)
        self.yard.changed(self.view())
