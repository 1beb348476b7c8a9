"""Reader of an engine's log: its last lines, continued reading, and a limit of its size.

The engine appends to a file. When that is over the limit, its end becomes the older part beside it, and the file is
emptied in place. Positions are counted in bytes since the launch, so that those of readers stay valid.
"""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from agent.common.files import write_bytes
from agent.common.redaction import redact_lines
from agent.wire.instances import LogSlice

LIMIT_BYTES = 4 * 1024 * 1024
"""Size beyond which the file is emptied; the older part has at most as many bytes."""

KEPT_BYTES = 1024 * 1024
"""Bytes that are kept of the log of an earlier run."""

SLICE_BYTES = 256 * 1024
LINE_CHARACTERS = 4_000
TAIL_BYTES = 512 * 1024

_BEFORE_BYTES = 8 * 1024
_COPY_BYTES = 256 * 1024
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class LogFile:
    """The log of one launch: the file at `path`, which starts at position `base`, and the older part before it.

    `secrets` are values that are always masked.
    """

    path: Path
    base: int = 0
    secrets: tuple[str, ...] = ()

    @property
    def older(self) -> Path:
        """The path of the older part. No instance id contains a tilde."""
        return self.path.with_name(f"{self.path.stem}~older.log")

    def size(self) -> int:
        """Return the bytes in the file now; 0 without a file."""
        return _size(self.path)

    def end(self) -> int:
        """Return the position after the last byte."""
        return self.base + self.size()

    def tail(self, lines: int) -> LogSlice:
        """Return the last `lines` lines, and the position after them."""
        end = self.end()
        start = max(self._first(), end - TAIL_BYTES)
        data = self._read(start, end - start)
        if start > self._first():
            piece, found_break, data = data.partition(b"\n")
            start += len(piece) + len(found_break)
        found = self._lines(data, start)
        cut = found[-lines:] if lines > 0 else []
        return LogSlice(lines=tuple(cut), next=end, truncated=start > 0 or len(cut) < len(found))

    def last_line(self) -> str:
        """Return the last line that is not empty, cut at 200 characters; "" without one."""
        end = self.end()
        start = max(self._first(), end - LINE_CHARACTERS)
        lines = [line.strip() for line in self._lines(self._read(start, end - start), start)]
        return next((line[:200] for line in reversed(lines) if line), "")

    def after(self, place: int, lines: int) -> LogSlice:
        """Return whole lines from `place` on, at most `lines`; `truncated` means that lines before them are gone."""
        first, end = self._first(), self.end()
        lost = not first <= place <= end
        start = first if lost else place
        data = self._read(start, min(SLICE_BYTES, end - start))
        stop = data.rfind(b"\n") + 1
        if stop == 0 and len(data) >= SLICE_BYTES:
            stop = len(data)  # a line longer than a slice: return it in pieces rather than make no progress
        data = data[:stop]
        parts = data.split(b"\n")[: max(1, lines)] if data else []
        if data and len(data.split(b"\n")) - 1 > lines:
            data = b"\n".join(parts) + b"\n"
        return LogSlice(lines=tuple(self._lines(data, start)), next=start + len(data), truncated=lost)

    def is_too_long(self) -> bool:
        """Return whether the file should be emptied."""
        return self.size() > LIMIT_BYTES

    def rotate(self) -> int:
        """Make the end of the file the older part, empty the file in place, and return the bytes that it had.

        The engine continues at the new end (it appends). Output between copy and cut is lost, so the copy is
        completed until nothing was written meanwhile.
        """
        copied = _size(self.path)
        start = max(0, copied - LIMIT_BYTES)
        part = self.older.with_name(f"{self.older.name}.part")
        with self.path.open("rb") as source, os.fdopen(os.open(part, _NEW, 0o600), "wb") as target:
            source.seek(start)
            start += len(source.readline(LIMIT_BYTES)) if start else 0
            while data := source.read(_COPY_BYTES):
                target.write(data)
                if target.tell() > 2 * LIMIT_BYTES:
                    break  # it writes faster than this copies
            copied = start + target.tell()
        part.replace(self.older)
        copied = max(copied, _size(self.path))
        os.truncate(self.path, 0)
        return copied

    def keep_as(self, path: Path) -> bool:
        """Write the last lines to `path`, without secrets, and return whether there are any."""
        end = self.end()
        start = max(self._first(), end - KEPT_BYTES)
        lines = self._lines(self._read(start, end - start), start)
        if not lines:
            return False
        first = 1 if start > self._first() else 0
        write_bytes(path, "\n".join((*lines[first:], "")).encode())
        return True

    def remove(self) -> None:
        """Delete the file and its older part."""
        for path in (self.path, self.older):
            path.unlink(missing_ok=True)

    def _first(self) -> int:
        """Return the position of the first byte that is still there."""
        return max(0, self.base - _size(self.older))

    def _read(self, start: int, count: int) -> bytes:
        """Return at most `count` bytes from the position `start`."""
        data = b""
        if start < self.base:
            data = _read_from(self.older, start - (self.base - _size(self.older)), min(count, self.base - start))
        if (rest := count - len(data)) > 0:
            data += _read_from(self.path, max(0, start - self.base), rest)
        return data

    def _lines(self, data: bytes, start: int) -> list[str]:
        """Return the lines of `data`, which was read at `start`. A secret may have begun in the lines before it."""
        earlier = min(_BEFORE_BYTES, start - self._first())
        before = [_plain(line) for line in self._read(start - earlier, earlier).decode("utf-8", "replace").split("\n")]
        lines = [_plain(line) for line in data.decode("utf-8", "replace").split("\n")]
        # the piece before the first line ends with a line break, or is its beginning
        whole = redact_lines([*before[:-1], *lines], self.secrets)[len(before) - 1 :]
        shown = [line if len(line) <= LINE_CHARACTERS else line[:LINE_CHARACTERS] + " …" for line in whole]
        return shown[:-1] if shown and shown[-1] == "" else shown


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_from(path: Path, start: int, count: int) -> bytes:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(start)
        return file.read(max(0, count))
    return b""


def _plain(line: str) -> str:
    """Return one line without colours; of a redrawn progress bar only the last state."""
    line = line.rstrip("\r").rpartition("\r")[2]
    return _ANSI.sub("", line).replace("\x00", "")
