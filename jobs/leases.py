"""The lease of a step that takes longer than a lease: renewed by a thread while its effect runs."""

import contextlib
import threading
from collections.abc import Iterator

import structlog
from django.db import DatabaseError, connection

from jobs.models import Operation
from jobs.queries import unfinished
from mirbad.kernel import clock
from mirbad.kernel.conf import settings

log = structlog.get_logger(__name__)


@contextlib.contextmanager
def kept(claimed: Operation) -> Iterator[None]:
    """Renew the lease of a claimed step until the block ends. With this process the renewal ends, too."""
    over = threading.Event()
    thread = threading.Thread(target=_renew, args=(claimed, over), name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _renew(claimed: Operation, over: threading.Event) -> None:
    lease = settings().operation_lease
    try:
        while not over.wait(lease.total_seconds() / 3):
            try:
                # Zero rows: another worker has the operation, whose write will refuse this one's result.
                if (
                    not unfinished()
                    .filter(pk=claimed.pk, fence=claimed.fence, lease_owner=claimed.lease_owner)
                    .update(lease_expires_at=clock.now() + lease)
                ):
                    return
            except DatabaseError as error:
                log.warning("a lease could not be renewed", operation=claimed.pk, why=str(error))
    finally:
        connection.close()
