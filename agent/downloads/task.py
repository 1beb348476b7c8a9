"""The task that fetches one set, shared by every download of it."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from agent import patience, unreadable
from agent.common.reason import Reason
from agent.downloads.failures import DownloadFailed
from agent.downloads.fetch import FetchContext, fetch, run_to_completion
from agent.downloads.host_pauses import HostPauses
from agent.downloads.hub import HubClient, RetryPolicy, endpoint_of
from agent.downloads.set_lock import SetLock
from agent.downloads.space import DiskSpace
from agent.downloads.speed import Speed
from agent.downloads.staging import Locked, Staging
from agent.wire.downloads import DownloadFile, DownloadSpec, DownloadState

_log = logging.getLogger("mirbad.agent.downloads")

FILES_AT_ONCE = 3
_LOCK_SECONDS = 1.0
_ROOT_SECONDS = 2.0
_LOOK_SECONDS = 10.0


@dataclass
class DownloadTask:
    """One set: its progress, and the work of fetching it. `tokens` are by download, the newest last.

    `root_problem` returns why the models root is not the one that was there before. A `resumed` set waits for that one,
    a new one fails.
    """

    spec: DownloadSpec
    staging: Staging
    space: DiskSpace
    retry_policy: RetryPolicy
    slots: asyncio.Semaphore
    pauses: HostPauses = field(default_factory=HostPauses)
    root_problem: Callable[[], Reason | None] = lambda: None
    resumed: bool = False
    state: DownloadState = DownloadState.WAITING
    text: str = ""
    done_bytes: int = 0
    files_done: int = 0
    tokens: dict[str, str] = field(default_factory=dict)
    speed: Speed = field(default_factory=Speed)
    _statuses: dict[str, str] = field(default_factory=dict)
    _warning: str = ""
    _hub: HubClient | None = None

    def token(self) -> str | None:
        """Return the newest token."""
        return next(reversed(self.tokens.values()), None)

    def paused(self) -> tuple[str, datetime] | None:
        """Return the host that asked for a pause and its end, while files wait for it."""
        return None if self._hub is None else self._hub.paused()

    async def run(self) -> None:
        """Fetch the set. DownloadFailed when it fails."""
        while self.resumed and (problem := await self._look_at_root()) is not None:
            self.text = problem
            await asyncio.sleep(_ROOT_SECONDS)
        self.text = "Waiting for another download on this node."
        async with self.slots:
            await self._require_root()
            await asyncio.to_thread(self.staging.prepare)
            await self._with_lock()

    async def _look_at_root(self) -> Reason | None:
        root = self.staging.root
        try:
            return await patience.answer(_LOOK_SECONDS, f"models root {root}", self.root_problem)
        except OSError as error:
            return Reason("models_root_unusable", unreadable.why(root, error))

    async def _require_root(self) -> None:
        if (problem := await self._look_at_root()) is not None:
            raise DownloadFailed(problem.code, problem)

    async def _with_lock(self) -> None:
        while True:
            lock = self.staging.locked()
            try:
                kept = await asyncio.to_thread(lock.__enter__)
            except Locked as error:
                self.text = f"Waiting for another agent (process {error.holder}) with the same folder."
                await asyncio.sleep(_LOCK_SECONDS)
                continue
            except OSError as error:
                place = Path(str(error.filename or self.staging.root))
                text = f"The folder {self.spec.folder} cannot be locked: {unreadable.why(place, error)}"
                raise DownloadFailed("models_root_unwritable", text) from error
            try:
                await self._bring(kept)
                return
            finally:
                lock.__exit__(None, None, None)

    async def _bring(self, lock: SetLock) -> None:
        self._warning = lock.problem
        self.state, self.text = DownloadState.CHECKING, lock.problem or "Checking existing files."
        await asyncio.to_thread(self.staging.prepare)
        if not lock.problem:
            await asyncio.to_thread(self.staging.inherit)
        await asyncio.to_thread(self.staging.require_ours, self.spec)
        absent = await asyncio.to_thread(self.staging.missing, self.spec)
        self.files_done = len(self.spec.files) - len(absent)
        self.done_bytes = self.spec.total_bytes - sum(file.size_bytes for file in absent)
        async with self.space.reserved(self.staging, absent):
            self.state, self.text = DownloadState.DOWNLOADING, lock.problem
            if absent:
                await self._fetch_all(absent)
        self.state, self.text = DownloadState.PLACING, "Moving the files into place."
        await self._require_root()
        if not lock.problem and (problem := await asyncio.to_thread(lock.lost)):
            _log.warning("%s", problem)
        try:
            await run_to_completion(lambda: self.staging.place(self.spec))
        except OSError as error:
            text = f"The files cannot be moved into place: {error.strerror}. Fix this, then start the download again."
            raise DownloadFailed("disk_failed", text) from error
        self.done_bytes, self.text = self.spec.total_bytes, ""

    async def _fetch_all(self, absent: list[DownloadFile]) -> None:
        hub = self._hub = HubClient(endpoint_of(self.spec), self.retry_policy, self.pauses)
        by_digest: dict[str, list[DownloadFile]] = {}
        for file in absent:
            by_digest.setdefault(file.digest, []).append(file)
        slots = asyncio.Semaphore(FILES_AT_ONCE)

        async def bring(same: list[DownloadFile]) -> None:
            async with slots:
                await self._fetch(hub, same)

        try:
            async with asyncio.TaskGroup() as group:
                for same in by_digest.values():
                    group.create_task(bring(same))
        except* DownloadFailed as failures:
            raise _first(failures) from None
        finally:
            self._hub = None
            await hub.close()

    async def _fetch(self, hub: HubClient, same: list[DownloadFile]) -> None:
        file = same[0]
        resumed = False

        def on_bytes(count: int) -> None:
            # The first count is of bytes from an earlier try; they are progress, not speed.
            nonlocal resumed
            self.done_bytes += count
            if resumed and count > 0:
                self.speed.add(count)
            resumed = True

        def on_status(text: str) -> None:
            self._statuses.pop(file.path, None)
            if text:
                self._statuses[file.path] = text
            # of several files the newest; without one what holds for the whole set
            self.text = next(reversed(self._statuses.values()), self._warning)

        context = FetchContext(hub, self.spec, self.token, on_bytes, on_status)
        await fetch(context, file, self.staging.parts, self.staging.tree / file.path)
        await run_to_completion(lambda: self.staging.note_fetched(file))
        self.files_done += 1
        for other in same[1:]:
            await run_to_completion(lambda other=other: self.staging.copy(file, other))  # type: ignore[misc]
            self.files_done += 1
            self.done_bytes += other.size_bytes
        _log.info("%s of %s verified", file.path, self.spec.repository)


def _first(failures: BaseExceptionGroup[DownloadFailed]) -> DownloadFailed:
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, DownloadFailed)  # noqa: S101 - the clause lets nothing else through
    return first
