"""Usage per key, model and day: counted in memory and written in batches, in a thread of its own."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Protocol

import structlog

from mirbad.kernel import clock
from models_app.gateway.access import AccessLog, AccessLogLine
from models_app.gateway.usage import TokenUsage
from models_app.usage import Place, Sums

log = structlog.get_logger(__name__)

_LINES_WAITING = 200_000
WRITE_SECONDS = 3.0
"""The interval of writes: the most that a killed process loses of its counts."""


class UsageSink(Protocol):
    """The storage of sums. Both methods block and run in one thread."""

    def write(self, used: set[int], sums: Mapping[Place, Sums]) -> None:
        """Record that the keys `used` were used now, and add `sums` to the stored ones."""

    def close(self) -> None:
        """Release the resources of the calling thread."""


class UsageRecorder:
    """The counts of this process, in the event loop. `start` begins to write in intervals, `stop` writes the rest."""

    def __init__(self, sink: UsageSink, access: AccessLog | None = None) -> None:
        self._sink = sink
        self._access = access
        self._lines: list[AccessLogLine] = []
        self._lines_lost = 0
        self._used: set[int] = set()
        self._sums: dict[Place, Sums] = {}
        self._today: date = clock.now().date()
        self._failing = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="usage")
        self._task: asyncio.Task[None] | None = None

    def used(self, key_id: int) -> None:
        """Record that a key was used."""
        self._used.add(key_id)

    def count(self, key_id: int, model_id: str, *, failed: bool, usage: TokenUsage | None) -> None:
        """Count one finished request for a model. `usage` None: the response reported none."""
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

    def line(self, line: AccessLogLine) -> None:
        """Add a line to the access log, if there is one."""
        if self._access is None:
            return
        if len(self._lines) < _LINES_WAITING:
            self._lines.append(line)
        else:
            self._lines_lost += 1

    @property
    def wants_lines(self) -> bool:
        """Return whether there is an access log."""
        return self._access is not None

    async def start(self) -> None:
        """Begin to write every `WRITE_SECONDS`."""
        self._task = asyncio.create_task(self._run(), name="usage")

    async def stop(self) -> None:
        """Write the rest and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.write()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._sink.close)
        if self._access is not None:
            self._access.close()
        self._thread.shutdown(wait=False)

    async def write(self) -> None:
        """Write now. Sums that cannot be written are kept for the next write."""
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
                log.exception("usage cannot be written; it is kept in memory")
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
            log.warning("access log lines were lost", lines=lost)

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
            self._sink.close()  # never reuse a broken database connection
            raise
