"""Runs a coroutine without the turns of the event loop: it begins at once, and goes on the moment its word comes.

A task of asyncio waits for the loop's next turn at its beginning and after each future. Every request and every piece
of a body passes here, and those turns would cost more than what is done in them.
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
    """What runs now in this thread, as asyncio knows its current task. Each event loop has a thread of its own."""

    running: "Work | None" = None


_here = _Here()


class Work:
    """One coroutine under way; `begin` it once. It may await `Waiter`s and futures.

    What asks for the current task (time-outs of asyncio, for one) must be awaited as a task of its own: `as_task`.
    """

    __slots__ = ("_cancelled", "_coroutine", "_future", "_loop", "_on_end", "_over")

    def __init__(self, coroutine: Coroutine[Any, Any, None], on_end: Callable[["Work"], object]) -> None:
        self._coroutine = coroutine
        self._on_end = on_end
        self._future: asyncio.Future[Any] | None = None
        self._over = False
        self._cancelled = False
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Run until it first waits, or to its end."""
        self.step()

    def cancel(self, msg: str | None = None) -> bool:
        """Raise CancelledError where it waits, at the loop's next turn. False when it is over."""
        if self._over:
            return False
        self._loop.call_soon(self._cancel)
        return True

    def done(self) -> bool:
        """Whether it is over."""
        return self._over

    def _cancel(self) -> None:
        if self._future is not None:
            self._cancelled = not self._future.cancel()  # it came just now: its callback is on its way
        elif not self._over:
            self.step(asyncio.CancelledError())

    def _go_on(self, _: "asyncio.Future[Any]") -> None:
        self._future = None
        cancelled, self._cancelled = self._cancelled, False
        self.step(asyncio.CancelledError() if cancelled else None)

    def step(self, error: BaseException | None = None) -> None:
        """Go on, with `error` where it waits; for `Waiter` alone."""
        before, _here.running = _here.running, self
        try:
            awaited = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
        except (StopIteration, asyncio.CancelledError):
            self._end()
        except Exception:  # the edge, as it is for a task
            log.exception("work on a connection failed")
            self._end()
        except BaseException:
            self._end()
            raise
        else:
            if awaited is None:  # a turn of the loop, as ``asyncio.sleep(0)`` asks for
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
    """A place where one coroutine waits for a word: ``await`` it there, `wake` it here. It works in tasks, too.

    Under `Work` the coroutine goes on inside `wake`. So it is called where no parser and no loop over shared things is
    under way; elsewhere by ``call_soon``.
    """

    __slots__ = ("_who",)

    def __init__(self) -> None:
        self._who: Work | asyncio.Future[None] | None = None

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
        """Whether someone waits."""
        return self._who is not None

    def wake(self) -> None:
        """Let whoever waits go on."""
        who = self._who
        self._who = None
        if isinstance(who, Work):
            who.step()
        elif who is not None and not who.done():
            who.set_result(None)


class Works:
    """What is under way in one place: `add` it, `discard` it when it is over."""

    def __init__(self) -> None:
        self.under_way: set[Work] = set()
        self._quiet: asyncio.Event | None = None
        self.add = self.under_way.add

    def discard(self, work: Work) -> None:
        """It is over."""
        self.under_way.discard(work)
        if self._quiet is not None and not self.under_way:
            self._quiet.set()

    async def all_over(self, limit_seconds: float) -> None:
        """Wait until nothing is under way, but no longer than the limit."""
        self._quiet = asyncio.Event()
        if self.under_way:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_seconds):
                    await self._quiet.wait()

    def cancel(self) -> None:
        """Cancel all of it."""
        for work in list(self.under_way):
            work.cancel()


def current() -> Work:
    """The work that asks. Raises RuntimeError outside of any."""
    running = _here.running
    if running is None:
        raise RuntimeError("no work is under way here")
    return running


async def as_task(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await `coroutine` as a task: what needs asyncio's own means, out of work."""
    return await asyncio.get_running_loop().create_task(coroutine)
