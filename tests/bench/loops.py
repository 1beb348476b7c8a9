"""The ticks of beat and the work of the workers, in a thread of this process, for figures with real agents."""

import threading
import time
from collections.abc import Callable, Iterable

from django.db import connections

from jobs import worker
from jobs.queries import unfinished

_POLL_SECONDS = 0.1
_END_SECONDS = 30


class Loops:
    """Within the block, calls each of `ticks` every `seconds` and runs each open operation."""

    def __init__(self, ticks: Iterable[Callable[[], object]], seconds: float) -> None:
        self._ticks, self._seconds = tuple(ticks), seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        ticked = 0.0
        while not self._over.wait(_POLL_SECONDS):
            if time.monotonic() - ticked > self._seconds:
                ticked = time.monotonic()
                for tick in self._ticks:
                    tick()
            for operation in unfinished():
                worker.run(operation.pk)
        connections.close_all()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_END_SECONDS)
