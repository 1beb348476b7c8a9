"""A worker for one operation, as a process: ``python -m tests.jobs.backup.runs OPERATION BOUNDARY``.

It ends itself by ``kill -9`` at boundary number BOUNDARY (0: at none), and prints how many it crossed.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

crossed = 0


def _cross(at: int) -> None:
    global crossed
    crossed += 1
    if crossed == at:
        os.kill(os.getpid(), signal.SIGKILL)


def _around(real: Callable[..., Any], at: int) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        _cross(at)
        answer = real(*args, **kwargs)
        _cross(at)
        return answer

    return call


def main(operation_id: str, at: int) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "mirbad.settings"
    import django

    django.setup()
    from django.db.models import QuerySet

    from jobs import ledger, worker
    from jobs.backup import sealed, storage, verification
    from jobs.backup.destinations import errand
    from jobs.queries import unfinished

    sealed._MEMORY_KIB = 64
    for module, name in (
        (os, "link"), (os, "fsync"), (QuerySet, "update"), (ledger, "claim"), (errand, "run"),
        (verification, "verify"), (storage, "remove_parts"), (ledger, "_end"),
    ):  # fmt: skip
        setattr(module, name, _around(getattr(module, name), at))
    while unfinished().filter(pk=operation_id).exists():
        worker.run(operation_id)
    print(crossed)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
