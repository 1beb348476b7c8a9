"""Adds up what was used and writes it for many requests at once, in a thread of its own."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Protocol

import structlog

from mirbad.kernel import clock
from models_app.gateway.access import AccessLog, Line
from models_app.gateway.usage import Usage
from models_app.usage import Place, Sums

log = structlog.get_logger(__name__)

_LINES_WAITING = 200_000
WRITE_SECONDS = 3.0
"""What a process that is killed may lose of its counts."""


class Sink(Protocol):
    """Where sums go; both methods block and run in one thread."""

    def write(self, used: set[int], sums: Mapping[Place, Sums]) -> None:
        """Note which keys were used just now, and add the sums to what stands."""

    def close(self) -> None:
        """Give back what the calling thread holds."""


class Recorder:
    """Counts in memory, in the event loop; `start` begins to write, `stop` writes the rest."""

    def __init__(self, sink: Sink, access: AccessLog | None = None) -> None:
        self._sink = sink
        self._access = access
        self._lines: list[Line] = []
        self._lines_lost = 0
        self._used: set[int] = set()
        self._sums: dict[Place, Sums] = {}
        self._today: date = clock.now().date()
        self._failing = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="usage")
        self._task: asyncio.Task[None] | None = None

    def used(self, key_id: int) -> None:
        """A key was used."""
        self._used.add(key_id)

    def count(self, key_id: int, model_id: str, *, failed: bool, usage: Usage | None) -> None:
        """One request for a model is over. `usage` None: the answer reported none."""
        place = (key_id, model_id, self._today)
        sums = self._sums.get(place)
        if sums is None:
            sums = self._sums[place] = Sums()
        sums.requests += 1
        if failed:
            sums.failed += 1
        if usage is None:
            sums.unreported += 1
        else:
            sums.prompt_tokens += usage.prompt or 0
            sums.completion_tokens += usage.completion or 0

    def line(self, line: Line) -> None:
        """One request, for the access log."""
        if self._access is None:
            return
        if len(self._lines) < _LINES_WAITING:
            self._lines.append(line)
        else:
            self._lines_lost += 1

    @property
    def wants_lines(self) -> bool:
        """Whether there is an access log."""
        return self._access is not None

    async def start(self) -> None:
        """Write every `WRITE_SECONDS` from now on."""
        self._task = asyncio.create_task(self._run(), name="usage")

    async def stop(self) -> None:
        """Write what is left, then end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.write()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._sink.close)
        if self._access is not None:
            self._access.close()
        self._thread.shutdown(wait=False)

    async def write(self) -> None:
        """Write now. What cannot be written is kept for the next time."""
        self._today = clock.now().date()
        await self._write_lines()
        used, self._used = self._used, set()
        sums, self._sums = self._sums, {}
        if not used and not sums:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._work, used, sums)
        except Exception:
            if not self._failing:
                log.exception("the use of keys cannot be written; it is kept in memory")
            self._failing = True
            self._keep(used, sums)
        else:
            self._failing = False

    async def _write_lines(self) -> None:
        if self._access is None or not self._lines:
            return
        lines, self._lines = self._lines, []
        lost, self._lines_lost = self._lines_lost, 0
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._access.write, lines)
        except OSError as error:
            lost += len(lines)
            log.warning("the access log cannot be written", reason=str(error))
        if lost:
            log.warning("lines of the access log were lost", lines=lost)

    def _keep(self, used: set[int], sums: dict[Place, Sums]) -> None:
        self._used |= used
        for place, more in self._sums.items():
            kept = sums.setdefault(place, Sums())
            kept.requests += more.requests
            kept.failed += more.failed
            kept.unreported += more.unreported
            kept.prompt_tokens += more.prompt_tokens
            kept.completion_tokens += more.completion_tokens
        self._sums = sums

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            await self.write()

    def _work(self, used: set[int], sums: dict[Place, Sums]) -> None:
        try:
            self._sink.write(used, sums)
        except BaseException:
            self._sink.close()  # a connection that broke is not used again
            raise
