"""Moves from the request to the end, by both ways."""

import pytest

from audit.models import AuditLine
from jobs import moves, requests
from models_app.models import Hold, Placement
from tests.models_app.things import PERSON, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def _machines() -> None:
    node("pc-1")
    node("pc-2")


def stages(operation) -> list[str]:
    seen = operation.events.values_list("stage", flat=True)
    return list(dict.fromkeys(seen))


def test_a_model_that_serves_is_handed_over(agent, finish) -> None:
    placed()
    finish(requests.start("tiny", PERSON).pk)
    source = Placement.objects.get()
    operation = moves.request("tiny", "pc-2", (), PERSON)
    assert (operation.kind, operation.lane, operation.input["mode"]) == ("move", "placement", "handover")
    assert Hold.objects.get().words == "a move to node pc-2"
    done = finish(operation.pk)
    assert (done.outcome, done.error) == ("succeeded", {})
    assert stages(done) == [
        "downloading",
        "starting-target",
        "target-ready",
        "placement-committed",
        "draining-source",
        "stopping-source",
        "done",
    ]
    target = Placement.objects.get()
    assert (target.node_id_text, target.routed, target.desired, target.observed) == ("pc-2", True, "running", "ready")
    assert target.generation == source.generation + 1
    assert (agent.running, agent.stops, len(agent.launches)) == (1, 1, 2)
    assert not Hold.objects.exists()
    lines = [(row.action, row.actor, row.result) for row in AuditLine.objects.order_by("id")][3:]
    assert lines == [
        ("model.move", PERSON.name, "accepted"),
        ("model.start", "system:move", "accepted"),
        ("model.stop", "system:move", "accepted"),
        ("model.move", PERSON.name, "succeeded"),
    ]


def test_a_model_that_is_to_stop_first_is_stopped_moved_and_started(agent, finish) -> None:
    placed()
    finish(requests.start("tiny", PERSON).pk)
    done = finish(moves.request("tiny", "pc-2", (), PERSON, mode="stop-first").pk)
    assert (done.outcome, done.error) == ("succeeded", {})
    assert stages(done) == [
        "downloading",
        "stopping-source",
        "source-stopped",
        "placement-committed",
        "starting-target",
        "done",
    ]
    target = Placement.objects.get()
    assert (target.node_id_text, target.routed, target.desired, target.observed) == ("pc-2", True, "running", "ready")
    assert (agent.running, agent.stops, len(agent.launches)) == (1, 1, 2)
