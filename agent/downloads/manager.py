"""All downloads of a node: begun, shared, cancelled, taken up again after the agent or the machine went down."""

import asyncio
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from agent.clock import monotonic, now_text
from agent.config import AgentConfig
from agent.downloads import names
from agent.downloads.failures import DownloadFailed
from agent.downloads.hub import Patience
from agent.downloads.staging import HIDDEN, FreeBytes, Staging, free_bytes
from agent.downloads.work import Work
from agent.errors import AgentError
from agent.state import ensure_private_dir, read_json, write_json
from agent.wire.downloads import FINAL_STATES, DownloadSpec, DownloadState, DownloadView
from agent.wire.errors import AgentCode

_log = logging.getLogger("mirbad.agent.downloads")

SETS_AT_ONCE = 2
_KEPT = 200
_TOKEN_SECONDS = 900.0


class _Record(BaseModel):
    """What is on disk of a download; no token ever is."""

    spec: DownloadSpec
    view: DownloadView


@dataclass
class _Entry:
    """One download: what was asked, what became of it, and the set at work while there is one."""

    spec: DownloadSpec
    view: DownloadView
    work: Work | None = None


class Downloads:
    """Call `recover` before anything else. `changed` is called when a set is there; the rest is for tests."""

    def __init__(
        self,
        config: AgentConfig,
        changed: Callable[[], None] = lambda: None,
        *,
        free: FreeBytes = free_bytes,
        patience: Patience | None = None,
    ) -> None:
        self._changed = changed
        self._root = config.models_root
        self._folder = config.state_dir / "downloads"
        self._free = free
        self._patience = patience or Patience()
        self._entries: dict[str, _Entry] = {}
        self._works: dict[str, tuple[Work, asyncio.Task[None]]] = {}
        self._tokens: dict[str, tuple[float, str]] = {}
        self._turn = asyncio.Semaphore(SETS_AT_ONCE)
        self._door = asyncio.Lock()

    async def recover(self) -> None:
        """Read what is on disk and go on with what was not over. No token outlives the agent."""
        await asyncio.to_thread(_clear_trash, self._root)
        for record in await asyncio.to_thread(self._load):
            entry = self._entries[record.view.download_id] = _Entry(record.spec, record.view)
            if record.view.state not in FINAL_STATES:
                self._join(entry)

    def _load(self) -> list[_Record]:
        ensure_private_dir(self._folder)
        found = []
        for path in self._folder.glob("*.json"):
            try:
                found.append(_Record.model_validate(read_json(path)))
            except (ValueError, ValidationError):
                _log.warning("%s is no record of a download and is left out", path.name)
        return sorted(found, key=lambda record: record.view.started_at)

    def give_token(self, download_id: str, token: str) -> None:
        """Keep a hub token in memory for `download_id`, which may come within 15 minutes or be at work already."""
        names.check_id(download_id)
        entry = self._entries.get(download_id)
        if entry is not None and entry.work is not None:
            entry.work.tokens.pop(download_id, None)
            entry.work.tokens[download_id] = token
            return
        now = monotonic()
        self._tokens = {key: held for key, held in self._tokens.items() if now - held[0] < _TOKEN_SECONDS}
        self._tokens[download_id] = (now, token)

    async def begin(self, download_id: str, spec: DownloadSpec) -> DownloadView:
        """Bring a set and return at once; the same id gets the same download, the same set the same work.

        AgentError INVALID_REQUEST, SPEC_REJECTED; START_CONFLICT while another set comes into the same folder.
        """
        names.check_id(download_id)
        names.check(spec)
        async with self._door:
            known = self._entries.get(download_id)
            if known is not None and known.view.state not in (DownloadState.FAILED, DownloadState.CANCELLED):
                return self.view(download_id)
            if (other := self._works.get(spec.folder)) is not None and not _same_set(other[0].spec, spec):
                text = f"Another set comes into the folder {spec.folder} now; wait for it, or cancel it."
                raise AgentError(AgentCode.START_CONFLICT, text)
            view = DownloadView(
                download_id=download_id,
                folder=spec.folder,
                repository=spec.repository,
                commit=spec.commit,
                state=DownloadState.WAITING,
                files_total=len(spec.files),
                total_bytes=spec.total_bytes,
                started_at=now_text(),
            )
            entry = _Entry(spec, view)
            await self._save(entry)
            self._entries[download_id] = entry
            self._join(entry)
            return self.view(download_id)

    def _join(self, entry: _Entry) -> None:
        folder, download_id = entry.spec.folder, entry.view.download_id
        running = self._works.get(folder)
        if running is None:
            work = Work(entry.spec, Staging(self._root, folder), self._free, self._patience, self._turn)
            running = (work, asyncio.create_task(self._run(work), name=f"download {folder}"))
            self._works[folder] = running
        entry.work = running[0]
        if (held := self._tokens.pop(download_id, None)) is not None:
            entry.work.tokens[download_id] = held[1]

    async def _run(self, work: Work) -> None:
        state, code, reason = DownloadState.READY, None, None
        try:
            await work.run()
        except DownloadFailed as error:
            state, code, reason = DownloadState.FAILED, error.code, error.reason
            _log.warning("the download of %s ends: %s", work.spec.repository, error.reason)
        except asyncio.CancelledError:
            # Who cancelled has said what the downloads read; an agent that ends takes them up again at its next start.
            self._works.pop(work.spec.folder, None)
            raise
        except Exception:  # noqa: BLE001 - the edge of a background task
            # The task's edge: a fault of ours is a failed download, and the agent lives on.
            _log.exception("the download of %s failed in a way that nobody foresaw", work.spec.repository)
            state, code = DownloadState.FAILED, "internal"
            reason = "The agent failed on this download; its log has the reason."
        self._works.pop(work.spec.folder, None)
        self._changed()
        for entry in [entry for entry in self._entries.values() if entry.work is work]:
            await self._end(entry, state, code, reason)

    async def _end(self, entry: _Entry, state: DownloadState, code: str | None, reason: str | None) -> None:
        final = {"state": state, "reason_code": code, "reason": reason, "finished_at": now_text()}
        entry.view = self._shown(entry).model_copy(update={**final, "bytes_per_second": None, "text": ""})
        entry.work = None
        try:
            await self._save(entry)
        except AgentError as error:
            # This process knows how it ended; after a restart it looks at the set again and comes to the same end.
            _log.error("%s", error.detail)
        await self._retain()

    async def cancel(self, download_id: str) -> DownloadView:
        """End a download; what has come stays for the next one. The set goes on while another download wants it."""
        async with self._door:
            entry = self._entry(download_id)
            work = entry.work
            if work is None:
                return self.view(download_id)
            await self._end(entry, DownloadState.CANCELLED, "cancelled", "It was cancelled.")
            work.tokens.pop(download_id, None)
            if not any(other.work is work for other in self._entries.values()):
                await self._stop(work)
            return self.view(download_id)

    async def _stop(self, work: Work) -> None:
        running = self._works.get(work.spec.folder)
        if running is not None:
            running[1].cancel()
            await asyncio.gather(running[1], return_exceptions=True)

    async def forget(self, download_id: str) -> None:
        """Cancel a download and remove its record and its unfinished bytes. AgentError NOT_FOUND."""
        await self.cancel(download_id)
        async with self._door:
            entry = self._entry(download_id)
            del self._entries[download_id]
            await asyncio.to_thread((self._folder / f"{download_id}.json").unlink, missing_ok=True)
            folder = entry.spec.folder
            if folder not in self._works:
                await asyncio.to_thread(Staging(self._root, folder).discard)

    def is_busy(self, folder: str) -> bool:
        """Whether a set comes into `folder` now."""
        return folder in self._works

    def view(self, download_id: str) -> DownloadView:
        """One download as it is now. AgentError NOT_FOUND."""
        return self._shown(self._entry(download_id))

    def views(self) -> tuple[DownloadView, ...]:
        """All of them, the newest first."""
        return tuple(self._shown(entry) for entry in reversed(self._entries.values()))

    async def close(self) -> None:
        """The agent ends: stop fetching. Nothing is lost; the next start goes on."""
        running = [task for _, task in self._works.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _entry(self, download_id: str) -> _Entry:
        if (entry := self._entries.get(download_id)) is None:
            raise AgentError(AgentCode.NOT_FOUND, f"this agent knows no download {download_id}")
        return entry

    def _shown(self, entry: _Entry) -> DownloadView:
        work = entry.work
        if work is None:
            return entry.view
        changes: dict[str, Any] = {
            "state": work.state,
            "text": work.text,
            "files_done": work.files_done,
            "done_bytes": max(work.done_bytes, 0),
            "bytes_per_second": work.speed.per_second() if work.state is DownloadState.DOWNLOADING else None,
        }
        return entry.view.model_copy(update=changes)

    async def _save(self, entry: _Entry) -> None:
        record = _Record(spec=entry.spec, view=entry.view)
        path = self._folder / f"{entry.view.download_id}.json"
        try:
            await asyncio.to_thread(write_json, path, record.model_dump(mode="json"))
        except OSError as error:
            raise AgentError(
                AgentCode.INTERNAL, f"the record of a download cannot be written: {error.strerror}"
            ) from error

    async def _retain(self) -> None:
        over = [key for key, entry in self._entries.items() if entry.work is None]
        for key in over[: max(len(self._entries) - _KEPT, 0)]:
            del self._entries[key]
            await asyncio.to_thread((self._folder / f"{key}.json").unlink, missing_ok=True)


def _same_set(one: DownloadSpec, other: DownloadSpec) -> bool:
    return one.model_copy(update={"allow_pickle": False}) == other.model_copy(update={"allow_pickle": False})


def _clear_trash(root: Path) -> None:
    """Remove what an interrupted deletion left. Blocking."""
    for path in (root / HIDDEN).glob("trash-*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
