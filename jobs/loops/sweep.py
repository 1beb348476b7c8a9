"""Rings for what is due. A lost ring, a killed worker or an emptied broker costs a moment, never an operation."""

from jobs import ledger
from jobs.base import STEP


def sweep_once() -> int:
    """Ring for every operation that is due and that nobody holds; how many. Stops when the broker is away."""
    rung = 0
    for operation_id in ledger.due_ids():
        if not STEP.ring(operation_id):
            break
        rung += 1
    return rung
