"""Database work beside an event loop, in threads that close their connections on request."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import close_old_connections, connections

R = TypeVar("R")

_RELEASE_SECONDS = 2.0


class DatabaseThreads:
    """`count` threads, each with a database connection of its own while it needs one."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[[], R]) -> R:
        """Run `work` in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, _with_database, work)

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` in one of the threads, without waiting for it."""
        self._pool.submit(_with_database, work)

    def release(self) -> None:
        """Close the connections of all threads; the next work opens them again."""
        # All threads must be inside at once, else one of them could run twice and another not at all.
        together = threading.Barrier(self._count)
        for turn in [self._pool.submit(_let_go, together) for _ in range(self._count)]:
            turn.result()

    def end(self) -> None:
        """Finish the submitted work, close the connections, end the threads."""
        self.release()
        self._pool.shutdown(wait=True)


def _with_database(work: Callable[[], R]) -> R:
    close_old_connections()
    try:
        return work()
    finally:
        close_old_connections()


def _let_go(together: threading.Barrier) -> None:
    # Broken when one thread is still busy; the others need not wait for it.
    with contextlib.suppress(threading.BrokenBarrierError):
        together.wait(_RELEASE_SECONDS)
    connections.close_all()
