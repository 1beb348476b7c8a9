"""The supervisor of one engine: starts it, waits until it is ready, watches it, stops it.

One task at a time works on an instance. The order of the steps is the design: each change is on disk before the next
side effect, so that an agent that is killed between any two lines finds its way back from the record (`recovery`).
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from agent import clock
from agent.admission import MemoryNeed
from agent.common.reason import Reason
from agent.deliveries.base import DeliveryFailed, EngineDelivery, EngineObservation, Handle
from agent.errors import AgentError
from agent.running import capacity, endings, gpu_use, ports, probe, weights
from agent.running.context import EngineContext
from agent.running.endings import EngineEnded, exit_of, state_unwritable
from agent.running.health import ProbeResult
from agent.running.instance_log import InstanceLog
from agent.running.record import InstanceRecord
from agent.running.run_spec import build
from agent.wire.instances import InstanceState, InstanceView, PullProgress

_log = logging.getLogger("mirbad.agent.instances")

_PORT_TRIES = 4
_LAST_LINES = 30
_RETRY_SECONDS = 5.0
_DYING_POLL_SECONDS = 0.1
_DOUBT_POLL_SECONDS = 0.5


class EngineSupervisor:
    """Owns the record of one instance and the task that works on it."""

    def __init__(self, record: InstanceRecord, context: EngineContext, need: MemoryNeed, slots: frozenset[str]) -> None:
        self.record = record
        self.context = context
        self.need = need
        self.slots = slots
        self.progress: PullProgress | None = None
        self.memory_bytes: int | None = None
        self.without_gpus: Reason | None = None
        self.log = InstanceLog(record, context.records.log_path(record.instance_id), self._set)
        self._task: asyncio.Task[None] | None = None
        self._spawn: asyncio.Task[Handle] | None = None
        self._suspect_until = 0.0
        self._suspected = asyncio.Event()

    @property
    def delivery(self) -> EngineDelivery:
        """The delivery that runs this instance."""
        return self.context.deliveries[self.record.spec.delivery]

    @property
    def is_idle(self) -> bool:
        """True while nothing works on the instance."""
        return self._task is None or self._task.done()

    def view(self) -> InstanceView:
        """Return the instance as the master reads it."""
        notice = gpu_use.dropped(self.record) or self.without_gpus if self.record.is_live else None
        return self.record.view(self.progress, self.memory_bytes, notice)

    def begin(self) -> None:
        """Work on the instance in the background, from the state in its record."""
        self._task = asyncio.create_task(self._work(), name=f"instance {self.record.instance_id}")

    def retry_recovery(self, resume: Callable[["EngineSupervisor"], Awaitable[None]]) -> None:
        """Call `resume` again later, because the container engine does not answer now."""

        async def again() -> None:
            await self._set(
                state=InstanceState.UNHEALTHY if self.record.ready_at else self.record.state,
                reason="Docker does not answer on this node, so the state of the engine is unknown.",
                reason_code="runtime_unavailable",
            )
            await asyncio.sleep(self.context.intervals.recovery_seconds)
            await resume(self)

        self._task = asyncio.create_task(again(), name=f"find {self.record.instance_id}")

    def adopt(self) -> None:
        """Supervise an engine that runs already: watch it, or continue to stop it."""
        if self.record.stop_requested:
            self._task = asyncio.create_task(self._stop(None), name=f"stop {self.record.instance_id}")
            return
        if self.record.awaits_ready:
            # The engine is loading: its memory is not in use yet, so it must occupy its slots as any start does.
            self.context.start_slots.try_take(self.record.instance_id, self.slots, self.need, force=True)
        self.begin()

    def look_now(self) -> None:
        """Check at once, and for a moment, whether the engine ended: it broke off a request."""
        self._suspect_until = clock.monotonic() + self.context.intervals.dying_seconds
        self._suspected.set()

    async def stop(self, grace_seconds: float) -> None:
        """Request the stop; returns when the request is on disk. Does nothing on an engine that ended or stops."""
        if not self.record.is_live or self.record.stop_requested:
            return
        working = self._task
        self.record.stop_requested = True
        self.record.stop_grace_seconds = grace_seconds
        # Created before the first await: from here on a second stop and `wait_final` see this task. The request is on
        # disk before the caller hears of it, so a killed agent continues the stop afterwards.
        self._task = asyncio.create_task(self._stop(working), name=f"stop {self.record.instance_id}")
        await self._set(state=InstanceState.STOPPING, reason=None, reason_code=None)

    async def wait_final(self) -> None:
        """Wait until no task works on the instance."""
        while (task := self._task) is not None and not task.done():
            await asyncio.wait([task])

    async def close(self) -> None:
        """Stop supervising; the engine keeps running."""
        if self._spawn is not None:
            # A spawn in progress runs in a thread and cannot be cancelled; its handle must not be lost.
            await asyncio.wait([self._spawn])
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.log.close()

    async def _work(self) -> None:
        try:
            # The slots are held until the engine is ready: only then is its memory visible in the free memory.
            async with self.context.start_slots.held(self.record.instance_id):
                if self.record.handle is None:
                    await self._start()
                if self.record.awaits_ready:
                    await self._until_ready()
            await self._watch()
        except EngineEnded as end:
            await self._conclude(end)
        except (DeliveryFailed, AgentError) as error:
            await self._conclude(EngineEnded(str(error.code), str(error)))
        except Exception:  # noqa: BLE001  the edge of the loop of one instance; the traceback is logged
            _log.exception("instance %s: the supervisor failed", self.record.instance_id)
            await self._conclude(EngineEnded("internal", "The agent failed on this instance; see the agent's log."))

    async def _conclude(self, end: EngineEnded) -> None:
        """`finish`, retried: an engine that may still run is never left without a supervisor."""
        while True:
            try:
                await self.finish(end)
            except Exception:  # noqa: BLE001  the edge of the loop of one instance; the traceback is logged
                _log.exception("instance %s: its end failed and is retried", self.record.instance_id)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _start(self) -> None:
        """Start an engine and wait until it is ready, on another port if the first one is taken."""
        record = self.record
        source = await weights.find(record.spec, self.context.config)
        await self._take_turn()
        for number in range(1, _PORT_TRIES + 1):
            # 1. Port and launch id are on disk before anything carries them: the launch id is the mark by which
            #    recovery finds the engine, and a mark that no record names would belong to nobody.
            await self._choose_port()
            run_spec = await asyncio.to_thread(build, record, source, self.context)
            # 2. The pull, which may take hours and be cancelled, comes before the intent: until then no engine can
            #    exist, and a killed agent simply begins again.
            await self.delivery.prepare(run_spec, self._show)
            self.progress = None
            # 3. The old log goes before the intent, so that once `spawning` is on disk a line in the log proves that
            #    this launch ran (`recovery` must not start it a second time then). Another port is no other run.
            await (self.log.begin_run() if record.attempts == 0 else asyncio.to_thread(self.log.file.remove))
            try:
                # 4. The intent. It must be on disk, else nothing is started: an engine that the agent could not find
                #    again would hold GPU memory for ever.
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
                # 5. The engine. Shielded: a stop cancels this task, and the thread would start an engine all the same.
                self._spawn = asyncio.create_task(self.delivery.start(run_spec))
                await self._started(await asyncio.shield(self._spawn))
                await self._until_ready()
            except (EngineEnded, DeliveryFailed) as error:
                if number == _PORT_TRIES or not await self._is_port_taken(error):
                    raise
                # The failed engine is removed before its handle and launch id leave the record: until then a killed
                # agent can still find it by them.
                await self._clean()
                self._show(PullProgress(text=f"Port {record.port} is in use by another program; trying another port."))
                await self._set(handle=None, spawning=False, launch_id="")
            else:
                return

    async def _take_turn(self) -> None:
        """Wait while another start holds the same GPU or the node's limit, then check the capacity."""
        start_slots, key = self.context.start_slots, self.record.instance_id
        if start_slots.try_take(key, self.slots, self.need):
            return
        self._show(PullProgress(text="Waiting for another model on this node to start."))
        await start_slots.take(key, self.slots, self.need)
        # Checked after the wait: the model that started meanwhile has taken memory.
        await capacity.check(self.context, key, self.need, force=self.record.spec.force)
        self.progress = None

    async def _choose_port(self) -> None:
        self.context.ports.discard(self.record.port)
        port = await asyncio.to_thread(ports.choose, set(self.context.ports))
        self.context.ports.add(port)
        await self._set(before_acting=True, port=port, launch_id=secrets.token_hex(16), spawning=False)

    async def _is_port_taken(self, error: EngineEnded | DeliveryFailed) -> bool:
        if isinstance(error, DeliveryFailed):
            return error.port_taken
        reported = ports.are_reported_taken(await self.log.last_lines(_LAST_LINES))
        exited = error.code == "engine_exited"
        return exited and reported and not await asyncio.to_thread(ports.is_free, self.record.port)

    async def _started(self, handle: Handle) -> None:
        """Keep the handle and forget the secret values, in one write: the engine has them, a restart needs neither."""
        spec = self.record.spec.model_copy(update={"secret_env": {}})
        await self._set(handle=handle, spec=spec)

    async def _until_ready(self) -> None:
        """Probe the engine until it is ready. EngineEnded when it dies or takes too long."""
        record = self.record
        handle = self._handle()
        await self.log.follow(self.delivery, handle)
        begun = record.spawned_monotonic or clock.monotonic()
        while True:
            await self._require_running(handle)
            result = await probe.check(self.context, record)
            # "Ready" makes the master route requests to the port. So after a good probe: does this engine own the port
            # (another program may have answered), and does it still run (it may have died since, and another taken
            # its port)?
            if result is ProbeResult.READY and await probe.is_own_engine(self.delivery, handle, record):
                await self._require_running(handle)
                self.progress = None
                seconds = round(max(0.0, clock.monotonic() - begun), 3)
                known: dict[str, Any] = {"context_length": await probe.context_length(self.context, record)}
                await self._set(state=InstanceState.READY, ready_at=clock.now_text(), start_seconds=seconds, **known)
                return
            if clock.monotonic() - begun > record.spec.start_timeout_seconds:
                raise EngineEnded(
                    "start_timeout",
                    f"The engine was not ready after {record.spec.start_timeout_seconds} s and was stopped. Check its "
                    "last lines, or increase the start timeout.",
                )
            if result is ProbeResult.LOADING and record.state is InstanceState.STARTING:
                await self._set(state=InstanceState.LOADING)
            await self._show_last_line()
            await self.log.enforce_limit()
            await asyncio.sleep(self.context.intervals.starting_seconds)

    async def _show_last_line(self) -> None:
        text = await self.log.last_line()
        if text and (self.progress is None or self.progress.text != text):
            self._show(PullProgress(text=text))

    async def _watch(self) -> None:
        """Watch health, memory and log length until the engine ends."""
        record, intervals = self.record, self.context.intervals
        handle = self._handle()
        await self.log.follow(self.delivery, handle)
        failures, measured = 0, 0.0
        while True:
            # Before the probe: an engine that ended is reported with its exit code, not as unhealthy.
            await self._require_running(handle)
            if clock.monotonic() - measured >= intervals.memory_seconds:
                measured = clock.monotonic()
                self.memory_bytes = await self.delivery.memory_bytes(handle)
            await self.log.enforce_limit()
            if clock.monotonic() < self._suspect_until:
                await asyncio.sleep(_DYING_POLL_SECONDS)
                continue
            result = await probe.check(self.context, record)
            failures = 0 if result is ProbeResult.READY else failures + 1
            if failures == 0 and record.state is InstanceState.UNHEALTHY:
                await self._set(state=InstanceState.READY, reason=None, reason_code=None)
            elif failures >= intervals.unhealthy_failures:
                await self._unhealthy("The engine is running but fails its health checks.")
            self._suspected.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(intervals.watching_seconds):
                    await self._suspected.wait()

    async def _require_running(self, handle: Handle) -> None:
        while not (observed := await self.delivery.observe(handle)).running:
            if not observed.in_doubt_seconds:
                raise exit_of(observed)
            await self._unhealthy("The engine ended. Checking whether Docker is being restarted.")
            await asyncio.sleep(min(_DOUBT_POLL_SECONDS, observed.in_doubt_seconds))

    async def _unhealthy(self, reason: str) -> None:
        """Set the state of an engine that was ready, or its newer reason."""
        record = self.record
        if record.state is InstanceState.READY or (record.state is InstanceState.UNHEALTHY and record.reason != reason):
            await self._set(state=InstanceState.UNHEALTHY, reason=reason, reason_code="unhealthy")

    async def _stop(self, working: asyncio.Task[None] | None) -> None:
        """Stop the engine for good; retried for as long as it fails."""
        # The spawn first: it cannot be cancelled, and an engine that appears after its stop would run unwatched.
        if self._spawn is not None:
            await asyncio.wait([self._spawn])
        # Then the task that watches, so that it does not report the exit that this stop causes as a crash.
        if working is not None:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        if not self.record.is_live:
            return
        while True:
            try:
                observed = await self._end_engine(self.record.stop_grace_seconds)
                await self._conclude(EngineEnded("stopped", "Stopped on request.", observed))
            except DeliveryFailed as error:
                await self._set(state=InstanceState.STOPPING, reason=str(error), reason_code=error.code)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _end_engine(self, grace_seconds: float) -> EngineObservation | None:
        """Stop the engine of this launch. None when there is none."""
        handle = self.record.handle
        if handle is None and self.record.launch_id:
            handle = await self.delivery.recover(self.record.launch_id, None)
            if handle is not None:
                self.record.handle = handle
        return None if handle is None else await self.delivery.stop(handle, grace_seconds)

    async def finish(self, end: EngineEnded) -> None:
        """Remove the remains of the engine, then record how it ended.

        Each step may run twice. The record is closed last: recovery skips a closed record, so an agent that is killed
        before the last line does all of this again, and one killed after it has nothing left to do.
        """
        record = self.record
        observed = end.observed
        if end.code not in {"engine_exited", "stopped", "docker_restarted"}:
            observed = await self._end_after_failure() or observed
        # The log before the container: removing the container ends its output.
        await self.log.end_follow()
        lines = await self.log.last_lines(_LAST_LINES)
        await self._clean()
        # Ports and slots only now: until the engine is gone they are in use, whatever the record says.
        self.context.ports -= {record.port, record.rendezvous_port}
        self.progress, self.memory_bytes = None, None
        await self.context.start_slots.release(record.instance_id)
        requests = self.context.requests.suspects(record.instance_id)
        await self._set(**endings.closing(record, end, observed, requests, lines))

    async def _end_after_failure(self) -> EngineObservation | None:
        try:
            return await self._end_engine(self.record.stop_grace_seconds)
        except DeliveryFailed:
            _log.exception("instance %s: the engine could not be stopped", self.record.instance_id)
            return None

    async def _clean(self) -> None:
        await self.log.end_follow()
        if self.record.handle is None:
            return
        try:
            await self.delivery.clean(self.record.handle)
        except DeliveryFailed:
            _log.exception("instance %s: the remains of the engine could not be removed", self.record.instance_id)

    def _handle(self) -> Handle:
        if self.record.handle is None:
            raise EngineEnded("internal", "The agent lost track of this engine.")
        return self.record.handle

    def _show(self, progress: PullProgress) -> None:
        """Report progress, which is not written to disk."""
        self.progress = progress
        self.context.changed(self.view())

    async def _set(self, *, before_acting: bool = False, **changes: Any) -> None:
        """Change the record, write it to disk, report it.

        A full disk must not leave an engine unwatched: the change is reported all the same and written with the next
        one. Only an intent has to be on disk: with `before_acting`, DeliveryFailed when it is not.
        """
        for name, value in changes.items():
            setattr(self.record, name, value)
        try:
            await self.context.records.save(self.record)
        except OSError as error:
            if before_acting:
                raise state_unwritable(error) from error
            _log.exception("instance %s: the record cannot be written", self.record.instance_id)
        # After the write, so that the master does not learn of a state that a killed agent would have forgotten.
        self.context.changed(self.view())
