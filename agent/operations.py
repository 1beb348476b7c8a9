"""The journal: what each mutating call led to, so that a repeat of the call is answered and not done again.

A call is known by operation id and route. It is written down before its effect starts and once more, with the answer,
before the answer leaves. After a crash in between, the repeat does the effect again: effects are idempotent.
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
from agent.wire.errors import AgentCode, Refusal
from agent.wire.operations import OperationView

log = logging.getLogger(__name__)

RETAINED_CALLS = 2000
"""Finished calls that are kept, newest first. A repeat comes within seconds or minutes, never days."""

_OPERATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(frozen=True)
class Call:
    """One mutating call. `digest` is over its body, so that an id used twice for different things is noticed."""

    operation_id: str
    route: str
    digest: str

    def __post_init__(self) -> None:
        if not _OPERATION_ID.fullmatch(self.operation_id):
            raise AgentError(AgentCode.INVALID_REQUEST, "the operation id must be 1-128 of A-Z a-z 0-9 . _ : -")

    @property
    def key(self) -> str:
        """The file name of the call: safe whatever the id and the route hold."""
        return hashlib.sha256(f"{self.operation_id}\n{self.route}".encode()).hexdigest()[:40]


def body_digest(body: Any) -> str:
    """SHA-256 of a JSON value, the same whatever the order of its keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class Answer:
    """What a call is answered with."""

    status: int
    body: dict[str, Any]


@dataclass(frozen=True)
class _Entry:
    digest: str
    status: int | None
    view: OperationView

    def to_json(self) -> dict[str, Any]:
        return {"digest": self.digest, "status": self.status, "view": self.view.to_wire()}

    @classmethod
    def from_json(cls, value: Any) -> "_Entry":
        return cls(str(value["digest"]), value["status"], OperationView.model_validate(value["view"]))

    @property
    def is_final(self) -> bool:
        """Whether a repeat gets this answer. What time alone can cure is tried again instead."""
        if self.view.refusal is None:
            return self.view.state == "succeeded"
        return _stands(self.view.refusal.code, self.status or HTTPStatus.INTERNAL_SERVER_ERROR)

    def to_answer(self) -> Answer:
        if self.view.refusal is not None:
            raise AgentError(self.view.refusal.code, self.view.refusal.detail, self.view.refusal.fields)
        return Answer(self.status or HTTPStatus.OK, self.view.answer or {})


def _stands(code: AgentCode, status: int) -> bool:
    return status < HTTPStatus.INTERNAL_SERVER_ERROR and code is not AgentCode.START_CONFLICT


class Journal:
    """The calls of one state folder."""

    def __init__(self, state_dir: Path, retained: int = RETAINED_CALLS) -> None:
        self._folder = state_dir / "journal"
        self._retained = retained
        self._entries: dict[str, _Entry] = {}
        self._at_work: dict[str, asyncio.Task[Answer]] = {}

    def open(self) -> None:
        """Read what is on disk. A file that is no call is left out and named in the log. OSError as the disk says."""
        ensure_private_dir(self._folder)
        found: list[tuple[str, _Entry]] = []
        for path in self._folder.glob("*.json"):
            try:
                found.append((path.stem, _Entry.from_json(json.loads(path.read_bytes()))))
            except (ValueError, KeyError, TypeError):
                log.warning("%s is not a call of the journal and is left out", path.name)
        found.sort(key=lambda item: item[1].view.started_at)
        self._entries = dict(found)
        for leftover in self._folder.glob(".*"):
            leftover.unlink(missing_ok=True)

    def view(self, operation_id: str) -> OperationView:
        """The newest call with `operation_id`. AgentError NOT_FOUND. ``running`` after a crash: repeat the call."""
        for entry in reversed(self._entries.values()):
            if entry.view.operation_id == operation_id:
                return entry.view
        raise AgentError(AgentCode.NOT_FOUND, f"this agent knows no operation {operation_id}")

    async def run(self, call: Call, effect: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer to `call`: the stored one, the one of the same call at work now, or that of `effect`.

        Raises the AgentError with which the effect refused, now or the first time; INVALID_REQUEST when the same
        operation id came to the same route with another body.
        """
        known = self._entries.get(call.key)
        if known is not None and known.digest != call.digest:
            raise AgentError(
                AgentCode.INVALID_REQUEST,
                f"operation {call.operation_id} came to {call.route} before with another body; use a new operation id",
            )
        task = self._at_work.get(call.key)
        if task is None:
            if known is not None and known.is_final:
                return known.to_answer()
            # No await between the look-up and this line: two equal calls share one task.
            task = asyncio.create_task(self._perform(call, effect), name=f"call {call.route}")
            self._at_work[call.key] = task
            task.add_done_callback(lambda done: self._forget_task(call.key, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for the calls at work."""
        await asyncio.gather(*self._at_work.values(), return_exceptions=True)

    def _forget_task(self, key: str, task: asyncio.Task[Answer]) -> None:
        self._at_work.pop(key, None)
        # Asked for here, so that a caller who left is not a warning.
        if not task.cancelled():
            task.exception()

    async def _perform(self, call: Call, effect: Callable[[], Awaitable[Answer]]) -> Answer:
        started = OperationView(
            operation_id=call.operation_id, route=call.route, state="running", started_at=now_text()
        )
        await self._write(call.key, _Entry(call.digest, None, started))
        try:
            answer = await effect()
        except AgentError as error:
            await self._finish(call, started, None, error)
            raise
        await self._finish(call, started, answer, None)
        return answer

    async def _finish(
        self, call: Call, started: OperationView, answer: Answer | None, error: AgentError | None
    ) -> None:
        refusal: Refusal | None = error.to_refusal() if error else None
        view = started.model_copy(
            update={
                "state": "refused" if refusal else "succeeded",
                "finished_at": now_text(),
                "answer": answer.body if answer else None,
                "refusal": refusal,
            }
        )
        status = answer.status if answer else error.http_status if error else None
        entry = _Entry(call.digest, status, view)
        self._entries[call.key] = entry
        try:
            await self._write(call.key, entry)
        except AgentError:
            # The effect has happened and this process knows it; only a repeat after a crash would do it again.
            log.exception("the answer of operation %s could not be written down", call.operation_id)
        await self._retain()

    async def _write(self, key: str, entry: _Entry) -> None:
        self._entries.pop(key, None)
        self._entries[key] = entry
        try:
            await asyncio.to_thread(write_json, self._folder / f"{key}.json", entry.to_json())
        except OSError as error:
            raise AgentError(AgentCode.INTERNAL, f"the journal cannot be written: {error.strerror}") from error

    async def _retain(self) -> None:
        surplus = len(self._entries) - self._retained
        if surplus <= 0:
            return
        # A tenth more than needed, so that not every call deletes.
        oldest = [key for key in self._entries if key not in self._at_work]
        gone = oldest[: surplus + self._retained // 10]
        for key in gone:
            del self._entries[key]
        await asyncio.to_thread(self._unlink, gone)

    def _unlink(self, keys: list[str]) -> None:
        for key in keys:
            (self._folder / f"{key}.json").unlink(missing_ok=True)
