"""A worker that is killed between any two statements: nothing is lost, nothing is done twice.

`Killed` is raised where a `kill -9` could fall: after a claim, before and after each call to the agent, inside and
after each write, before each ring. Then a minute passes, the sweep rings, and another worker goes on.
"""

from collections.abc import Callable
from typing import Any

import pytest

from audit.models import AuditLine
from jobs import ledger, worker
from jobs.loops.sweep import sweep_once
from jobs.models import Operation, OperationEvent
from jobs.queries import unfinished
from jobs.requests import cancellation, model_runs
from mirbad.tasking.tasks import TaskSignal
from models_app.models import ModelDefinition, Placement
from tests.jobs.test_launch import SLOW
from tests.models_app.things import PERSON, node, placed
from tests.standins.memory import READY, MemoryAgent

pytestmark = [pytest.mark.faults, pytest.mark.django_db]


class Killed(BaseException):
    """The process is gone: no handler of ours may see it."""


class Trap:
    """Counts the boundaries that are crossed and kills at the chosen one."""

    def __init__(self) -> None:
        self.armed_at: int | None = None
        self.crossed = 0

    def cross(self) -> None:
        self.crossed += 1
        if self.crossed == self.armed_at:
            raise Killed

    def around(self, function: Callable[..., Any], *, before: bool = False) -> Callable[..., Any]:
        def trapped(*args: Any, **kwargs: Any) -> Any:
            if before:
                self.cross()
            answer = function(*args, **kwargs)
            self.cross()
            return answer

        return trapped


@pytest.fixture
def trap(agent: MemoryAgent, monkeypatch: pytest.MonkeyPatch) -> Trap:
    made = Trap()
    monkeypatch.setattr(ledger, "claim", made.around(ledger.claim))
    monkeypatch.setattr(ledger, "_update", made.around(ledger._update))
    monkeypatch.setattr(ledger, "_add_event", made.around(ledger._add_event))
    monkeypatch.setattr(ledger, "write", made.around(ledger.write))
    monkeypatch.setattr("nodes.link.client.call", made.around(agent.call, before=True))

    def enqueue(signal: TaskSignal, identity: str, delay_seconds: float = 0.0) -> bool:
        made.cross()
        return True

    monkeypatch.setattr(TaskSignal, "enqueue", enqueue)
    return made


def run_with_kill(trap: Trap, operation_id: str, kill_at: int, pass_time: Callable[[float], None]) -> bool:
    """Run to the end with one kill at boundary `kill_at`; whether it fell."""
    trap.crossed, trap.armed_at = 0, kill_at
    fell = False
    for _ in range(80):
        if not unfinished().filter(pk=operation_id).exists():
            return fell
        try:
            worker.run(operation_id)
        except Killed:
            fell = True
            pass_time(60)
            still_open = unfinished().filter(pk=operation_id).exists()
            assert sweep_once() == still_open, "the sweep rings for it, whatever stage it is at"
            continue
        pass_time(6)
    raise AssertionError(Operation.objects.values().get(pk=operation_id))


def setting(agent: MemoryAgent) -> Placement:
    Placement.objects.all().delete()
    ModelDefinition.objects.all().delete()
    Operation.objects.all().delete()
    AuditLine.objects.all().delete()
    agent.__init__(plan=[*SLOW, READY])  # type: ignore[misc]
    return placed()


def quietly(trap: Trap, operation_id: str, pass_time: Callable[[float], None]) -> None:
    run_with_kill(trap, operation_id, -1, pass_time)


def check_ledger(operation: Operation, finals: int = 1) -> None:
    assert (operation.lease_owner, operation.lease_expires_at) == ("", None)
    ended = AuditLine.objects.filter(operation_id_text=operation.pk).exclude(result="accepted")
    assert ended.count() == finals, "one end, one audit line"
    stages = list(OperationEvent.objects.filter(operation=operation).values_list("stage", flat=True))
    assert stages.count("done") == (1 if operation.outcome == "succeeded" else 0)


def boundaries() -> range:
    return range(1, 200)


def test_a_launch_killed_anywhere_starts_one_engine_once(agent, trap, pass_time) -> None:
    node("pc-1")
    falls = 0
    for kill_at in boundaries():
        setting(agent)
        operation = model_runs.start("tiny", PERSON)
        fell = run_with_kill(trap, operation.pk, kill_at, pass_time)
        operation.refresh_from_db()
        placement = Placement.objects.get()
        assert operation.outcome == "succeeded", (kill_at, operation.error)
        assert (len(agent.launches), agent.running, agent.stops) == (1, 1, 0), kill_at
        assert (placement.desired, placement.observed) == ("running", "ready"), kill_at
        check_ledger(operation)
        falls += fell
        if not fell:
            break
    assert falls > 25, "the kills fell in every stage"


def test_a_stop_killed_anywhere_ends_the_engine(agent, trap, pass_time) -> None:
    node("pc-1")
    for kill_at in boundaries():
        setting(agent)
        quietly(trap, model_runs.start("tiny", PERSON).pk, pass_time)
        operation = model_runs.stop("tiny", PERSON)
        fell = run_with_kill(trap, operation.pk, kill_at, pass_time)
        operation.refresh_from_db()
        placement = Placement.objects.get()
        assert operation.outcome == "succeeded", kill_at
        assert (agent.running, agent.stops, len(agent.launches)) == (0, 1, 1), kill_at
        assert (placement.desired, placement.observed) == ("stopped", "stopped"), kill_at
        check_ledger(operation)
        if not fell:
            break
    assert kill_at > 8


def test_a_restart_killed_anywhere_leaves_one_new_engine(agent, trap, pass_time) -> None:
    node("pc-1")
    for kill_at in boundaries():
        setting(agent)
        quietly(trap, model_runs.start("tiny", PERSON).pk, pass_time)
        operation = model_runs.restart("tiny", PERSON)
        fell = run_with_kill(trap, operation.pk, kill_at, pass_time)
        operation.refresh_from_db()
        assert operation.outcome == "succeeded", kill_at
        assert (agent.running, agent.stops, len(agent.launches)) == (1, 1, 2), kill_at
        check_ledger(operation)
        if not fell:
            break
    assert kill_at > 30


def test_a_cancel_killed_anywhere_leaves_nothing_running(agent, trap, pass_time) -> None:
    node("pc-1")
    for kill_at in boundaries():
        setting(agent)
        operation = model_runs.start("tiny", PERSON)
        trap.armed_at = None
        worker.run(operation.pk)
        assert agent.running == 1
        cancellation.request(operation.pk, PERSON)
        fell = run_with_kill(trap, operation.pk, kill_at, pass_time)
        operation.refresh_from_db()
        placement = Placement.objects.get()
        assert operation.outcome == "cancelled", kill_at
        assert (agent.running, agent.stops, len(agent.launches)) == (0, 1, 1), kill_at
        assert (placement.desired, placement.observed) == ("stopped", "stopped"), kill_at
        check_ledger(operation)
        if not fell:
            break
    assert kill_at > 8
