"""Typed tasks that carry an id and nothing else, sent after the transaction has committed."""

from collections.abc import Callable

import structlog
from django.db import transaction
from kombu.exceptions import OperationalError

from mirbad.kernel.conf import settings
from mirbad.tasking.app import app

log = structlog.get_logger(__name__)

SIGNAL_LIFE_SECONDS = 60.0
"""A signal that no worker took for so long is dropped: the sweep has sent another, and signals must not pile up."""


class TaskSignal:
    """A task with one id as its argument. A lost signal costs time only: the sweep enqueues whatever is due.

    It is addressed by name, so that a module may enqueue it without importing the module that handles it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def handler(self, function: Callable[[str], None]) -> Callable[[str], None]:
        """Decorate the function that a worker runs for this signal."""
        app.task(name=self.name)(function)
        return function

    def enqueue(self, identity: str, delay_seconds: float = 0.0) -> bool:
        """Request a run after `delay_seconds`. False when the broker could not be reached within seconds."""
        if not settings().redis_url:
            return False
        try:
            app.send_task(
                self.name,
                args=(identity,),
                countdown=delay_seconds or None,
                expires=delay_seconds + SIGNAL_LIFE_SECONDS,
            )
        except (OperationalError, OSError) as error:
            log.warning("broker unreachable; the sweep will enqueue the task", task=self.name, error=str(error))
            return False
        return True


def tick(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Decorate a function without arguments as a task of the beat table."""

    def decorate(function: Callable[[], None]) -> Callable[[], None]:
        app.task(name=name)(function)
        return function

    return decorate


def enqueue_on_commit(signal: TaskSignal, identity: str, delay_seconds: float = 0.0) -> None:
    """Enqueue `signal` once the open transaction has committed (at once without one); a failure is only logged."""

    def send() -> None:
        signal.enqueue(identity, delay_seconds)

    transaction.on_commit(send, robust=True)
