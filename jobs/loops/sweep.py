"""Rings for what is due. A lost ring, a killed worker or an emptied broker costs a moment, never an operation."""

from jobs import ledger
from jobs.base import STEP
from jobs.kinds import GO_ON_FENCED
from nodes import fencing


def sweep_once() -> int:
    """Ring for every operation that is due and that nobody holds; how many. Stops when the broker is away."""
    rung = 0
    # While this master is fenced nothing else may go on, and rings for what waits would only fill the queue.
    for operation_id in ledger.due_ids(kinds=GO_ON_FENCED if fencing.is_fenced() else None):
        if not STEP.ring(operation_id):
            break
        rung += 1
    return rung
