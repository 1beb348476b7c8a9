"""Processes that this agent's driver cannot list: those of a machine around it."""

from dataclasses import replace
from pathlib import Path

from agent.telemetry.cards import Cards

_PID_NAMESPACE = Path("/proc/self/ns/pid")
_FIRST = "pid:[4026531836]"


def sees_all() -> bool:
    """Return whether this process is in the machine's first PID namespace, and not in a container or under WSL."""
    try:
        return str(_PID_NAMESPACE.readlink()) == _FIRST
    except OSError:
        return False


def without_doubtful_lists(found: Cards) -> Cards:
    """Return `found` with those lists of processes that prove something.

    A driver lists no process outside of the first PID namespace. There an empty list is unknown, not "none".
    """
    if sees_all():
        return found
    cards = (card if card.processes else replace(card, processes=None) for card in found.cards)
    return replace(found, cards=tuple(cards))
