"""Sources that are gone: what a force-commit asks for and leads to. And models that are taken off their nodes."""

import pytest

from agent.wire.instances import InstanceState
from audit.models import AuditLine
from jobs import worker
from jobs.models import Operation
from jobs.requests import model_runs, moves, unplacing
from mirbad.kernel.errors import Conflict, NotFound
from models_app.errors import ModelBusy
from models_app.models import Hold, Placement
from nodes.errors import ConfirmationRequired, NodeOffline
from nodes.models import Node
from tests.models_app.things import PERSON, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def stranded(fleet, until) -> Operation:
    """A move that waits for its source."""
    operation = until(moves.request("tiny", "pc-2", (), PERSON, mode="stop-first"), "stopping-source")
    fleet.lose("pc-1")
    worker.run(operation.pk)
    operation.refresh_from_db()
    return operation


def test_a_move_waits_for_a_source_that_is_away_and_goes_on_by_itself(fleet, serving, until, finish, pass_time) -> None:
    operation = stranded(fleet, until)
    record = moves.record("tiny")
    assert (record.stage, record.paused, record.can_force_commit, record.can_cancel) == (
        "stopping-source",
        True,
        True,
        True,
    )
    assert record.consequence.startswith("If pc-1 returns, the old engine may still be running there")
    for _ in range(30):
        pass_time(60)
        worker.run(operation.pk)
    operation.refresh_from_db()
    assert operation.outcome == "open", "it waits as long as it takes"
    fleet.find("pc-1")
    assert finish(operation.pk).outcome == "succeeded"
    assert fleet.source.stops == 1


def test_a_source_is_given_up_by_its_id(fleet, serving, until, finish, pass_time) -> None:
    operation = stranded(fleet, until)
    with pytest.raises(ConfirmationRequired, match="Type pc-1"):
        moves.force_commit("tiny", "pc-2", PERSON)
    moves.force_commit("tiny", "pc-1", PERSON)
    assert not moves.record("tiny").can_force_commit, "once is enough"
    pass_time(3)
    done = finish(operation.pk)
    assert (done.outcome, done.error) == ("succeeded", {})
    placement = Placement.objects.get()
    assert (placement.node_id_text, placement.observed, placement.routed) == ("pc-2", "ready", True)
    assert fleet.source.running == 1, "the old engine is left to the sweep"
    lines = AuditLine.objects.filter(action="model.move.force-commit").order_by("id")
    assert [(row.result, row.error_code) for row in lines] == [("refused", "confirmation_required"), ("accepted", "")]


def test_a_hand_over_whose_source_is_gone_after_the_switch_is_ended_by_force(
    fleet, serving, until, finish, pass_time
) -> None:
    operation = until(moves.request("tiny", "pc-2", (), PERSON), "draining-source")
    fleet.lose("pc-1")
    pass_time(3)
    until(operation, "stopping-source")
    worker.run(operation.pk)
    assert moves.record("tiny").can_force_commit
    moves.force_commit("tiny", "pc-1", PERSON)
    assert finish(operation.pk).outcome == "succeeded"
    assert Placement.objects.get().node_id_text == "pc-2"


def test_the_confirmation_comes_before_everything_else(fleet, serving, until) -> None:
    asked = []
    with pytest.raises(ConfirmationRequired):
        moves.force_commit("tiny", " ", PERSON, sure=lambda: asked.append("sure"))
    operation = until(moves.request("tiny", "pc-2", (), PERSON), "starting-target")
    with pytest.raises(ConfirmationRequired):
        moves.force_commit("tiny", "", PERSON, sure=lambda: asked.append("sure"))
    assert asked == []
    with pytest.raises(Conflict, match="only while the move waits for a source"):
        moves.force_commit("tiny", "pc-1", PERSON, sure=lambda: asked.append("sure"))
    assert asked == ["sure"]
    operation.refresh_from_db()
    assert "forced" not in operation.state


def test_what_is_not_being_moved_is_neither_given_up_nor_cancelled(fleet, serving) -> None:
    with pytest.raises(Conflict, match="is not being moved"):
        moves.force_commit("tiny", "pc-1", PERSON)
    for ask in (lambda: moves.force_commit("none", "", PERSON), lambda: moves.cancel("none", PERSON)):
        with pytest.raises(NotFound, match="Model 'none' not found"):
            ask()


def test_a_source_that_serves_is_not_given_up(fleet, serving, until) -> None:
    fleet.source.stubborn = True
    until(moves.request("tiny", "pc-2", (), PERSON, mode="stop-first"), "stopping-source")
    with pytest.raises(Conflict):
        moves.force_commit("tiny", "pc-1", PERSON)


def test_a_worker_that_is_at_it_loses_the_stage_to_a_force_commit(fleet, serving, until, finish, monkeypatch) -> None:
    operation = stranded(fleet, until)
    fleet.find("pc-1")

    def gone_and_forced(route: str) -> None:
        if route == "POST instances/stop":
            fleet.source.before_answer = lambda _: None
            fleet.lose("pc-1")
            moves.force_commit("tiny", "pc-1", PERSON)
            raise NodeOffline("cut")

    fleet.source.before_answer = gone_and_forced
    for _ in range(2):
        Operation.objects.filter(pk=operation.pk).update(next_run_at=operation.created_at)
        pause = worker.run_step(operation.pk)
    assert pause is None, "its lease is lost"
    assert finish(operation.pk).outcome == "succeeded"


def test_a_cancelled_move_whose_source_is_away_ends_and_the_model_is_wanted_there(
    fleet, serving, until, finish
) -> None:
    operation = stranded(fleet, until)
    moves.cancel("tiny", PERSON)
    done = finish(operation.pk, steps=200)
    assert done.outcome == "cancelled"
    placement = Placement.objects.get()
    assert (placement.pk, placement.desired) == (serving.pk, "running")
    assert not Hold.objects.exists()


def test_an_unplace_stops_the_model_and_takes_it_off_its_node(fleet, serving, finish) -> None:
    operation = unplacing.request("tiny", PERSON, confirm="tiny")
    assert (Hold.objects.get().holder_id, Hold.objects.get().words) == (
        f"unplace-{operation.pk}",
        "an unplace from node pc-1",
    )
    assert unplacing.request("tiny", PERSON, confirm="tiny").pk == operation.pk
    with pytest.raises(ModelBusy, match="an unplace from node pc-1 holds it"):
        model_runs.start("tiny", PERSON)
    done = finish(operation.pk)
    assert (done.outcome, done.result) == ("succeeded", {"nodeIds": ["pc-1"]})
    assert not Placement.objects.exists()
    assert not Hold.objects.exists()
    assert (fleet.source.running, fleet.source.stops) == (0, 1)
    lines = AuditLine.objects.filter(action="model.unplace").order_by("id")
    assert [(row.result, row.actor) for row in lines] == [("accepted", PERSON.name), ("succeeded", PERSON.name)]


def test_a_model_that_may_be_running_is_unplaced_with_its_id_typed(fleet, serving, finish) -> None:
    for typed in ("", "pc-1"):
        with pytest.raises(ConfirmationRequired, match="Type tiny to confirm"):
            unplacing.request("tiny", PERSON, confirm=typed)
    assert not Hold.objects.exists()
    Placement.objects.update(desired="stopped", observed="stopped")
    assert finish(unplacing.request("tiny", PERSON).pk).outcome == "succeeded"


def test_an_unplace_that_meets_a_start_ends_it(fleet, finish, pass_time) -> None:
    placed()
    fleet.source.plan = [{"state": InstanceState.LOADING}] * 200
    launch = model_runs.start("tiny", PERSON)
    worker.run(launch.pk)
    operation = unplacing.request("tiny", PERSON, confirm="tiny")
    worker.run(operation.pk)
    assert finish(launch.pk).outcome == "cancelled"
    assert finish(operation.pk).outcome == "succeeded"
    assert not Placement.objects.exists()


def test_an_engine_that_does_not_end_makes_an_unplace_fail_and_the_model_stays(fleet, serving, finish) -> None:
    fleet.source.stubborn = True
    done = finish(unplacing.request("tiny", PERSON, confirm="tiny").pk, steps=100)
    assert (done.outcome, done.error["code"]) == ("failed", "stop_timeout")
    assert Placement.objects.get().pk == serving.pk
    assert not Hold.objects.exists()


def test_a_node_that_is_away_is_no_place_to_unplace_from(fleet, serving, finish, pass_time) -> None:
    fleet.lose("pc-1")
    with pytest.raises(NodeOffline):
        unplacing.request("tiny", PERSON, confirm="tiny")
    fleet.find("pc-1")
    operation = unplacing.request("tiny", PERSON, confirm="tiny")
    fleet.lose("pc-1")
    worker.run(operation.pk)
    pass_time(50)
    worker.run(operation.pk)
    operation.refresh_from_db()
    assert operation.outcome == "open", "it waits a minute"
    done = finish(operation.pk)
    assert (done.outcome, done.error["code"]) == ("failed", "node_offline")
    assert Placement.objects.exists()


def test_a_node_that_is_revoked_is_not_asked(fleet, serving, finish) -> None:
    Node.objects.filter(pk="pc-1").update(lifecycle="revoked")
    assert finish(unplacing.request("tiny", PERSON, confirm="tiny").pk).outcome == "succeeded"
    assert fleet.source.stops == 0


def test_what_stands_nowhere_is_not_unplaced(fleet) -> None:
    placed()
    Placement.objects.all().delete()
    with pytest.raises(Conflict, match="is not placed on any node"):
        unplacing.request("tiny", PERSON, confirm="tiny")


def test_one_replica_is_taken_off_its_node(fleet, serving, finish) -> None:
    node("pc-3")
    Placement.objects.create(model_id="tiny", node_id_text="pc-2", desired="stopped", observed="stopped")
    with pytest.raises(Conflict, match="is not placed on node 'pc-3'"):
        unplacing.request("tiny", PERSON, node_id="pc-3")
    assert finish(unplacing.request("tiny", PERSON, node_id="pc-2").pk).outcome == "succeeded"
    assert Placement.objects.get().pk == serving.pk


@pytest.mark.django_db(transaction=True)
def test_who_waits_for_an_unplace_is_told_how_it_ended(fleet, serving, finish, monkeypatch) -> None:
    monkeypatch.setattr("jobs.requests.unplacing._MARGIN_SECONDS", -119.0)
    operation = unplacing.request("tiny", PERSON, confirm="tiny")
    with pytest.raises(unplacing.StopTimeout) as late:
        unplacing.wait(operation)
    assert (late.value.code, late.value.http_status) == ("stop_timeout", 504)
    fleet.source.stubborn = True
    finish(operation.pk, steps=100)
    operation.refresh_from_db()
    with pytest.raises(unplacing.StopTimeout, match="did not stop within 120 s"):
        unplacing.wait(operation)
    fleet.source.stubborn = False
    fleet.source.engines.clear()
    again = unplacing.request("tiny", PERSON, confirm="tiny")
    over = finish(again.pk)
    assert unplacing.wait(over).outcome == "succeeded"
