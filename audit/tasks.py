"""Ticks of the audit log."""

from audit.retention import prune_once
from audit.seal import seal_once
from mirbad.tasking.tasks import tick

_BATCHES_A_TICK = 20


@tick("audit.seal")
def seal() -> None:
    """Seal new lines and write them to the files."""
    for _ in range(_BATCHES_A_TICK):
        if not seal_once():
            return


@tick("audit.retention")
def retention() -> None:
    """Delete lines past their retention."""
    for _ in range(_BATCHES_A_TICK):
        if not prune_once():
            return
