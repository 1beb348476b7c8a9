"""Each write of the ledger, column by column: what it changes, what it adds to the timeline, and whom it tells."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from audit.models import AuditLine
from jobs import ledger
from jobs.base import STEP, AnyStep, Audit, Cancelled, Done, Go, Kind, OperationData, Stage, Wait
from jobs.errors import LeaseLost, StepFailed
from jobs.models import Operation, OperationEvent
from mirbad.kernel import clock
from mirbad.kernel.ids import new_operation_id
from tests.models_app.things import PERSON

pytestmark = [pytest.mark.app, pytest.mark.django_db]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(minutes=5)


class Data(OperationData):
    port: int = 0
    host: str = ""


KIND = Kind(
    "launch", "Start", "run", Data, Data, (Stage("checking", "Check", lambda step: Done("Ready.")),),
    Audit("model.start", target=lambda step: f"port {step.input.port}", detail=lambda step, outcome: f"It {outcome}."),
)  # fmt: skip


@dataclass
class Told:
    """Ids that open pages, and workers, were told of."""

    pages: list[str]
    workers: list[tuple[object, str]]


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.setattr(clock, "now", lambda: NOW)
    told = Told([], [])
    monkeypatch.setattr(ledger.events, "changed", told.pages.append)
    monkeypatch.setattr(ledger, "enqueue_on_commit", lambda signal, identity: told.workers.append((signal, identity)))
    return told


def an_operation(target: str = "t-1", **columns: Any) -> Operation:
    given: dict[str, Any] = {
        "kind": "launch", "concurrency_group": "run", "target_kind": "placement", "node_id_text": "pc-1",
        "model_id_text": "tiny", "actor": PERSON.name, "input": {"port": 7}, "stage": "checking",
        "stage_since": EARLIER, "state": {"host": "a", "newer": 1}, "progress": {"text": "Loading 3 of 9."},
        "attempt": 2, "fence": 4, "lease_owner": "w-1", "lease_expires_at": NOW + timedelta(seconds=9),
        "next_run_at": EARLIER, "error": {"code": "old", "detail": "It failed."},
    }  # fmt: skip
    return Operation.objects.create(target_id=target, **given | columns)


def changes(row: Operation, act: Callable[[], Any]) -> tuple[Any, dict[str, Any], list[tuple[str, str]]]:
    """Return what `act` returns, the columns of `row` that it changed, and its new lines of the timeline.

    Operations beside it, at the same stage and with the same lease, must stay as they are.
    """
    an_operation("t-0", fence=row.fence), an_operation("t-2", fence=row.fence, lease_owner="w-2")
    before = {one["id"]: one for one in Operation.objects.values()}
    lines = set(OperationEvent.objects.values_list("pk", flat=True))
    answer = act()
    after = {one["id"]: one for one in Operation.objects.values()}
    assert {key: one for key, one in after.items() if key != row.pk} == {
        key: one for key, one in before.items() if key != row.pk
    }
    found = OperationEvent.objects.exclude(pk__in=lines)
    assert {(line.operation_id, line.time) for line in found} <= {(row.pk, NOW)}
    changed = {name: value for name, value in after[row.pk].items() if value != before[row.pk][name]}
    return answer, changed, list(found.values_list("stage", "text"))


FREE = {"lease_owner": "", "lease_expires_at": None}


def test_a_new_operation_is_due_at_once_and_keeps_what_it_was_given(told) -> None:
    subject = ledger.Subject("placement", "t-1", "pc-1", "tiny")
    with transaction.atomic():
        row = ledger.create(KIND, "checking", subject, PERSON, "Start requested.", Data(port=7), operation_id="op-7")
    assert Operation.objects.values().get() == {
        "id": "op-7", "kind": "launch", "concurrency_group": "run", "target_kind": "placement", "target_id": "t-1",
        "node_id_text": "pc-1", "model_id_text": "tiny", "actor": PERSON.name, "person": "", "role": "", "address": "",
        "input": {"port": 7},
        "stage": "checking", "stage_since": NOW, "state": {}, "progress": {}, "attempt": 0, "fence": 0,
        "lease_owner": "", "lease_expires_at": None, "next_run_at": NOW, "cancel_requested_at": None,
        "outcome": "open", "result": {}, "error": {}, "created_at": row.created_at, "finished_at": None,
    }  # fmt: skip
    assert list(OperationEvent.objects.values_list("operation_id", "time", "stage", "text")) == [
        ("op-7", NOW, "checking", "Start requested.")
    ]
    assert (told.pages, told.workers) == (["op-7"], [(STEP, "op-7")])


def test_a_new_operation_without_data_or_id_makes_both() -> None:
    row = ledger.create(KIND, "checking", ledger.Subject("node", "pc-1"), PERSON, "x")
    stored = Operation.objects.get()
    assert (stored.input, stored.node_id_text, stored.model_id_text) == ({}, "", "")
    assert len(row.pk) == len(new_operation_id())


def test_a_text_of_the_timeline_is_redacted_and_cut() -> None:
    ledger.create(KIND, "checking", ledger.Subject("node", "pc-1"), PERSON, "password=hunter2 " + "x " * 1000)
    text = OperationEvent.objects.get().text
    assert text.startswith("password=*** x")
    assert len(text) == 1000


def test_a_claim_takes_the_next_fence_and_a_lease(settings) -> None:
    row = an_operation(lease_owner="", lease_expires_at=None)
    claimed, changed, lines = changes(row, lambda: ledger.claim(row.pk, "w-9"))
    assert changed == {"fence": 5, "lease_owner": "w-9", "lease_expires_at": NOW + timedelta(seconds=30)}
    assert (claimed.pk, claimed.fence, lines) == (row.pk, 5, [])


@pytest.mark.parametrize(
    "columns",
    [
        {"next_run_at": NOW + timedelta(seconds=1), "lease_expires_at": None},
        {"lease_expires_at": NOW + timedelta(seconds=1)},
        {"finished_at": EARLIER, "lease_expires_at": None},
    ],
    ids=["not due", "held", "over"],
)
def test_what_is_not_free_is_not_claimed(columns) -> None:
    row = an_operation(**columns)
    assert changes(row, lambda: ledger.claim(row.pk, "w-1")) == (None, {}, [])


def test_the_next_stage_begins_now_with_the_state_so_far(told) -> None:
    row = an_operation()
    outcome = Go("starting", "The node is free.", Data(port=8))
    seconds, changed, lines = changes(row, lambda: ledger.write(row, outcome, KIND))
    assert seconds == 0.0
    assert changed == FREE | {
        "stage": "starting", "stage_since": NOW, "attempt": 0, "next_run_at": NOW, "progress": {}, "error": {},
        "state": {"host": "a", "newer": 1, "port": 8},
    }  # fmt: skip
    assert (lines, told.pages, told.workers) == ([("starting", "The node is free.")], [row.pk], [])


def test_a_stage_without_words_is_called_by_its_name_and_keeps_the_state() -> None:
    row = an_operation()
    _, changed, lines = changes(row, lambda: ledger.write(row, Go("starting"), KIND))
    assert "state" not in changed
    assert lines == [("starting", "starting")]


def test_a_wait_is_looked_at_again_in_its_time(told) -> None:
    row = an_operation()
    outcome = Wait(3.5, {"text": "Pulling.", "doneBytes": 5}, Data(host="b"))
    seconds, changed, lines = changes(row, lambda: ledger.write(row, outcome, KIND))
    assert seconds == 3.5
    assert changed == FREE | {
        "attempt": 0, "next_run_at": NOW + timedelta(seconds=3.5), "progress": {"text": "Pulling.", "doneBytes": 5},
        "error": {}, "state": {"host": "b", "newer": 1},
    }  # fmt: skip
    assert (lines, told.pages) == ([("checking", "Pulling.")], [row.pk])


def test_a_counter_that_runs_is_progress_and_no_line_of_the_timeline(told) -> None:
    row = an_operation()
    _, changed, lines = changes(row, lambda: ledger.write(row, Wait(1.0, {"text": "Loading 4.5 of 9,000."}), KIND))
    assert changed["progress"] == {"text": "Loading 4.5 of 9,000."}
    assert (lines, told.pages) == ([], [row.pk])


def test_the_same_progress_again_is_told_to_nobody(told) -> None:
    row = an_operation()
    _, changed, lines = changes(row, lambda: ledger.write(row, Wait(1.0, {"text": "Loading 3 of 9."}), KIND))
    assert "progress" not in changed
    assert (lines, told.pages) == ([], [])


def test_a_wait_without_words_leaves_no_line() -> None:
    row = an_operation()
    _, changed, lines = changes(row, lambda: ledger.write(row, Wait(0.0), KIND))
    assert changed["progress"] == {}
    assert lines == []


def test_a_success_is_written_with_its_result_and_its_audit_line(told) -> None:
    row = an_operation()
    seconds, changed, lines = changes(row, lambda: ledger.write(row, Done("Ready.", {"port": 9}), KIND))
    assert seconds is None
    assert changed == FREE | {
        "stage": "done", "outcome": "succeeded", "finished_at": NOW, "progress": {}, "error": {}, "result": {"port": 9},
    }  # fmt: skip
    assert (lines, told.pages) == ([("done", "Ready.")], [row.pk])
    assert audited() == (PERSON.name, "model.start", "pc-1", "tiny", row.pk, "port 7", "succeeded", "", "It succeeded.")


def test_a_cancelled_operation_keeps_its_stage_and_is_audited_as_failed(told) -> None:
    row = an_operation()
    seconds, changed, lines = changes(row, lambda: ledger.write(row, Cancelled("Nothing is left."), KIND))
    assert seconds is None
    assert changed == FREE | {"outcome": "cancelled", "finished_at": NOW, "progress": {}, "error": {}}
    assert (lines, told.pages) == ([("checking", "Nothing is left.")], [row.pk])
    assert audited()[5:] == ("port 7", "failed", "cancelled", "It cancelled.")


def test_a_kind_may_count_a_cancellation_as_its_success() -> None:
    row = an_operation()
    audit = Audit("model.start", cancelled_is_failed=False)
    ledger.write(row, Cancelled("x"), Kind("launch", "Start", "run", Data, Data, (), audit))
    assert audited()[5:] == ("", "succeeded", "", "")


def test_an_audit_rule_that_does_not_apply_leaves_no_line() -> None:
    row = an_operation()
    asked = []

    def applies(step: AnyStep, outcome: str) -> bool:
        asked.append((step.operation_id, outcome))
        return False

    ledger.write(row, Done("x"), Kind("launch", "Start", "run", Data, Data, (), Audit("model.start", applies=applies)))
    assert asked == [(row.pk, "succeeded")]
    assert not AuditLine.objects.exists()


def test_a_kind_is_told_of_the_end(told) -> None:
    ends = []
    kind = Kind(
        "launch", "Start", "run", Data, Data, (), Audit("model.start"),
        on_end=lambda step, outcome, code: ends.append((step.input, step.state, outcome, code)),
    )  # fmt: skip
    ledger.write_failure(an_operation(), StepFailed("no_memory", "Full.", final=True), kind)
    ledger.write(an_operation("t-2"), Done("x"), kind)
    kept = Data(host="a")
    assert ends == [(Data(port=7), kept, "failed", "no_memory"), (Data(port=7), kept, "succeeded", "")]


def test_an_operation_whose_data_cannot_be_read_ends_all_the_same() -> None:
    row = an_operation(input={"port": "of another version"})
    _, changed, _ = changes(row, lambda: ledger.write(row, Done("Ready."), KIND))
    assert changed["outcome"] == "succeeded"
    assert not AuditLine.objects.exists()


def test_a_final_failure_is_written_with_its_last_lines_and_no_secret(told) -> None:
    row = an_operation()
    failure = StepFailed("no_memory", "Full, token=abc123.", final=True, lines=[f"secret=s{n}" for n in range(80)])
    seconds, changed, lines = changes(row, lambda: ledger.write_failure(row, failure, KIND))
    assert seconds is None
    error = {"code": "no_memory", "detail": "Full, token=***", "lines": ["secret=***"] * 60}
    assert changed == FREE | {"outcome": "failed", "finished_at": NOW, "progress": {}, "error": error}
    assert (lines, told.pages) == ([("checking", "Full, token=***")], [row.pk])
    assert audited()[6:] == ("failed", "no_memory", "It failed.")


def test_of_many_last_lines_the_last_are_kept() -> None:
    row = an_operation()
    ledger.write_failure(row, StepFailed("x", "y", final=True, lines=[f"line {n}" for n in range(80)]), KIND)
    row.refresh_from_db()
    assert row.error["lines"] == [f"line {n}" for n in range(20, 80)]


def test_a_failure_is_tried_again_after_a_pause(told) -> None:
    row = an_operation()
    failure = StepFailed("node_offline", "It is away.", final=False)
    seconds, changed, lines = changes(row, lambda: ledger.write_failure(row, failure, KIND))
    assert seconds == 2.0
    assert changed == FREE | {
        "attempt": 3, "next_run_at": NOW + timedelta(seconds=2), "progress": {"text": "It is away."},
        "error": {"code": "node_offline", "detail": "It is away."},
    }  # fmt: skip
    assert (lines, told.pages) == ([("checking", "It is away.")], [row.pk])


def test_the_same_failure_again_is_told_to_nobody(told) -> None:
    row = an_operation()
    seconds, changed, lines = changes(
        row, lambda: ledger.write_failure(row, StepFailed("old", "It failed.", final=False), KIND)
    )
    assert (seconds, changed["attempt"], lines, told.pages) == (2.0, 3, [], [])


@pytest.mark.parametrize(("attempt", "seconds"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (5000, 5.0)])
def test_pauses_double_up_to_five_seconds(attempt, seconds) -> None:
    assert ledger.backoff_seconds(attempt) == seconds


STALE = [{"fence": 5}, {"stage": "starting"}, {"finished_at": NOW}]


@pytest.mark.parametrize("columns", STALE, ids=["another fence", "another stage", "over"])
@pytest.mark.parametrize("outcome", [Go("x"), Wait(1.0), Done("x"), Cancelled("x")])
def test_a_result_for_a_row_that_moved_on_is_lost(columns, outcome, told) -> None:
    late = an_operation()
    Operation.objects.filter(pk=late.pk).update(**columns)

    def write() -> None:
        with pytest.raises(LeaseLost, match=f"claimed {late.pk} at checking"):
            ledger.write(late, outcome, KIND)

    assert changes(late, write) == (None, {}, [])
    assert (told.pages, AuditLine.objects.count()) == ([], 0)


def test_who_asks_to_cancel_is_heard_now(told) -> None:
    row = an_operation(next_run_at=NOW + timedelta(hours=1))
    answer, changed, lines = changes(row, lambda: ledger.ask_to_cancel(row))
    assert (answer, changed) == (True, {"cancel_requested_at": NOW, "next_run_at": NOW})
    assert [stage for stage, _ in lines] == ["checking"]
    assert (told.pages, told.workers) == ([row.pk], [(STEP, row.pk)])


@pytest.mark.parametrize("columns", [{"cancel_requested_at": EARLIER}, {"finished_at": EARLIER}])
def test_a_second_request_to_cancel_changes_nothing(columns, told) -> None:
    row = an_operation(**columns)
    assert changes(row, lambda: ledger.ask_to_cancel(row)) == (False, {}, [])
    assert (told.pages, told.workers) == ([], [])


def test_who_steers_takes_the_step_from_its_worker(told) -> None:
    row = an_operation()
    answer, changed, lines = changes(row, lambda: ledger.steer(row, Data(port=9), "Forced."))
    assert answer is True
    assert changed == FREE | {"fence": 5, "next_run_at": NOW, "state": {"host": "a", "newer": 1, "port": 9}}
    assert (lines, told.pages, told.workers) == ([("checking", "Forced.")], [row.pk], [(STEP, row.pk)])


@pytest.mark.parametrize("columns", STALE, ids=["another fence", "another stage", "over"])
def test_who_steers_too_late_changes_nothing(columns, told) -> None:
    late = an_operation()
    Operation.objects.filter(pk=late.pk).update(**columns)
    assert changes(late, lambda: ledger.steer(late, Data(port=9), "Forced.")) == (False, {}, [])
    assert (told.pages, told.workers) == ([], [])


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (ledger.supersede, {"code": "superseded", "detail": "Another one replaces it."}),
        (ledger.abandon, {"code": "old", "detail": "It failed."}),
    ],
)
def test_what_another_ends_ends_at_once_and_without_an_audit_line(end, error, told) -> None:
    row = an_operation()
    answer, changed, lines = changes(row, lambda: end(row, "Another one replaces it."))
    assert answer is True
    ended = FREE | {"outcome": "cancelled", "finished_at": NOW, "fence": 5, "progress": {}, "error": error}
    assert changed == {name: value for name, value in ended.items() if (name, value) != ("error", row.error)}
    assert (lines, told.pages) == ([("checking", "Another one replaces it.")], [row.pk])
    assert not AuditLine.objects.exists()


@pytest.mark.parametrize("end", [ledger.supersede, ledger.abandon])
def test_what_is_over_is_ended_by_nobody(end, told) -> None:
    row = an_operation(finished_at=EARLIER, outcome="succeeded")
    assert changes(row, lambda: end(row, "x")) == (False, {}, [])
    assert told.pages == []


def test_a_request_to_cancel_during_the_last_step_is_obeyed_before_the_end(told) -> None:
    row = an_operation()
    Operation.objects.filter(pk=row.pk).update(cancel_requested_at=NOW)
    seconds, changed, _ = changes(row, lambda: ledger.write(row, Done("Ready."), KIND))
    assert (seconds, changed["next_run_at"]) == (0.0, NOW)
    assert "outcome" not in changed


def test_due_operations_come_in_the_order_of_their_time_up_to_a_limit() -> None:
    free = {"lease_owner": "", "lease_expires_at": None}
    late, early = (an_operation(f"t-{n}", next_run_at=NOW - timedelta(seconds=n), **free) for n in (3, 60))
    other = an_operation("t-9", kind="stop", next_run_at=NOW, **free)
    an_operation("t-4", next_run_at=NOW + timedelta(seconds=1), **free)
    an_operation("t-5")
    assert ledger.due_ids() == [early.pk, late.pk, other.pk]
    assert ledger.due_ids(2) == [early.pk, late.pk]
    assert ledger.due_ids(kinds=["stop"]) == [other.pk]
    assert ledger.due_ids(kinds=[]) == []


def audited() -> tuple[str, ...]:
    """Return the only audit line."""
    return AuditLine.objects.values_list(
        "actor", "action", "node_id_text", "model_id_text", "operation_id_text", "target", "result", "error_code",
        "detail",
    ).get()  # fmt: skip
