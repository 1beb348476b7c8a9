"""An engine's log file: its last lines, reading on from a place, and keeping it from filling the disk.

Places are counted in bytes since the launch. A file that was emptied starts at `base` of them, so that a reader's place
stays true.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.wire.instances import LogSlice

LIMIT_BYTES = 64 * 1024 * 1024
"""A log beyond this is emptied in place."""

SLICE_BYTES = 256 * 1024
LINE_CHARACTERS = 4_000
TAIL_BYTES = 512 * 1024

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SECRETS = (
    (re.compile(r"\b(hf_|ssk_)[A-Za-z0-9_-]{8,}"), r"\1[redacted]"),
    (
        re.compile(r"(?i)\b(password|passwd|token|api[_-]?key|secret|bearer)(\s*[=:]\s*|\s+)(?=\S*\d)\S{12,}"),
        r"\1\2[redacted]",
    ),
    (re.compile(r"-----BEGIN [A-Z ]+-----.*"), "[redacted PEM]"),
)


@dataclass(frozen=True)
class LogFile:
    """The log of one launch. `secrets` are values that are never shown."""

    path: Path
    base: int = 0
    secrets: tuple[str, ...] = ()

    def size(self) -> int:
        """Bytes in the file now; 0 when there is none."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def tail(self, lines: int) -> LogSlice:
        """The last `lines` lines, and the place after them."""
        size = self.size()
        start = max(0, size - TAIL_BYTES)
        data = self._read(start, size - start)
        if start:
            data = data.partition(b"\n")[2]
        found = self._lines(data)
        cut = found[-lines:] if lines > 0 else []
        return LogSlice(lines=tuple(cut), next=self.base + size, truncated=start > 0 or len(cut) < len(found))

    def last_line(self) -> str:
        """The last line that says something, cut at 200 characters; "" when there is none."""
        size = self.size()
        start = max(0, size - LINE_CHARACTERS)
        lines = [line.strip() for line in self._lines(self._read(start, size - start))]
        return next((line[:200] for line in reversed(lines) if line), "")

    def after(self, place: int, lines: int) -> LogSlice:
        """Whole lines from `place` on, at most `lines`; `truncated` says that something before them is gone."""
        start = place - self.base
        size = self.size()
        lost = start < 0 or start > size
        start = 0 if lost else start
        data = self._read(start, min(SLICE_BYTES, size - start))
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) >= SLICE_BYTES:
            end = len(data)  # a line longer than a slice: hand it out in pieces rather than stand still
        data = data[:end]
        parts = data.split(b"\n")[: max(1, lines)] if data else []
        if data and len(data.split(b"\n")) - 1 > lines:
            data = b"\n".join(parts) + b"\n"
        return LogSlice(lines=tuple(self._lines(data)), next=self.base + start + len(data), truncated=lost)

    def is_too_long(self) -> bool:
        """Whether it should be emptied."""
        return self.size() > LIMIT_BYTES

    def empty(self) -> int:
        """Cut it to nothing in place, the bytes that went; the engine goes on at the new end (it appends)."""
        size = self.size()
        os.truncate(self.path, 0)
        return size

    def _read(self, start: int, count: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read(max(0, count))
        except FileNotFoundError:
            return b""

    def _lines(self, data: bytes) -> list[str]:
        text = data.decode("utf-8", "replace")
        lines = [_clean(line, self.secrets) for line in text.split("\n")]
        return lines[:-1] if lines and lines[-1] == "" else lines


def _clean(line: str, secrets: Iterable[str]) -> str:
    """One line without colours and secrets; of a progress bar that redraws itself only the last state."""
    line = line.rstrip("\r").rpartition("\r")[2]
    line = _ANSI.sub("", line).replace("\x00", "")
    for secret in secrets:
        if len(secret) >= 4:
            line = line.replace(secret, "[redacted]")
    for pattern, shown in _SECRETS:
        line = pattern.sub(shown, line)
    return line if len(line) <= LINE_CHARACTERS else line[:LINE_CHARACTERS] + " …"
