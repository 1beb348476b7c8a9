"""The log of one engine: followed while the engine runs, read by the master, kept within its limit.

The logs of the two runs before it are kept beside it, so that the reason of an end can be read after the next start.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from agent.deliveries.base import EngineDelivery, Handle
from agent.logs import LogFile
from agent.running import kept_logs
from agent.running.record import InstanceRecord
from agent.wire.instances import LogSlice

_FOLLOW_END_SECONDS = 3.0


class InstanceLog:
    """The log at `path`. `save` writes the record, whose `log_base` counts the bytes that were cut from the log."""

    def __init__(self, record: InstanceRecord, path: Path, save: Callable[[], Awaitable[None]]) -> None:
        self.path = path
        self._record = record
        self._save = save
        self.secrets = (record.api_key, *(value.get_secret_value() for value in record.spec.secret_env.values()))
        self._reading = asyncio.Lock()
        self._follow: asyncio.Task[None] | None = None

    @property
    def file(self) -> LogFile:
        """The file with the offset of its first byte."""
        return LogFile(self.path, self._record.log_base, self.secrets)

    async def read(self, lines: int, after: int | None, run: int = 0) -> LogSlice:
        """Return the last `lines` of the log, or at most as many from the offset `after`.

        `run` 0 is the present run, 1 the run before it.
        """
        if run:
            earlier = LogFile(kept_logs.path_of(self.path, run), 0, self.secrets)
            return await asyncio.to_thread(_read, earlier, lines, after)
        async with self._reading:
            return await asyncio.to_thread(_read, self.file, lines, after)

    async def begin_run(self, before: LogFile | None = None) -> None:
        """Keep the log of the run before, as the file `before` has it, and begin an empty one."""
        file = self.file if before is None else replace(before, secrets=(*before.secrets, *self.secrets))
        await asyncio.to_thread(kept_logs.begin_run, file)

    async def last_lines(self, count: int) -> tuple[str, ...]:
        """Return the last `count` lines."""
        return (await asyncio.to_thread(self.file.tail, count)).lines

    async def last_line(self) -> str:
        """Return the last line that is not blank, "" when there is none."""
        return await asyncio.to_thread(self.file.last_line)

    async def enforce_limit(self) -> None:
        """Rotate a log that is over its limit."""
        if not await asyncio.to_thread(self.file.is_too_long):
            return
        async with self._reading:
            # A reader between emptying and counting would take its offset for one in the new file.
            self._record.log_base += await asyncio.to_thread(self.file.rotate)
        await self._save()

    async def follow(self, delivery: EngineDelivery, handle: Handle) -> None:
        """Copy the engine's output into the log in the background. Does nothing while that is running."""
        if self._follow is not None and not self._follow.done():
            return
        if delivery.reads_log_again and self._record.log_base:
            self._record.log_base = 0
            await asyncio.to_thread(self.file.older.unlink, missing_ok=True)
            await self._save()
        self._follow = asyncio.create_task(delivery.follow(handle, self.path))

    async def end_follow(self) -> None:
        """Stop following, after a moment in which the last lines can still arrive."""
        if self._follow is None:
            return
        _, late = await asyncio.wait([self._follow], timeout=_FOLLOW_END_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(self._follow, return_exceptions=True)
        self._follow = None

    async def close(self) -> None:
        """Stop following at once; the engine keeps running."""
        if self._follow is not None:
            self._follow.cancel()
            await asyncio.gather(self._follow, return_exceptions=True)


def _read(log: LogFile, lines: int, after: int | None) -> LogSlice:
    return log.tail(lines) if after is None else log.after(after, lines)
