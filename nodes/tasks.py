"""Ticks of the nodes app."""

from mirbad.tasking.tasks import tick
from nodes.telemetry.rollup import prune_once, roll_up_once


@tick("nodes.telemetry")
def telemetry() -> None:
    """Average what nodes measured, and drop what is older than its time."""
    roll_up_once()
    prune_once()
