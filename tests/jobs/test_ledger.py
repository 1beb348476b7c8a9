"""The ledger: one worker a step, and no word of a worker whose time is over."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from structlog.testing import capture_logs

from audit.models import AuditLine
from jobs import ledger, queries, worker
from jobs.base import AnyStep, Audit, Cancelled, Done, Go, Kind, NoData, Stage, Wait
from jobs.errors import LeaseLost, StepFailed
from jobs.kinds import KINDS
from jobs.loops.sweep import sweep_once
from jobs.models import Operation, OperationEvent
from jobs.requests import model_runs
from mirbad.kernel.actor import admin, api
from mirbad.kernel.errors import Conflict, NotFound
from models_app.models import Placement
from tests.jobs.test_launch import SLOW
from tests.models_app.things import PERSON, node, placed
from tests.standins.memory import READY

pytestmark = pytest.mark.app
LAUNCH = KINDS["launch"]


def operation(target: str = "t-1", model_id: str = "tiny") -> Operation:
    subject = ledger.Subject("placement", target, "pc-1", model_id)
    with transaction.atomic():
        return ledger.create(LAUNCH, "checking", subject, PERSON, "Start requested.")


def claimed(operation_id: str, owner: str = "worker-1") -> Operation:
    row = ledger.claim(operation_id, owner)
    assert row is not None
    return row


@pytest.mark.django_db
@pytest.mark.parametrize("end", ["done", "cancelled", "failed"])
@pytest.mark.parametrize("who", [admin("s", "ada", "owner", "192.0.2.7"), api("192.0.2.8", "ci", "operator"), PERSON])
def test_the_line_at_the_end_names_the_person_of_the_request(who, end) -> None:
    kind = KINDS["stop"]
    with transaction.atomic():
        subject = ledger.Subject("placement", "t-1", "pc-1", "tiny")
        row = ledger.create(kind, "stopping", subject, who, "Stop requested.")
    step = claimed(row.pk)
    if end == "failed":
        ledger.write_failure(step, StepFailed("internal", "No.", final=True), kind)
    else:
        ledger.write(step, Done("Done.") if end == "done" else Cancelled("Cancelled."), kind)
    line = AuditLine.objects.get(operation_id_text=row.pk)
    assert (line.actor, line.person, line.role, line.address) == (who.name, who.person, who.role, who.address)


@pytest.mark.django_db
def test_a_claimed_step_is_nobody_elses_until_its_lease_is_over(pass_time) -> None:
    row = operation()
    first = claimed(row.pk)
    assert ledger.claim(row.pk, "worker-2") is None
    assert ledger.due_ids() == []
    pass_time(31)
    assert ledger.due_ids() == [row.pk]
    second = claimed(row.pk, "worker-2")
    assert (first.fence, second.fence) == (1, 2)


@pytest.mark.django_db
@pytest.mark.parametrize("back", [15 * 60, 3600, 86400, 40 * 86400])
@pytest.mark.parametrize("held", [False, True])
def test_an_operation_goes_on_when_the_clock_was_set_back(pass_time, back, held) -> None:
    row = operation()
    first = claimed(row.pk)
    if not held:
        assert ledger.write(first, Wait(30.0, {"text": "x"}), LAUNCH) == 30.0
    pass_time(-back)
    assert ledger.due_ids() == [row.pk]
    second = claimed(row.pk, "worker-2")
    assert second.fence == first.fence + 1
    assert ledger.claim(row.pk, "worker-3") is None
    assert ledger.write(second, Wait(1.0, {"text": "y"}), LAUNCH) == 1.0


@pytest.mark.django_db
def test_a_difference_of_clocks_within_minutes_takes_no_step_from_its_worker(pass_time) -> None:
    row = operation()
    claimed(row.pk)
    pass_time(-9 * 60)
    assert ledger.due_ids() == []


@pytest.mark.django_db
def test_no_pause_is_longer_than_the_longest(pass_time) -> None:
    row = operation()
    assert ledger.write(claimed(row.pk), Wait(7200.0, {"text": "x"}), LAUNCH) == 600.0
    assert ledger.due_ids() == []
    pass_time(601)
    assert ledger.due_ids() == [row.pk]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "word",
    [
        Go("starting"),
        Wait(1.0, {"text": "x"}),
        Done("Ready."),
        StepFailed("x", "y", final=True),
        StepFailed("x", "y", final=False),
    ],
)
def test_a_worker_whose_lease_is_over_writes_nothing(pass_time, word) -> None:
    row = operation()
    late = claimed(row.pk)
    pass_time(31)
    claimed(row.pk, "worker-2")
    before = Operation.objects.values().get()
    write = ledger.write_failure if isinstance(word, StepFailed) else ledger.write
    with pytest.raises(LeaseLost):
        write(late, word, LAUNCH)
    assert Operation.objects.values().get() == before
    assert OperationEvent.objects.count() == 1


@pytest.mark.django_db
def test_the_end_of_an_operation_and_what_follows_from_it_are_one_write() -> None:
    row = operation()
    step = claimed(row.pk)

    def broken(step: AnyStep, outcome: str, code: str) -> None:
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError):
        ledger.write(step, Done("Ready."), replace(LAUNCH, on_end=broken))
    assert Operation.objects.get().outcome == "open"


@pytest.mark.django_db
def test_a_step_that_waits_is_due_when_its_time_has_come(pass_time) -> None:
    row = operation()
    assert ledger.write(claimed(row.pk), Wait(3.0, {"text": "Loading."}), LAUNCH) == 3.0
    assert ledger.due_ids() == []
    assert ledger.claim(row.pk, "worker-1") is None
    pass_time(3.1)
    assert ledger.due_ids() == [row.pk]


@pytest.mark.django_db
def test_the_pause_between_tries_lies_in_the_row_and_grows(pass_time) -> None:
    row = operation()
    pauses = []
    for _ in range(6):
        pauses.append(ledger.write_failure(claimed(row.pk), StepFailed("x", "y", final=False), LAUNCH))
        pass_time(10)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert Operation.objects.get().attempt == 6
    ledger.write(claimed(row.pk), Go("starting"), LAUNCH)
    assert Operation.objects.get().attempt == 0


@pytest.mark.django_db
def test_a_wish_to_end_that_comes_during_the_last_step_is_not_passed_over() -> None:
    row = operation()
    step = claimed(row.pk)
    with transaction.atomic():
        ledger.ask_to_cancel(row)
    assert ledger.write(step, Done("Ready."), LAUNCH) == 0.0
    row.refresh_from_db()
    assert (row.outcome, row.stage) == ("open", "checking"), "the stage is done again, and knows of it"
    again = claimed(row.pk, "worker-2")
    assert again.cancel_requested_at
    assert ledger.write(again, Done("Ready."), LAUNCH) is None
    row.refresh_from_db()
    assert row.outcome == "succeeded", "when the stage has no way back"


def test_a_stop_in_the_very_last_moment_of_a_start_stops_the_engine(db, agent, finish) -> None:
    node("pc-1")
    placed()
    started = model_runs.start("tiny", PERSON)

    def stop_once(route: str) -> None:
        if route == "GET instances":
            agent.before_answer = lambda _: None
            model_runs.stop("tiny", PERSON)

    agent.plan = [READY]
    agent.before_answer = stop_once
    assert finish(started.pk).outcome == "cancelled"
    assert (agent.running, agent.stops, Placement.objects.get().desired) == (0, 1, "stopped")


@pytest.mark.django_db
def test_what_is_over_is_never_claimed_again(pass_time) -> None:
    row = operation()
    ledger.write(claimed(row.pk), Done("Ready."), LAUNCH)
    pass_time(999)
    assert ledger.claim(row.pk, "worker-2") is None
    assert not ledger.ask_to_cancel(row)


@pytest.mark.django_db
def test_one_open_operation_a_lane_and_target() -> None:
    first = operation()
    with pytest.raises(IntegrityError):
        operation()
    operation("t-2")
    ledger.write(claimed(first.pk), Done("Ready."), LAUNCH)
    operation()


@pytest.mark.django_db
def test_an_error_nobody_foresaw_is_tried_again_and_then_ends_the_operation(monkeypatch, pass_time) -> None:
    tries = []

    def broken(step: AnyStep):
        tries.append(step.attempt)
        raise ZeroDivisionError

    kind = Kind("launch", "Start", "run", NoData, NoData, (Stage("checking", "Check", broken),), Audit("model.start"))
    monkeypatch.setitem(KINDS, "launch", kind)
    row = operation()
    with capture_logs() as logged:
        for _ in range(9):
            worker.run(row.pk)
            pass_time(6)
    row.refresh_from_db()
    assert (tries, row.outcome, row.error["code"]) == ([0, 1, 2, 3, 4, 5], "failed", "internal")
    assert all(line["exc_info"] for line in logged), "the log has the traceback, the person does not"
    assert "ZeroDivision" not in str(row.error)


@pytest.mark.django_db
def test_a_ring_that_comes_twice_does_the_step_once(agent) -> None:
    node("pc-1")
    placed()
    agent.plan = [*SLOW, READY]
    row = model_runs.start("tiny", PERSON)
    assert worker.run(row.pk) > 0
    assert worker.run(row.pk) == 0
    assert len(agent.launches) == 1


@pytest.mark.django_db
def test_without_a_broker_a_request_is_taken_and_the_sweep_rings_later(agent, finish, monkeypatch) -> None:
    node("pc-1")
    placed()
    monkeypatch.setattr("jobs.base.TaskSignal.enqueue", lambda self, identity, delay=0.0: False)
    row = model_runs.start("tiny", PERSON)
    assert sweep_once() == 0, "no broker, no signal"
    rung: list[str] = []
    monkeypatch.setattr("jobs.base.TaskSignal.enqueue", lambda self, identity, delay=0.0: not rung.append(identity))
    assert (sweep_once(), rung) == (1, [row.pk])
    assert finish(row.pk).outcome == "succeeded"
    assert sweep_once() == 0


@pytest.mark.django_db
def test_lists_cost_a_constant_number_of_statements() -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as caught:
            queries.open_by_model([f"m{n}" for n in range(9)])
            queries.last_by_model([f"m{n}" for n in range(9)])
        return len(caught)

    operation("t-0", model_id="m0")
    one = count()
    for number in range(1, 9):
        operation(f"t-{number}", model_id=f"m{number}")
    assert count() == one == 2
    newest = operation("t-x", model_id="m3")
    assert queries.last_by_model(["m3", "m4"])["m3"].pk == newest.pk
    with pytest.raises(NotFound):
        queries.one_operation("op-none")


def race(work, count: int = 8) -> list:
    """Return the results of `count` threads that begin at one moment; an exception is a value too."""
    gate = threading.Barrier(count)

    def one(number: int):
        try:
            gate.wait()
            return work(number)
        except Exception as error:  # noqa: BLE001 - what a racer got is looked at by the test
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.faults
@pytest.mark.django_db(transaction=True)
def test_of_many_workers_that_race_for_a_step_one_gets_it() -> None:
    for number in range(10):
        row = operation(f"t-{number}")
        got = race(lambda n, pk=row.pk: ledger.claim(pk, f"worker-{n}"))
        assert sum(isinstance(step, Operation) for step in got) == 1, got
        assert [step for step in got if not isinstance(step, Operation)] == [None] * 7
        row.refresh_from_db()
        assert row.fence == 1


@pytest.mark.faults
@pytest.mark.django_db(transaction=True)
def test_people_who_start_at_one_moment_get_the_same_operation(agent) -> None:
    node("pc-1")
    placed()
    got = race(lambda _: model_runs.start("tiny", PERSON).pk)
    assert len(set(got)) == 1, got
    assert Operation.objects.count() == 1


@pytest.mark.faults
@pytest.mark.django_db(transaction=True)
def test_workers_that_race_through_whole_launches_start_each_engine_once(agent, pass_time) -> None:
    node("pc-1")
    agent.plan = [*SLOW, READY]
    rows = [model_runs.start(placed(f"m{number}").model_id, PERSON) for number in range(4)]
    for _ in range(12):
        race(lambda n: [worker.run(row.pk) for row in rows], 4)
        pass_time(2)
    assert {row.outcome for row in Operation.objects.all()} == {"succeeded"}
    assert (len(agent.launches), Placement.objects.filter(observed="ready").count()) == (4, 4)


@pytest.mark.faults
@pytest.mark.django_db(transaction=True)
def test_a_stop_and_a_start_at_one_moment_leave_one_of_both(agent, finish) -> None:
    node("pc-1")
    for number in range(6):
        model = f"m{number}"
        placed(model)
        finish(model_runs.start(model, PERSON).pk)
        got = race(lambda n, model=model: (model_runs.stop if n % 2 else model_runs.restart)(model, PERSON).pk, 4)
        assert all(isinstance(answer, str | Conflict) for answer in got), got
        for row in Operation.objects.filter(finished_at__isnull=True):
            finish(row.pk)
        placement = Placement.objects.get(model_id=model)
        assert (placement.desired, placement.observed) in {("running", "ready"), ("stopped", "stopped")}


@pytest.mark.django_db
def test_a_counter_that_runs_is_progress_and_no_new_line_of_the_timeline(pass_time) -> None:
    row = operation()
    for text in ("Pulling, 1.5 of 9 GB", "Pulling, 2.25 of 9 GB", "Unpacking"):
        ledger.write(claimed(row.pk), Wait(0.5, {"text": text}), LAUNCH)
        pass_time(1)
    assert list(row.events.values_list("text", flat=True)) == ["Start requested.", "Pulling, 1.5 of 9 GB", "Unpacking"]
    assert Operation.objects.get().progress == {"text": "Unpacking"}


@pytest.mark.django_db
def test_pages_are_told_of_what_changed_once_it_has_committed(
    agent, finish, monkeypatch, django_capture_on_commit_callbacks
) -> None:
    told: list[tuple[str, str]] = []
    monkeypatch.setattr("mirbad.live.invalidations.changed", lambda topic, subject="": told.append((topic, subject)))
    node("pc-1")
    placed()
    with django_capture_on_commit_callbacks(execute=True):
        row = model_runs.start("tiny", PERSON)
        assert told == [], "nothing is told before the commit"
    assert {("operations", row.pk), ("models", "tiny")} <= set(told)
    told.clear()
    with django_capture_on_commit_callbacks(execute=True):
        finish(row.pk)
    assert {("operations", row.pk), ("models", "tiny")} <= set(told)
