"""The sweep: enqueues due operations. A lost signal, a killed worker or an emptied broker costs time only."""

from jobs import ledger
from jobs.base import STEP
from jobs.kinds import CONTINUE_FENCED
from nodes import fencing


def sweep_once() -> int:
    """Enqueue every operation that is due and not leased, and return how many. Ends when the broker is away."""
    enqueued = 0
    # While this master is fenced nothing else may continue, and signals for the rest would only fill the queue.
    for operation_id in ledger.due_ids(kinds=CONTINUE_FENCED if fencing.is_fenced() else None):
        if not STEP.enqueue(operation_id):
            break
        enqueued += 1
    return enqueued
