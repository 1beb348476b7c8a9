"""Download speed over the last seconds."""

from collections import deque

from agent.clock import monotonic

WINDOW_SECONDS = 10.0
_SHORTEST_SECONDS = 0.5


class Speed:
    """Counter of bytes over time."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()
        self._total = 0

    def add(self, count: int) -> None:
        """Count `count` more bytes from the network."""
        self._total += count
        now = monotonic()
        if not self._marks or now - self._marks[-1][0] >= 0.2:
            self._marks.append((now, self._total))
        while len(self._marks) > 1 and now - self._marks[0][0] > WINDOW_SECONDS:
            self._marks.popleft()

    def per_second(self) -> float | None:
        """Return bytes per second; None before there is enough to measure."""
        if not self._marks:
            return None
        began, before = self._marks[0]
        passed = monotonic() - began
        if passed < _SHORTEST_SECONDS:
            return None
        # Without new bytes the window moves on, so that the speed falls to zero.
        if monotonic() - self._marks[-1][0] > WINDOW_SECONDS:
            return 0.0
        return (self._total - before) / passed
