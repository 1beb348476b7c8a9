"""One thread at a time writes for many: waiting writes share one transaction, and so one flush of the disk."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import structlog
from django.db import InterfaceError, OperationalError, transaction

from nodes.link.threads import DatabaseThreads

R = TypeVar("R")

log = structlog.get_logger(__name__)

AT_ONCE = 32
"""Pieces in one transaction: a caller waits for no more than these."""

_Piece = tuple[Callable[[], Any], "Future[Any]"]


class GroupWriter:
    """Pieces of work that write, each in a savepoint of its own: one that raises undoes only itself.

    A piece may run twice, when the transaction that it shared could not be committed; nothing is left of the first run.
    """

    def __init__(self, threads: DatabaseThreads) -> None:
        self._threads = threads
        self._waiting: list[_Piece] = []
        self._lock = threading.Lock()
        self._busy = False

    async def run(self, work: Callable[[], R]) -> R:
        """Run `work`; it is committed when this returns."""
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.append((work, future))
            begin, self._busy = not self._busy, True
        if begin:
            self._threads.submit(self._work_off)
        outcome: R = await asyncio.wrap_future(future)
        return outcome

    def _work_off(self) -> None:
        while True:
            with self._lock:
                taken, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
                if not taken:
                    self._busy = False
                    return
            pieces = [piece for piece in taken if piece[1].set_running_or_notify_cancel()]
            for (_, waiting), done in zip(pieces, together([work for work, _ in pieces]), strict=True):
                if (error := done.exception()) is not None:
                    waiting.set_exception(error)
                else:
                    waiting.set_result(done.result())


def together(works: list[Callable[[], Any]]) -> "list[Future[Any]]":
    """Run all of `works` in one transaction, and return the result of each. When that cannot be committed, run each
    alone.
    """
    try:
        with transaction.atomic():
            return [_tried(work, shared=True) for work in works]
    except Exception:
        log.warning("a shared transaction failed; writing its parts one by one", pieces=len(works), exc_info=True)
        return [_tried(work, shared=False) for work in works]


def _tried(work: Callable[[], Any], *, shared: bool) -> "Future[Any]":
    done: Future[Any] = Future()
    try:
        with transaction.atomic():
            done.set_result(work())
    except Exception as error:
        # A deadlock or a lost connection fails the whole transaction, and no single piece caused it.
        if shared and isinstance(error, OperationalError | InterfaceError):
            raise
        done.set_exception(error)
    return done
