"""Waiting for what happens elsewhere: in another process, thread or task. The only place of tests that sleeps.

An event that a test can have itself (`threading.Event`, `asyncio.Event`, a `join`, a line of output) is better still.
`pause` is counted by tests/architecture/test_waiting.py: the number may only fall.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
EVERY_SECONDS = 0.02


def until(look: Callable[[], T], what: str, seconds: float = 30.0, every: float = EVERY_SECONDS) -> T:
    """Return the first true value of `look`. Fails with `what` when there is none within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := look()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        time.sleep(every)
    return value


async def until_async(look: Callable[[], T], what: str, seconds: float = 30.0, every: float = EVERY_SECONDS) -> T:
    """As `until`, inside an event loop: other tasks run between two looks."""
    deadline = time.monotonic() + seconds
    while not (value := look()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        await asyncio.sleep(every)
    return value


async def until_answer(
    ask: Callable[[], Awaitable[T]], what: str, seconds: float = 30.0, every: float = EVERY_SECONDS
) -> T:
    """As `until_async`, where looking is a call of its own."""
    deadline = time.monotonic() + seconds
    while not (value := await ask()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        await asyncio.sleep(every)
    return value


def until_no(
    error: type[BaseException] | tuple[type[BaseException], ...],
    call: Callable[[], T],
    seconds: float = 30.0,
    every: float = EVERY_SECONDS,
) -> T:
    """Return what `call` returns as soon as it raises no `error`. Raises the last one after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except error:
            if time.monotonic() > deadline:
                raise
        time.sleep(every)


def until_still(look: Callable[[], int], seconds: float = 30.0, still_seconds: float = 0.3) -> int:
    """Return the number that `look` gives once it is above 0 and has not changed for `still_seconds`."""
    last, since = 0, time.monotonic()

    def is_still() -> bool:
        nonlocal last, since
        if (now := look()) != last:
            last, since = now, time.monotonic()
        return last > 0 and time.monotonic() - since >= still_seconds

    until(is_still, "no more change", seconds)
    return last


def stays(look: Callable[[], object], what: str, seconds: float) -> None:
    """Fail with `what` as soon as `look` is false within `seconds`: for what must not happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert look(), what
        time.sleep(EVERY_SECONDS)
    assert look(), what


async def stays_async(look: Callable[[], object], what: str, seconds: float) -> None:
    """As `stays`, inside an event loop."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert look(), what
        await asyncio.sleep(EVERY_SECONDS)
    assert look(), what


def pause(seconds: float) -> None:
    """Let time pass: the pace of a scripted peer, or a moment of a fault that nothing announces."""
    time.sleep(seconds)


async def pause_async(seconds: float) -> None:
    """As `pause`, inside an event loop."""
    await asyncio.sleep(seconds)
