"""All downloads of a node: started, shared, cancelled, and resumed after a restart of the agent or machine."""

import asyncio
import logging
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from agent import models_root, patience, unreadable
from agent.clock import as_text, monotonic, now_text
from agent.common.reason import Reason
from agent.config import AgentConfig
from agent.downloads import names
from agent.downloads.failures import DownloadFailed
from agent.downloads.host_pauses import HostPauses
from agent.downloads.hub import RetryPolicy
from agent.downloads.space import DiskSpace, FreeBytes, free_bytes
from agent.downloads.staging import HIDDEN, Staging
from agent.downloads.task import DownloadTask
from agent.errors import AgentError
from agent.state import ensure_private_dir, read_json, write_json
from agent.wire.downloads import FINAL_STATES, DownloadSpec, DownloadState, DownloadView
from agent.wire.errors import AgentCode

_log = logging.getLogger("mirbad.agent.downloads")

SETS_AT_ONCE = 2
_KEPT = 200
_TOKEN_SECONDS = 900.0
_CLEAR_SECONDS = 30.0
_LOOK_SECONDS = 10.0
_WRITER = "writer-id"


class _DownloadRecord(BaseModel):
    """The file on disk for a download; a token is never in it."""

    spec: DownloadSpec
    view: DownloadView


@dataclass
class _DownloadEntry:
    """One download: its spec, its state, and the task that fetches its set while one does."""

    spec: DownloadSpec
    view: DownloadView
    task: DownloadTask | None = None


class DownloadManager:
    """Manages downloads. Call `recover` first. `changed` is called when a set is complete; the rest is for tests."""

    def __init__(
        self,
        config: AgentConfig,
        changed: Callable[[], None] = lambda: None,
        *,
        free: FreeBytes = free_bytes,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        self._changed = changed
        self._config = config
        self._root = config.models_root
        self._folder = config.state_dir / "downloads"
        self._space = DiskSpace(free)
        self._retry_policy = retry_policy or RetryPolicy()
        self._entries: dict[str, _DownloadEntry] = {}
        self._running: dict[str, tuple[DownloadTask, asyncio.Task[None]]] = {}
        self._tokens: dict[str, tuple[float, str]] = {}
        self._slots = asyncio.Semaphore(SETS_AT_ONCE)
        self._pauses = HostPauses()
        self._writer = ""
        self._lock = asyncio.Lock()

    async def recover(self) -> None:
        """Read the records and resume unfinished downloads, without a token: tokens are in memory only."""
        try:
            await patience.answer(_CLEAR_SECONDS, f"models root {self._root}", lambda: _clear_trash(self._root))
        except OSError as error:
            _log.warning("%s", unreadable.why(self._root, error))
        for record in await asyncio.to_thread(self._load):
            entry = self._entries[record.view.download_id] = _DownloadEntry(record.spec, record.view)
            if record.view.state not in FINAL_STATES:
                self._join(entry, resumed=True)

    def _load(self) -> list[_DownloadRecord]:
        ensure_private_dir(self._folder)
        self._writer = _writer_id(self._folder / _WRITER)
        found = []
        for path in self._folder.glob("*.json"):
            try:
                found.append(_DownloadRecord.model_validate(read_json(path)))
            except (ValueError, ValidationError):
                _log.warning("%s is not a valid download record; ignored", path.name)
        return sorted(found, key=lambda record: record.view.started_at)

    def give_token(self, download_id: str, token: str) -> None:
        """Keep a hub token in memory for `download_id`, which may start within 15 minutes or run already."""
        names.check_id(download_id)
        entry = self._entries.get(download_id)
        if entry is not None and entry.task is not None:
            entry.task.tokens.pop(download_id, None)
            entry.task.tokens[download_id] = token
            return
        now = monotonic()
        self._tokens = {key: held for key, held in self._tokens.items() if now - held[0] < _TOKEN_SECONDS}
        self._tokens[download_id] = (now, token)

    async def begin(self, download_id: str, spec: DownloadSpec) -> DownloadView:
        """Start a download and return at once; the same id gets the same download, the same set the same task.

        AgentError INVALID_REQUEST, SPEC_REJECTED; START_CONFLICT while another set is downloaded into the same folder;
        MODELS_ROOT_CHANGED or SOURCE_MISSING while the disk that was there before is not.
        """
        names.check_id(download_id)
        names.check(spec)
        async with self._lock:
            known = self._entries.get(download_id)
            if known is not None and known.view.state not in (DownloadState.FAILED, DownloadState.CANCELLED):
                return self.view(download_id)
            if (problem := await self._root_problem(spec.folder)) is not None:
                raise models_root.refusal(problem)
            if (other := self._running.get(spec.folder)) is not None and not _same_set(other[0].spec, spec):
                text = f"Another download into the folder {spec.folder} is in progress. Wait for it, or cancel it."
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
            entry = _DownloadEntry(spec, view)
            await self._save(entry)
            self._entries[download_id] = entry
            self._join(entry)
            return self.view(download_id)

    async def _root_problem(self, folder: str) -> Reason | None:
        """Return why the models root is not the one before. A failure of its disk is left to the download itself."""
        try:
            return await patience.answer(
                _LOOK_SECONDS, f"models root {self._root}", lambda: models_root.problem(self._config, folder)
            )
        except OSError as error:
            _log.warning("%s", unreadable.why(self._root, error))
            return None

    def _staging(self, folder: str) -> Staging:
        return Staging(self._root, folder, self._writer)

    def _join(self, entry: _DownloadEntry, *, resumed: bool = False) -> None:
        folder, download_id = entry.spec.folder, entry.view.download_id
        running = self._running.get(folder)
        if running is None:
            task = DownloadTask(
                entry.spec,
                self._staging(folder),
                self._space,
                self._retry_policy,
                self._slots,
                self._pauses,
                lambda: models_root.problem(self._config, folder),
                resumed=resumed,
            )
            running = (task, asyncio.create_task(self._run(task), name=f"download {folder}"))
            self._running[folder] = running
        entry.task = running[0]
        if (held := self._tokens.pop(download_id, None)) is not None:
            entry.task.tokens[download_id] = held[1]

    async def _run(self, task: DownloadTask) -> None:
        state, code, reason = DownloadState.READY, None, None
        try:
            await task.run()
            await asyncio.to_thread(self._note, task.spec.folder)
        except DownloadFailed as error:
            state, code, reason = DownloadState.FAILED, error.code, error.reason
            _log.warning("the download of %s failed: %s", task.spec.repository, error.reason)
        except asyncio.CancelledError:
            # The caller of a cancel has set the state; after a shutdown the next start resumes.
            self._running.pop(task.spec.folder, None)
            raise
        except Exception:  # noqa: BLE001 - the edge of a background task
            # At the task's edge a bug is a failed download, and the agent lives on.
            _log.exception("the download of %s failed unexpectedly", task.spec.repository)
            state, code = DownloadState.FAILED, "internal"
            reason = "The agent failed on this download; see the agent's log."
        self._running.pop(task.spec.folder, None)
        self._changed()
        for entry in [entry for entry in self._entries.values() if entry.task is task]:
            await self._end(entry, state, code, reason)

    def _note(self, folder: str) -> None:
        """Remember the new folder at once: the disk may be gone before the next report."""
        try:
            models_root.note(self._config, folder)
        except OSError as error:
            _log.warning("%s", unreadable.why(self._root, error))

    async def _end(self, entry: _DownloadEntry, state: DownloadState, code: str | None, reason: str | None) -> None:
        final = {"state": state, "reason_code": code, "reason": reason, "finished_at": now_text()}
        idle = {"bytes_per_second": None, "text": "", "waits_until": None}
        entry.view = self._shown(entry).model_copy(update={**final, **idle})
        entry.task = None
        try:
            await self._save(entry)
        except AgentError as error:
            # The state is right in memory; after a restart the set is checked again, with the same result.
            _log.error("%s", error.detail)
        await self._retain()

    async def cancel(self, download_id: str) -> DownloadView:
        """Cancel a download; its bytes stay for the next one. A set that another download needs continues."""
        async with self._lock:
            entry = self._entry(download_id)
            task = entry.task
            if task is None:
                return self.view(download_id)
            await self._end(entry, DownloadState.CANCELLED, "cancelled", "Cancelled.")
            task.tokens.pop(download_id, None)
            if not any(other.task is task for other in self._entries.values()):
                await self._stop(task)
            return self.view(download_id)

    async def _stop(self, task: DownloadTask) -> None:
        running = self._running.get(task.spec.folder)
        if running is not None:
            running[1].cancel()
            await asyncio.gather(running[1], return_exceptions=True)

    async def forget(self, download_id: str) -> None:
        """Cancel a download and remove its record and its unfinished bytes. AgentError NOT_FOUND."""
        await self.cancel(download_id)
        async with self._lock:
            entry = self._entry(download_id)
            del self._entries[download_id]
            await asyncio.to_thread((self._folder / f"{download_id}.json").unlink, missing_ok=True)
            folder = entry.spec.folder
            if folder not in self._running:
                await asyncio.to_thread(self._staging(folder).discard)

    def is_busy(self, folder: str) -> bool:
        """Return whether a set is being downloaded into `folder`."""
        return folder in self._running

    def view(self, download_id: str) -> DownloadView:
        """Return one download as it is now. AgentError NOT_FOUND."""
        return self._shown(self._entry(download_id))

    def views(self) -> tuple[DownloadView, ...]:
        """Return all downloads, the newest first."""
        return tuple(self._shown(entry) for entry in reversed(self._entries.values()))

    async def close(self) -> None:
        """Stop fetching. Nothing is lost: the next start of the agent resumes."""
        running = [task for _, task in self._running.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _entry(self, download_id: str) -> _DownloadEntry:
        if (entry := self._entries.get(download_id)) is None:
            raise AgentError(AgentCode.NOT_FOUND, f"this node has no download {download_id}")
        return entry

    def _shown(self, entry: _DownloadEntry) -> DownloadView:
        task = entry.task
        if task is None:
            return entry.view
        changes: dict[str, Any] = {
            "state": task.state,
            "text": task.text,
            "files_done": task.files_done,
            "done_bytes": max(task.done_bytes, 0),
            "bytes_per_second": task.speed.per_second() if task.state is DownloadState.DOWNLOADING else None,
        }
        if (paused := task.paused()) is not None:
            host, end = paused
            changes["waits_until"] = as_text(end)
            changes["text"] = f"{host} limits requests and asked to wait until {end:%H:%M:%S} UTC."
        return entry.view.model_copy(update=changes)

    async def _save(self, entry: _DownloadEntry) -> None:
        record = _DownloadRecord(spec=entry.spec, view=entry.view)
        path = self._folder / f"{entry.view.download_id}.json"
        try:
            await asyncio.to_thread(write_json, path, record.model_dump(mode="json"))
        except OSError as error:
            raise AgentError(
                AgentCode.INTERNAL, f"the record of a download cannot be written: {error.strerror}"
            ) from error

    async def _retain(self) -> None:
        over = [key for key, entry in self._entries.items() if entry.task is None]
        for key in over[: max(len(self._entries) - _KEPT, 0)]:
            del self._entries[key]
            await asyncio.to_thread((self._folder / f"{key}.json").unlink, missing_ok=True)


def _same_set(one: DownloadSpec, other: DownloadSpec) -> bool:
    return one.model_copy(update={"allow_pickle": False}) == other.model_copy(update={"allow_pickle": False})


def _writer_id(path: Path) -> str:
    """Return the name of this agent among those that share a models root. Blocking; OSError."""
    try:
        found = read_json(path)
    except ValueError:
        found = None
    if not isinstance(found, str) or not found.startswith("agent-"):
        found = f"agent-{secrets.token_hex(6)}"
        write_json(path, found)
    return found


def _clear_trash(root: Path) -> None:
    """Remove the remains of an interrupted deletion. Blocking."""
    for path in (root / HIDDEN).glob("trash-*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
