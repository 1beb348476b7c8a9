"""Releases the holds of ended operations: a hold is taken with its operation and must not outlive it.

The id of a holder names its operation: ``move-<operation>``, ``unplace-<operation>``,
``job-<operation>``, ``restore-<operation>-<model>``, or the operation's id alone.
"""

from datetime import timedelta

import structlog

from jobs.models import Operation
from mirbad.kernel import clock
from models_app import holds
from models_app.models import Hold

log = structlog.get_logger(__name__)

YOUNG = timedelta(seconds=30)
"""A hold may be taken shortly before its operation can be read."""


def release_stale_once() -> int:
    """Release every hold of an operation that is over or unknown, and return how many."""
    rows = list(Hold.objects.filter(since__lt=clock.now() - YOUNG))
    owners = {row.model_id: owner_of(row) for row in rows}
    open_ids = set(
        Operation.objects.filter(pk__in=set(owners.values()), finished_at__isnull=True).values_list("pk", flat=True)
    )
    released = 0
    for row in rows:
        if owners[row.model_id] not in open_ids and holds.release(row.model_id, row.holder_id):
            released += 1
            log.warning("released the hold of an ended operation", model=row.model_id, holder=row.holder_id)
    return released


def owner_of(hold: Hold) -> str:
    """Return the id of the operation that holds the model."""
    name = hold.holder_id.removeprefix(f"{hold.holder_kind}-")
    return name.removesuffix(f"-{hold.model_id}") if hold.holder_kind == "restore" else name
