"""Requests to stop: Ctrl-C, SIGTERM, a closed terminal. The first stops in order, the second hurries."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stops:
    """The count of stop requests; `wakeup` is readable after each signal, so that a wait ends at once."""

    def __init__(self) -> None:
        self.count = 0
        self.wakeup, self._written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def hurried(self) -> bool:
        """Return whether a second stop was requested."""
        return self.count > 1

    def drain(self) -> None:
        """Empty the wakeup pipe."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wakeup, 512):
                pass

    def note(self, _signal: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        self.count += 1
        with contextlib.suppress(BlockingIOError):
            os.write(self._written, b"\0")


@contextlib.contextmanager
def listening() -> Iterator[Stops]:
    """Count stop signals instead of dying from them, until the block ends."""
    stops = Stops()
    before = {number: signal.signal(number, stops.note) for number in _STOPPING}
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
