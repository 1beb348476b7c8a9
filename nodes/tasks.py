"""Ticks of the nodes app."""

from audit.seal import seal_once
from mirbad.tasking.tasks import tick
from nodes import drains
from nodes.accepted_logs import WITNESS_NOW
from nodes.telemetry.rollup import prune_once, roll_up_once
from nodes.witnesses import collect_once


@tick("nodes.telemetry")
def telemetry() -> None:
    """Average measurements of nodes, and drop those past their retention."""
    roll_up_once()
    prune_once()


@tick("nodes.drains")
def send_drains() -> None:
    """Tell nodes whether they are drained."""
    drains.tell_once()


@WITNESS_NOW.handler
def witness_now(_: str) -> None:
    """Seal the lines of a decision and show it to the nodes, before the next tick."""
    while seal_once():
        pass
    collect_once()


@tick("nodes.audit-witnesses")
def witness_audit_log() -> None:
    """Sign the head of the audit log and have the nodes witness it."""
    collect_once()
