"""A worker that is killed between any two statements of a move or an unplace: nothing is lost, nothing is done twice.

The kills fall at every `STRIDE`-th boundary; ``MIRBAD_TEST_STRIDE=1`` is every one.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest

from agent.wire.instances import InstanceState
from audit.models import AuditLine
from jobs import ledger, worker
from jobs.models import Operation
from jobs.requests import model_runs, moves, unplacing
from mirbad.tasking.tasks import TaskSignal
from models_app.models import Hold, ModelDefinition, Placement
from nodes.models import Node
from tests.jobs.moves.conftest import Fleet
from tests.jobs.test_killed import Trap, quietly, run_with_kill
from tests.models_app.things import PERSON, placed

pytestmark = [pytest.mark.faults, pytest.mark.django_db]

STRIDE = int(os.environ.get("MIRBAD_TEST_STRIDE", "7"))


@pytest.fixture
def trap(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Trap:
    made = Trap()
    monkeypatch.setattr(ledger, "claim", made.around(ledger.claim))
    monkeypatch.setattr(ledger, "_update", made.around(ledger._update))
    monkeypatch.setattr(ledger, "_add_event", made.around(ledger._add_event))
    monkeypatch.setattr(ledger, "write", made.around(ledger.write))
    monkeypatch.setattr("nodes.link.client.call", made.around(fleet.call, before=True))
    from models_app.placement import relocate

    for name in ("bring_up", "switch", "replace", "leave"):
        monkeypatch.setattr(relocate, name, made.around(getattr(relocate, name)))

    def enqueue(signal: TaskSignal, identity: str, delay_seconds: float = 0.0) -> bool:
        made.cross()
        return True

    monkeypatch.setattr(TaskSignal, "enqueue", enqueue)
    return made


def setting(fleet: Fleet, trap: Trap, pass_time: Callable[[float], None]) -> Placement:
    Hold.objects.all().delete()
    Placement.objects.all().delete()
    ModelDefinition.objects.all().delete()
    Operation.objects.all().delete()
    AuditLine.objects.all().delete()
    for agent in fleet.agents.values():
        agent.__init__()  # type: ignore[misc]
    Node.objects.update(reachability="online")
    placement = placed()
    quietly(trap, model_runs.start("tiny", PERSON).pk, pass_time)
    placement.refresh_from_db()
    return placement


def over(fleet: Fleet) -> tuple[Any, ...]:
    """Return the state that a move leaves, whenever the worker was killed."""
    placement = Placement.objects.get()
    agents = (fleet.source.running, fleet.source.stops, fleet.target.running, len(fleet.target.launches))
    where = (placement.node_id_text, placement.routed, placement.desired, placement.observed)
    return (*agents, *where, Hold.objects.count())


@pytest.mark.parametrize("mode", ["handover", "stop-first"])
def test_a_move_killed_anywhere_ends_once(fleet, trap, pass_time, mode) -> None:
    falls = 0
    for kill_at in range(1, 400, STRIDE):
        setting(fleet, trap, pass_time)
        operation = moves.request("tiny", "pc-2", (), PERSON, mode=mode)
        fell = run_with_kill(trap, operation.pk, kill_at, pass_time)
        operation.refresh_from_db()
        assert operation.outcome == "succeeded", (kill_at, operation.error)
        assert over(fleet) == (0, 1, 1, 1, "pc-2", True, "running", "ready", 0), kill_at
        ended = AuditLine.objects.filter(operation_id_text=operation.pk, action="model.move").exclude(result="accepted")
        assert ended.count() == 1, kill_at
        started = AuditLine.objects.filter(operation_id_text=operation.pk, action__in=("model.start", "model.stop"))
        assert started.count() == 2, kill_at
        falls += fell
        if not fell:
            break
    assert falls > 35 / STRIDE


@pytest.mark.parametrize("mode", ["handover", "stop-first"])
def test_a_cancelled_move_killed_anywhere_leaves_everything_as_it_was(fleet, trap, pass_time, mode) -> None:
    falls = 0
    for kill_at in range(1, 200, STRIDE):
        serving = setting(fleet, trap, pass_time)
        trap.armed_at = None
        operation = moves.request("tiny", "pc-2", (), PERSON, mode=mode)
        wanted = {"handover": "starting-target", "stop-first": "stopping-source"}[mode]
        while Operation.objects.get(pk=operation.pk).stage != wanted:
            worker.run_step(operation.pk)
            pass_time(3)
        fleet.source.stubborn = True
        for _ in range(2):
            worker.run_step(operation.pk)
            pass_time(3)
        moves.cancel("tiny", PERSON)
        if mode == "stop-first":
            fleet.source.engines[str(serving.pk)].script = [{"state": InstanceState.EXITED, "exit_code": 0}]
        fell = run_with_kill(trap, operation.pk, kill_at, pass_time)
        operation.refresh_from_db()
        assert operation.outcome == "cancelled", (kill_at, operation.error)
        placement = Placement.objects.get()
        assert (placement.pk, placement.routed, placement.desired) == (serving.pk, True, "running"), kill_at
        assert (fleet.source.running, fleet.target.running, Hold.objects.count()) == (1, 0, 0), kill_at
        falls += fell
        if not fell:
            break
    assert falls > 10 / STRIDE


def test_an_unplace_killed_anywhere_ends_once(fleet, trap, pass_time) -> None:
    for kill_at in range(1, 200, STRIDE):
        setting(fleet, trap, pass_time)
        operation = unplacing.request("tiny", PERSON, confirm="tiny")
        fell = run_with_kill(trap, operation.pk, kill_at, pass_time)
        operation.refresh_from_db()
        assert operation.outcome == "succeeded", kill_at
        assert (Placement.objects.count(), Hold.objects.count(), fleet.source.running) == (0, 0, 0), kill_at
        assert fleet.source.stops == 1
        if not fell:
            break
    assert kill_at > 5


def test_a_stage_delivered_twice_is_done_once(fleet, trap, pass_time) -> None:
    setting(fleet, trap, pass_time)
    trap.armed_at = None
    operation = moves.request("tiny", "pc-2", (), PERSON)
    claimed = ledger.claim
    twice = []

    def claim(operation_id: str, owner: str) -> Any:
        step = claimed(operation_id, owner)
        # Another worker that heard the same bell, while this one holds the stage.
        twice.append(claimed(operation_id, f"{owner}-another"))
        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "claim", claim)
        quietly(trap, operation.pk, pass_time)
    assert set(twice) == {None}
    assert over(fleet) == (0, 1, 1, 1, "pc-2", True, "running", "ready", 0)
