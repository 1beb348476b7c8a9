"""The journal: the result of each mutating call, so that a repeat of the call is answered and not done again.

A call is identified by operation id and route. It is written before its effect starts and again, with the response,
before the response is sent. After a crash in between, the repeat runs the effect again: effects are idempotent.
"""

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from agent.clock import now_text
from agent.errors import AgentError
from agent.state import ensure_private_dir, write_json
from agent.wire.errors import AgentCode, AgentErrorBody
from agent.wire.operations import OperationView

log = logging.getLogger(__name__)

RETAINED_CALLS = 2000
"""Finished calls that are kept, newest first. A repeat arrives within seconds or minutes, never days."""

_OPERATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(frozen=True)
class JournaledCall:
    """One mutating call. `digest` is over its body, so that reuse of an id for something else is noticed."""

    operation_id: str
    route: str
    digest: str

    def __post_init__(self) -> None:
        if not _OPERATION_ID.fullmatch(self.operation_id):
            raise AgentError(AgentCode.INVALID_REQUEST, "An operation id has 1-128 characters of A-Z a-z 0-9 . _ : -")

    @property
    def key(self) -> str:
        """The file name of the call, safe for any id and route."""
        return hashlib.sha256(f"{self.operation_id}\n{self.route}".encode()).hexdigest()[:40]


def body_digest(body: Any) -> str:
    """Return SHA-256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class RecordedResponse:
    """The response to a call."""

    status: int
    body: dict[str, Any]


Effect = Callable[[], Awaitable[RecordedResponse]]
"""The work of a call. Idempotent: after a crash it may run again."""


@dataclass(frozen=True)
class _JournalEntry:
    digest: str
    status: int | None
    view: OperationView

    def to_json(self) -> dict[str, Any]:
        return {"digest": self.digest, "status": self.status, "view": self.view.to_wire()}

    @classmethod
    def from_json(cls, value: Any) -> "_JournalEntry":
        return cls(str(value["digest"]), value["status"], OperationView.model_validate(value["view"]))

    @property
    def is_final(self) -> bool:
        """Return whether a repeat receives this response. Errors that time alone can cure are tried again instead."""
        if self.view.refusal is None:
            return self.view.state == "succeeded"
        return _stands(self.view.refusal.code, self.status or HTTPStatus.INTERNAL_SERVER_ERROR)

    def to_response(self) -> RecordedResponse:
        if self.view.refusal is not None:
            raise AgentError(self.view.refusal.code, self.view.refusal.detail, self.view.refusal.fields)
        return RecordedResponse(self.status or HTTPStatus.OK, self.view.answer or {})


def _stands(code: AgentCode, status: int) -> bool:
    return status < HTTPStatus.INTERNAL_SERVER_ERROR and code is not AgentCode.START_CONFLICT


@dataclass(frozen=True, slots=True)
class _KnownCall:
    """The part of an entry that is held in memory. The response is read from the entry's file when it is asked for.

    `unwritten` is the whole entry when its file could not be written: this process alone knows it.
    """

    operation_id: str
    digest: str
    is_final: bool
    unwritten: _JournalEntry | None = None

    @classmethod
    def of(cls, entry: _JournalEntry, *, is_written: bool = True) -> "_KnownCall":
        return cls(entry.view.operation_id, entry.digest, entry.is_final, None if is_written else entry)


class OperationJournal:
    """The calls of one state folder."""

    def __init__(self, state_dir: Path, retained: int = RETAINED_CALLS) -> None:
        self._folder = state_dir / "journal"
        self._retained = retained
        self._known: dict[str, _KnownCall] = {}
        self._at_work: dict[str, asyncio.Task[RecordedResponse]] = {}

    def open(self) -> None:
        """Read the files on disk. An invalid file is skipped and logged. Raises OSError."""
        ensure_private_dir(self._folder)
        found = [
            (entry.view.started_at, path.stem, _KnownCall.of(entry))
            for path in self._folder.glob("*.json")
            if (entry := _read(path)) is not None
        ]
        found.sort(key=lambda item: item[0])
        self._known = {key: known for _, key, known in found}
        for temporary in self._folder.glob(".*"):
            temporary.unlink(missing_ok=True)

    async def view(self, operation_id: str) -> OperationView:
        """Return the newest call with `operation_id`. Raises AgentError NOT_FOUND. ``running`` after a crash: repeat
        the call.
        """
        found = [(key, known) for key, known in self._known.items() if known.operation_id == operation_id]
        for key, known in reversed(found):
            if (entry := await self._entry(key, known)) is not None:
                return entry.view
        raise AgentError(AgentCode.NOT_FOUND, f"Operation {operation_id} not found.")

    async def _entry(self, key: str, known: _KnownCall) -> _JournalEntry | None:
        return known.unwritten or await asyncio.to_thread(_read, self._folder / f"{key}.json")

    async def run(self, call: JournaledCall, effect: Effect) -> RecordedResponse:
        """Return the response to `call`: the stored one, that of the same call in progress, or that of `effect`.

        Raises the AgentError of the effect, now or at the first time; INVALID_REQUEST when the same operation id was
        used on the same route with another body.
        """
        known = self._known.get(call.key)
        if known is not None and known.digest != call.digest:
            raise AgentError(
                AgentCode.INVALID_REQUEST,
                f"Operation {call.operation_id} was used on {call.route} with another body. Use a new operation id.",
            )
        if known is not None and known.is_final and call.key not in self._at_work:
            entry = await self._entry(call.key, known)
            if entry is not None:
                return entry.to_response()
            # A file that is gone or damaged has no response: the effect runs again, as after a crash.
        task = self._at_work.get(call.key)
        if task is None:
            # No await between the lookup and this line: two equal calls share one task.
            task = asyncio.create_task(self._perform(call, effect), name=f"call {call.route}")
            self._at_work[call.key] = task
            task.add_done_callback(lambda done: self._forget_task(call.key, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for the calls in progress."""
        await asyncio.gather(*self._at_work.values(), return_exceptions=True)

    def _forget_task(self, key: str, task: asyncio.Task[RecordedResponse]) -> None:
        self._at_work.pop(key, None)
        # Retrieved here, so that a caller that has disconnected causes no warning.
        if not task.cancelled():
            task.exception()

    async def _perform(self, call: JournaledCall, effect: Effect) -> RecordedResponse:
        started = OperationView(
            operation_id=call.operation_id, route=call.route, state="running", started_at=now_text()
        )
        await self._write(call.key, _JournalEntry(call.digest, None, started))
        try:
            answer = await effect()
        except AgentError as error:
            await self._finish(call, started, None, error)
            raise
        await self._finish(call, started, answer, None)
        return answer

    async def _finish(
        self, call: JournaledCall, started: OperationView, answer: RecordedResponse | None, error: AgentError | None
    ) -> None:
        refusal: AgentErrorBody | None = error.to_body() if error else None
        view = started.model_copy(
            update={
                "state": "refused" if refusal else "succeeded",
                "finished_at": now_text(),
                "answer": answer.body if answer else None,
                "refusal": refusal,
            }
        )
        status = answer.status if answer else error.http_status if error else None
        entry = _JournalEntry(call.digest, status, view)
        try:
            await self._write(call.key, entry)
        except AgentError:
            # The effect has happened and this process knows it; only a repeat after a crash runs it again.
            log.exception("the response of operation %s could not be written", call.operation_id)
        await self._retain()

    async def _write(self, key: str, entry: _JournalEntry) -> None:
        self._known.pop(key, None)
        self._known[key] = _KnownCall.of(entry, is_written=False)
        try:
            await asyncio.to_thread(write_json, self._folder / f"{key}.json", entry.to_json())
        except OSError as error:
            raise AgentError(AgentCode.INTERNAL, f"The journal cannot be written: {error.strerror}.") from error
        self._known[key] = _KnownCall.of(entry)

    async def _retain(self) -> None:
        surplus = len(self._known) - self._retained
        if surplus <= 0:
            return
        # A tenth more than needed, so that not every call deletes files.
        oldest = [key for key in self._known if key not in self._at_work]
        gone = oldest[: surplus + self._retained // 10]
        for key in gone:
            del self._known[key]
        await asyncio.to_thread(self._unlink, gone)

    def _unlink(self, keys: list[str]) -> None:
        for key in keys:
            (self._folder / f"{key}.json").unlink(missing_ok=True)


def _read(path: Path) -> _JournalEntry | None:
    """Return the entry in a file; None, logged, when there is none. Blocks."""
    try:
        return _JournalEntry.from_json(json.loads(path.read_bytes()))
    except OSError as error:
        log.warning("skipping the journal entry %s: %s", path.name, error.strerror)
    except (ValueError, KeyError, TypeError):
        log.warning("skipping %s: not a valid journal entry", path.name)
    return None
