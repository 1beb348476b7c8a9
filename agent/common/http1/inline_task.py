"""Coroutines without turns of the event loop: they start at once, and continue the moment they are woken.

An asyncio task waits for the loop's next turn at its start and after each future. Every request and every piece of a
body passes here, and those turns would cost more than the work.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Here(threading.local):
    """The inline task that runs now in this thread, like asyncio's current task. Each event loop has its own thread."""

    running: "InlineTask | None" = None


_here = _Here()


class InlineTask:
    """One coroutine in progress; `begin` it once. It may await `Waiter`s and futures.

    Code that needs the current task of asyncio (its timeouts, for example) must be awaited by `as_task`.
    """

    __slots__ = ("_cancelled", "_coroutine", "_future", "_loop", "_on_end", "_over")

    def __init__(self, coroutine: Coroutine[Any, Any, None], on_end: Callable[["InlineTask"], object]) -> None:
        self._coroutine = coroutine
        self._on_end = on_end
        self._future: asyncio.Future[Any] | None = None
        self._over = False
        self._cancelled = False
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Run until the coroutine first waits, or to its end."""
        self.step()

    def cancel(self, msg: str | None = None) -> bool:
        """Raise CancelledError where the coroutine waits, at the loop's next turn. Return False when it has ended."""
        if self._over:
            return False
        self._loop.call_soon(self._cancel)
        return True

    def done(self) -> bool:
        """Return whether the coroutine has ended."""
        return self._over

    def _cancel(self) -> None:
        if self._future is not None:
            self._cancelled = not self._future.cancel()  # the result arrived at this moment: its callback is scheduled
        elif not self._over:
            self.step(asyncio.CancelledError())

    def _go_on(self, _: "asyncio.Future[Any]") -> None:
        self._future = None
        cancelled, self._cancelled = self._cancelled, False
        self.step(asyncio.CancelledError() if cancelled else None)

    def step(self, error: BaseException | None = None) -> None:
        """Continue the coroutine, with `error` where it waits. Only `Waiter` calls it."""
        before, _here.running = _here.running, self
        try:
            awaited = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
        except (StopIteration, asyncio.CancelledError):
            self._end()
        except Exception:  # the edge of the task, as asyncio has it
            log.exception("work on a connection failed")
            self._end()
        except BaseException:
            self._end()
            raise
        else:
            if awaited is None:  # a turn of the loop, as ``asyncio.sleep(0)`` requests it
                self._loop.call_soon(self.step)
            elif awaited.__class__ is not Waiter:
                awaited._asyncio_future_blocking = False  # noqa: SLF001  how asyncio's tasks take a future over
                self._future = awaited
                awaited.add_done_callback(self._go_on)
        finally:
            _here.running = before

    def _end(self) -> None:
        self._over = True
        self._on_end(self)


class Waiter:
    """A point where one coroutine waits: ``await`` it there, `wake` it elsewhere. It works in asyncio tasks, too.

    In an `InlineTask` the coroutine continues inside `wake`. So call `wake` where no parser and no loop over shared
    state is running; elsewhere use ``call_soon``.
    """

    __slots__ = ("_who",)

    def __init__(self) -> None:
        self._who: InlineTask | asyncio.Future[None] | None = None

    def __await__(self) -> Generator[Any, None, None]:
        try:
            if (running := _here.running) is not None:
                self._who = running
                yield self
            else:
                self._who = future = asyncio.get_running_loop().create_future()
                yield from future
        finally:
            self._who = None

    @property
    def waited_for(self) -> bool:
        """Return whether a coroutine waits here."""
        return self._who is not None

    def wake(self) -> None:
        """Continue the waiting coroutine, if there is one."""
        who = self._who
        self._who = None
        if isinstance(who, InlineTask):
            who.step()
        elif who is not None and not who.done():
            who.set_result(None)


class InlineTasks:
    """The tasks in progress of one server: `add` a task, `discard` it when it has ended."""

    def __init__(self) -> None:
        self.under_way: set[InlineTask] = set()
        self._quiet: asyncio.Event | None = None
        self.add = self.under_way.add

    def discard(self, work: InlineTask) -> None:
        """Remove a task that has ended."""
        self.under_way.discard(work)
        if self._quiet is not None and not self.under_way:
            self._quiet.set()

    async def all_over(self, limit_seconds: float) -> None:
        """Wait until no task is in progress, at most for the limit."""
        self._quiet = asyncio.Event()
        if self.under_way:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_seconds):
                    await self._quiet.wait()

    def cancel(self) -> None:
        """Cancel all tasks."""
        for work in list(self.under_way):
            work.cancel()


def current() -> InlineTask:
    """Return the inline task of the caller. Raises RuntimeError outside of one."""
    running = _here.running
    if running is None:
        raise RuntimeError("no work is under way here")
    return running


async def as_task(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await `coroutine` as an asyncio task, for code that needs asyncio's own facilities."""
    return await asyncio.get_running_loop().create_task(coroutine)
