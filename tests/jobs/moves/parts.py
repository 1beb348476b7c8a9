"""Requests of the tests of moves, and their views of the result."""

from jobs.models import Operation
from jobs.requests import moves
from models_app.models import Hold, Placement
from tests.models_app.things import PERSON

HANDOVER = [
    "downloading",
    "starting-target",
    "target-ready",
    "placement-committed",
    "draining-source",
    "stopping-source",
]
STOP_FIRST = ["downloading", "stopping-source", "source-stopped", "placement-committed", "starting-target"]


def stages(operation: Operation) -> list[str]:
    return list(dict.fromkeys(operation.events.values_list("stage", flat=True)))


def move(mode: str = "auto", **also) -> Operation:
    return moves.request("tiny", "pc-2", (), PERSON, mode=mode, **also)


def the_placement() -> Placement:
    return Placement.objects.get()


def untouched(serving: Placement, fleet) -> bool:
    """Everything is as before the move."""
    placement = the_placement()
    same = (placement.pk, placement.routed, placement.desired) == (serving.pk, True, "running")
    return same and fleet.source.running == 1 and fleet.target.running == 0 and not Hold.objects.exists()
