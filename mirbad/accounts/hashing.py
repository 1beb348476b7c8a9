"""Password hashers that use the memory of one hash, however many people log in, and give way to everything else."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from django.contrib.auth.hashers import Argon2PasswordHasher, PBKDF2PasswordHasher

from mirbad.kernel.errors import Unavailable

T = TypeVar("T")

# One hash fills 100 MiB and all cores: a second one at the same time costs memory and gains nothing.
MOST_AT_ONCE = 1
MOST_WAITING = 16
WAIT_SECONDS = 5.0
NICE = 10


class HashingBusy(Unavailable):
    """More passwords wait to be checked than the process accepts."""


class Places:
    """Bounds how many threads are in a block, and how many wait for it."""

    def __init__(self, at_once: int = MOST_AT_ONCE, waiting: int = MOST_WAITING, seconds: float = WAIT_SECONDS) -> None:
        self._free = threading.Semaphore(at_once)
        self._all = threading.Semaphore(at_once + waiting)
        self._seconds = seconds

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a place for the block. Raises HashingBusy when too many wait, or none became free in time."""
        if not self._all.acquire(blocking=False):
            raise _busy()
        try:
            if not self._free.acquire(timeout=self._seconds):
                raise _busy()
            try:
                yield
            finally:
                self._free.release()
        finally:
            self._all.release()


def _busy() -> HashingBusy:
    return HashingBusy(
        "Many people are logging in at the moment. Try again in a few seconds.", retry_after_seconds=int(WAIT_SECONDS)
    )


places = Places()


def _give_way() -> None:
    """Lower the priority of this thread and of those that it starts: the event loop of the process comes first."""
    thread = threading.get_native_id()  # on Linux each thread has a priority of its own
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)


_threads = ThreadPoolExecutor(MOST_AT_ONCE, "hash", _give_way)


def _hash(compute: Callable[..., T], *arguments: object) -> T:
    """Compute in the thread for hashes. Raises HashingBusy."""
    with places.one():
        return _threads.submit(compute, *arguments).result()


class BoundedArgon2(Argon2PasswordHasher):
    """Argon2id with Django's cost. The hashes are Django's own, so stored passwords stay valid."""

    def encode(self, password: str, salt: str) -> str:
        """Hash `password`. Raises HashingBusy."""
        return _hash(super().encode, password, salt)

    def verify(self, password: str, encoded: str) -> bool:
        """Compare `password` with a stored hash. Raises HashingBusy."""
        return _hash(super().verify, password, encoded)


class BoundedPBKDF2(PBKDF2PasswordHasher):
    """PBKDF2, for accounts that were created elsewhere; the next log-in replaces the hash."""

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        """Hash `password`, also to compare it with a stored hash. Raises HashingBusy."""
        return _hash(super().encode, password, salt, iterations)
