"""The JSONL files ``audit/{yyyy-MM}.jsonl``, continued as ``{yyyy-MM}.{n}.jsonl`` when one is full."""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.common.files import sync_dir

MAX_FILE_BYTES = 16 * 1024 * 1024
_NAME = re.compile(r"(\d{4}-\d{2})(?:\.(\d{1,9}))?\.jsonl")
_TAIL_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, order=True)
class JournalFile:
    """One file; ordered by time of writing."""

    month: str
    number: int
    path: Path

    @property
    def size_bytes(self) -> int:
        """Bytes on disk; 0 before the first line."""
        return self.path.stat().st_size if self.path.exists() else 0


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line to write: its UTC month (``yyyy-MM``) and its document."""

    month: str
    document: dict[str, Any]


class AuditJournal:
    """The files of one folder. Only the holder of `locked` may write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Yield whether this process may write; another process that writes now is not disturbed."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / ".lock").open("wb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def files(self) -> list[JournalFile]:
        """Return the existing files, oldest first."""
        if not self._folder.is_dir():
            return []
        named = [(path, _NAME.fullmatch(path.name)) for path in self._folder.iterdir()]
        return sorted(JournalFile(match[1], int(match[2] or 0), path) for path, match in named if match)

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yield every whole line of every file, oldest first. ValueError names a file and line that is not JSON."""
        for file in self.files():
            with file.path.open("rb") as handle:
                for number, line in enumerate(handle, 1):
                    if not line.endswith(b"\n"):
                        break  # torn by a crash; the next writer removes it
                    try:
                        yield dict(json.loads(line))
                    except (ValueError, TypeError):
                        raise ValueError(f"{file.path.name}, line {number} is not an audit line") from None

    def repair(self) -> None:
        """Cut off a line that a crash left unfinished."""
        files = self.files()
        if not files:
            return
        with files[-1].path.open("r+b") as handle:
            size = handle.seek(0, os.SEEK_END)
            start = max(0, size - _TAIL_BYTES)
            handle.seek(start)
            tail = handle.read()
            whole = tail.rfind(b"\n") + 1
            if whole < len(tail):
                handle.truncate(start + whole)
                os.fsync(handle.fileno())

    def last(self) -> dict[str, Any] | None:
        """Return the last whole line, None without one; ``{}`` when it is not an audit line."""
        for file in reversed(self.files()):
            with file.path.open("rb") as handle:
                size = handle.seek(0, os.SEEK_END)
                handle.seek(max(0, size - _TAIL_BYTES))
                lines = handle.read().splitlines()
            if lines:
                try:
                    return dict(json.loads(lines[-1]))
                except (ValueError, TypeError):
                    return {}
        return None

    def append(self, entries: Sequence[JournalEntry], *, fresh: bool = False) -> None:
        """Write `entries` in order, and flush them to disk. `fresh` starts a new file first.

        The newest file stays the newest: a line of an earlier month is appended to it, too.
        """
        current = self._current(entries[0].month, fresh=fresh)
        size = current.size_bytes
        waiting: list[bytes] = []
        for entry in entries:
            line = json.dumps(entry.document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            full = size > 0 and size + len(line) > MAX_FILE_BYTES
            if full or entry.month > current.month:
                self._write(current, waiting)
                waiting = []
                current = self._next(current, max(entry.month, current.month))
                size = 0
            waiting.append(line)
            size += len(line)
        self._write(current, waiting)

    def _current(self, month: str, *, fresh: bool) -> JournalFile:
        files = self.files()
        if not files:
            return self._named(month, 0)
        newest = files[-1]
        return self._next(newest, max(month, newest.month)) if fresh else newest

    def _next(self, file: JournalFile, month: str) -> JournalFile:
        return self._named(month, file.number + 1 if month == file.month else 0)

    def _named(self, month: str, number: int) -> JournalFile:
        return JournalFile(month, number, self._folder / (f"{month}.{number}.jsonl" if number else f"{month}.jsonl"))

    def _write(self, file: JournalFile, lines: list[bytes]) -> None:
        if not lines:
            return
        made = not file.path.exists()
        descriptor = os.open(file.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab") as handle:
            handle.write(b"".join(lines))
            handle.flush()
            os.fsync(handle.fileno())
        if made:
            sync_dir(self._folder)
