"""Typed tasks that carry an id and nothing else, rung when the transaction has committed."""

from collections.abc import Callable
from typing import Any

import structlog
from django.db import transaction
from kombu.exceptions import OperationalError

from mirbad.kernel.conf import settings
from mirbad.tasking.app import app

log = structlog.get_logger(__name__)


class Bell:
    """A task named `name` that is given one id. Losing a ring loses nothing: a sweep rings for what is due."""

    def __init__(self, name: str, function: Callable[[str], None]) -> None:
        self.name = name
        self._task: Any = app.task(name=name)(function)

    def __call__(self, identity: str) -> None:
        """Do the work here and now."""
        self._task(identity)

    def ring(self, identity: str, delay_seconds: float = 0.0) -> bool:
        """Ask a worker to run it after `delay_seconds`. False when the broker could not be reached within seconds."""
        if not settings().redis_url:
            return False
        try:
            self._task.apply_async(args=(identity,), countdown=delay_seconds or None)
        except (OperationalError, OSError) as error:
            log.warning("the broker cannot be reached; the sweep will ring", task=self.name, error=str(error))
            return False
        return True


def bell(name: str) -> Callable[[Callable[[str], None]], Bell]:
    """Decorate a function of one id as a task."""

    def decorate(function: Callable[[str], None]) -> Bell:
        return Bell(name, function)

    return decorate


def tick(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Decorate a function without arguments as a task of the beat table."""

    def decorate(function: Callable[[], None]) -> Callable[[], None]:
        app.task(name=name)(function)
        return function

    return decorate


def enqueue(task: Bell, identity: str, delay_seconds: float = 0.0) -> None:
    """Ring `task` once the open transaction has committed (at once without one); a failure to ring is only logged."""

    def ring() -> None:
        task.ring(identity, delay_seconds)

    transaction.on_commit(ring, robust=True)
