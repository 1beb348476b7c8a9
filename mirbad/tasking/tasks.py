"""Typed tasks that carry an id and nothing else, rung when the transaction has committed."""

from collections.abc import Callable

import structlog
from django.db import transaction
from kombu.exceptions import OperationalError

from mirbad.kernel.conf import settings
from mirbad.tasking.app import app

log = structlog.get_logger(__name__)

RING_LIFE_SECONDS = 60.0
"""A ring that nobody heard for so long is dropped: the sweep has rung since, and rings must not pile up."""


class Bell:
    """A doorbell: a task that is given one id. Losing a ring loses nothing: a sweep rings for what is due.

    It is known by name, so that a module may ring without importing the one that answers.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def answer(self, function: Callable[[str], None]) -> Callable[[str], None]:
        """Decorate the function that a worker runs for a ring."""
        app.task(name=self.name)(function)
        return function

    def ring(self, identity: str, delay_seconds: float = 0.0) -> bool:
        """Ask a worker to run it after `delay_seconds`. False when the broker could not be reached within seconds."""
        if not settings().redis_url:
            return False
        try:
            app.send_task(
                self.name, args=(identity,), countdown=delay_seconds or None, expires=delay_seconds + RING_LIFE_SECONDS
            )
        except (OperationalError, OSError) as error:
            log.warning("the broker cannot be reached; the sweep will ring", task=self.name, error=str(error))
            return False
        return True


def tick(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Decorate a function without arguments as a task of the beat table."""

    def decorate(function: Callable[[], None]) -> Callable[[], None]:
        app.task(name=name)(function)
        return function

    return decorate


def enqueue(bell: Bell, identity: str, delay_seconds: float = 0.0) -> None:
    """Ring `bell` once the open transaction has committed (at once without one); a failure to ring is only logged."""

    def ring() -> None:
        bell.ring(identity, delay_seconds)

    transaction.on_commit(ring, robust=True)
