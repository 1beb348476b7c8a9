"""Pauses that servers asked for, by host. All downloads of a node share them: one refusal pauses every file."""

import asyncio
from datetime import datetime, timedelta

from agent.clock import monotonic, now


class HostPauses:
    """The end of the pause of each host. A later request can only make a pause longer."""

    def __init__(self) -> None:
        self._ends: dict[str, tuple[float, datetime]] = {}

    def ask(self, host: str, seconds: float) -> None:
        """Send nothing to `host` for `seconds` from now."""
        end = monotonic() + seconds
        if end > self._ends.get(host, (0.0, None))[0]:
            self._ends[host] = end, now() + timedelta(seconds=seconds)

    def left(self, host: str) -> float:
        """Return the seconds until `host` may be called."""
        return max(self._ends[host][0] - monotonic(), 0.0) if host in self._ends else 0.0

    async def wait(self, host: str) -> None:
        """Wait until `host` may be called."""
        while (left := self.left(host)) > 0:  # noqa: ASYNC110 - another request may make the pause longer
            await asyncio.sleep(left)

    def end(self, host: str) -> datetime:
        """Return the time at which the pause of `host` ends, or ended. KeyError for a host without one."""
        return self._ends[host][1]
