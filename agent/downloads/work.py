"""One set at work, for everybody who asked for it."""

import asyncio
import logging
from dataclasses import dataclass, field

from agent.downloads.failures import DownloadFailed
from agent.downloads.fetch import Line, fetch, to_the_end
from agent.downloads.hub import Hub, Patience, endpoint_of
from agent.downloads.speed import Speed
from agent.downloads.staging import FreeBytes, Locked, Staging
from agent.wire.downloads import DownloadFile, DownloadSpec, DownloadState

_log = logging.getLogger("mirbad.agent.downloads")

FILES_AT_ONCE = 3
_LOCK_SECONDS = 1.0


@dataclass
class Work:
    """One set: its progress, and the task that brings it. `tokens` are by download, the newest last."""

    spec: DownloadSpec
    staging: Staging
    free: FreeBytes
    patience: Patience
    turn: asyncio.Semaphore
    state: DownloadState = DownloadState.WAITING
    text: str = ""
    done_bytes: int = 0
    files_done: int = 0
    tokens: dict[str, str] = field(default_factory=dict)
    speed: Speed = field(default_factory=Speed)
    _words: dict[str, str] = field(default_factory=dict)

    def token(self) -> str | None:
        """The token to show now; one that was given later is believed more."""
        return next(reversed(self.tokens.values()), None)

    async def run(self) -> None:
        """Bring the set. DownloadFailed when that cannot be."""
        self.text = "Waiting for another download of this node."
        async with self.turn:
            await asyncio.to_thread(self.staging.prepare)
            await self._with_lock()

    async def _with_lock(self) -> None:
        while True:
            lock = self.staging.locked()
            try:
                await asyncio.to_thread(lock.__enter__)
            except Locked as error:
                self.text = (
                    f"Another agent of this machine (process {error.holder}) downloads the same folder; waiting."
                )
                await asyncio.sleep(_LOCK_SECONDS)
                continue
            try:
                await self._bring()
                return
            finally:
                lock.__exit__(None, None, None)

    async def _bring(self) -> None:
        self.state, self.text = DownloadState.CHECKING, "Looking at what is here already."
        await asyncio.to_thread(self.staging.prepare)
        await asyncio.to_thread(self.staging.require_ours, self.spec)
        absent = await asyncio.to_thread(self.staging.missing, self.spec)
        self.files_done = len(self.spec.files) - len(absent)
        self.done_bytes = self.spec.total_bytes - sum(file.size_bytes for file in absent)
        await asyncio.to_thread(self.staging.require_room, absent, self.free)
        self.state, self.text = DownloadState.DOWNLOADING, ""
        if absent:
            await self._fetch_all(absent)
        self.state, self.text = DownloadState.PLACING, "Putting the files in place."
        try:
            await to_the_end(lambda: self.staging.place(self.spec))
        except OSError as error:
            text = f"The files cannot be put in place: {error.strerror}. Start the download again once that is mended."
            raise DownloadFailed("disk_failed", text) from error
        self.done_bytes, self.text = self.spec.total_bytes, ""

    async def _fetch_all(self, absent: list[DownloadFile]) -> None:
        hub = Hub(endpoint_of(self.spec), self.patience)
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
            await hub.close()

    async def _fetch(self, hub: Hub, same: list[DownloadFile]) -> None:
        file = same[0]
        resumed = False

        def moved(count: int) -> None:
            # The first count is of bytes that lay here before; they are progress, not speed.
            nonlocal resumed
            self.done_bytes += count
            if resumed and count > 0:
                self.speed.add(count)
            resumed = True

        def said(words: str) -> None:
            if words:
                self._words[file.path] = words
            else:
                self._words.pop(file.path, None)
            self.text = next(iter(self._words.values()), "")

        line = Line(hub, self.spec, self.token, moved, said)
        await fetch(line, file, self.staging.parts, self.staging.tree / file.path)
        self.files_done += 1
        for other in same[1:]:
            await to_the_end(lambda other=other: self.staging.copy(file, other))  # type: ignore[misc]
            self.files_done += 1
            self.done_bytes += other.size_bytes
        _log.info("%s of %s is verified", file.path, self.spec.repository)


def _first(failures: BaseExceptionGroup[DownloadFailed]) -> DownloadFailed:
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, DownloadFailed)  # noqa: S101 - the clause lets nothing else through
    return first
