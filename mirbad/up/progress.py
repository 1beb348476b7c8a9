"""The output of `make up`: one line per step with its second, and the present state while it lasts."""

import os
import sys
import time
from typing import TextIO

from mirbad.kernel import clock

STARTED = "MIRBAD_INTERNAL_STARTED"
"""The start of `make up` (seconds since the epoch), so that all of its processes count from one moment."""

_REPEAT_SECONDS = 5.0


class ProgressDisplay:
    """Lines on a stream. On a terminal the present state is redrawn in place, else it is a line when it changes."""

    def __init__(self, stream: TextIO | None = None, started: float | None = None) -> None:
        self._stream = stream or sys.stdout
        self._started = started if started is not None else float(os.environ.get(STARTED) or clock.now().timestamp())
        self._terminal = self._stream.isatty()
        self._drawn = False
        self._last = ""
        self._last_at = 0.0

    @property
    def started(self) -> float:
        """The moment from which seconds are counted."""
        return self._started

    def seconds(self) -> float:
        """Return the seconds since `make up` started."""
        return max(0.0, clock.now().timestamp() - self._started)

    def done(self, text: str) -> None:
        """Print a finished step."""
        self._line("✓", text)

    def note(self, text: str) -> None:
        """Print information that needs no action."""
        self._line("·", text)

    def warn(self, text: str) -> None:
        """Print a problem; the text includes the fix or the present reaction."""
        self._line("!", text)

    def now(self, text: str) -> None:
        """Show the present state of the running step."""
        if self._terminal:
            width = os.get_terminal_size(self._stream.fileno()).columns or 80
            self._write(f"\r\x1b[K{self._stamp('…', text)[: width - 1]}")
            self._drawn = True
        elif text != self._last and time.monotonic() - self._last_at >= (0 if self._differs(text) else _REPEAT_SECONDS):
            self._write(self._stamp("…", text) + "\n")
            self._last, self._last_at = text, time.monotonic()

    def plain(self, text: str) -> None:
        """Print text as it is, on lines of its own."""
        self._clear()
        self._write(text + "\n")

    def _differs(self, text: str) -> bool:
        # bytes and seconds that tick are the same state
        return text.partition("(")[0] != self._last.partition("(")[0]

    def _line(self, mark: str, text: str) -> None:
        self._clear()
        self._write(self._stamp(mark, text) + "\n")

    def _clear(self) -> None:
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def _stamp(self, mark: str, text: str) -> str:
        return f"{self.seconds():6.1f} s  {mark} {text}"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
