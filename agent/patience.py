"""Calls of the file system that may hang for ever, as a network file system does when its server is gone.

Such a call cannot be ended: its thread stays until the file system answers. So each runs in a thread of its own, which
keeps neither the agent nor its other work, and the same call is not begun again while one hangs.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

_hanging: dict[str, threading.Thread] = {}
_lock = threading.Lock()


def within(seconds: float, key: str, call: Callable[[], T]) -> T:
    """Return the result of `call`, or raise its exception. TimeoutError when it takes longer; blocking.

    While an earlier call under `key` hangs, TimeoutError comes at once.
    """
    answered: Future[T] = Future()

    def run() -> None:
        try:
            answered.set_result(call())
        except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
            answered.set_exception(error)

    thread = threading.Thread(target=run, name=f"file system: {key}", daemon=True)
    with _lock:
        if (earlier := _hanging.get(key)) is not None and earlier.is_alive():
            raise TimeoutError(f"an earlier call of {key} still hangs")
        _hanging.pop(key, None)
    thread.start()
    _, late = wait((answered,), timeout=seconds)
    if late:
        with _lock:
            _hanging[key] = thread
        raise TimeoutError(f"{key} did not answer within {seconds:g} s")
    return answered.result()


async def answer(seconds: float, key: str, call: Callable[[], T]) -> T:
    """Return the result of `call`, off the event loop, as `within` does."""
    # The thread of the pool waits no longer than `seconds`.
    return await asyncio.to_thread(within, seconds, key, call)
