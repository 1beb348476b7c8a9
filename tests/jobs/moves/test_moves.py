"""Moves from the request to the end, by both ways, and every way in which they can end otherwise."""

import pytest

from agent.wire.instances import InstanceState
from audit.models import AuditLine
from jobs import worker
from jobs.models import Operation
from jobs.requests import cancellation, model_runs, moves
from mirbad.kernel.errors import Conflict, InvalidRequest
from models_app import holds, registry, routing
from models_app.errors import ModelBusy, ModelNotMovable, PlacementInvalid
from models_app.models import Hold, ModelDefinition, ModelSource, Placement
from nodes.errors import NodeDraining, NodeOffline, NodeRevoked
from nodes.models import Node
from tests.jobs.moves.parts import HANDOVER, STOP_FIRST, move, stages, the_placement, untouched
from tests.models_app.things import PERSON, gpu, node, placed
from tests.standins.memory import READY

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def test_a_model_that_serves_is_handed_over(fleet, serving, finish) -> None:
    operation = move()
    assert (operation.kind, operation.concurrency_group, operation.input["mode"]) == ("move", "placement", "handover")
    assert (Hold.objects.get().words, Hold.objects.get().holder_id) == (
        "a move to node pc-2",
        f"move-{operation.pk}",
    )
    done = finish(operation.pk)
    assert (done.outcome, done.error, stages(done)) == ("succeeded", {}, [*HANDOVER, "done"])
    target = the_placement()
    assert (target.node_id_text, target.routed, target.desired, target.observed) == ("pc-2", True, "running", "ready")
    assert (target.generation, target.start_seconds) == (serving.generation + 1, 2.5)
    assert (fleet.source.running, fleet.source.stops, fleet.target.running) == (0, 1, 1)
    assert not Hold.objects.exists()
    lines = [(row.action, row.actor, row.node_id_text, row.result) for row in AuditLine.objects.order_by("id")][3:]
    assert lines == [
        ("model.move", PERSON.name, "pc-2", "accepted"),
        ("model.start", "system:move", "pc-2", "accepted"),
        ("model.stop", "system:move", "pc-1", "accepted"),
        ("model.move", PERSON.name, "pc-2", "succeeded"),
    ]


def test_the_switch_is_one_write_and_the_gateway_is_told(fleet, serving, until) -> None:
    operation = until(move(), "target-ready")
    target = Placement.objects.get(node_id_text="pc-2")
    assert (target.routed, target.desired, target.observed) == (False, "running", "ready")
    before = routing.version()
    worker.run_step(operation.pk)
    assert {row.node_id_text: row.routed for row in Placement.objects.all()} == {"pc-1": False, "pc-2": True}
    assert routing.version() == before + 1
    assert fleet.source.running == 1, "it ends what it has begun"


def test_the_source_is_stopped_when_it_answers_nothing_any_more(fleet, serving, until, pass_time) -> None:
    operation = until(move(), "draining-source")
    fleet.source.open_requests[str(serving.pk)] = 3
    for _ in range(5):
        worker.run(operation.pk)
        pass_time(3)
    operation.refresh_from_db()
    assert operation.progress["text"] == "3 open requests on the old node."
    assert (operation.stage, fleet.source.stops) == ("draining-source", 0)
    fleet.source.open_requests.clear()
    until(operation, "stopping-source")
    assert fleet.source.stops == 0


def test_a_stream_that_does_not_end_is_ended_at_the_limit(fleet, serving, until, finish, pass_time) -> None:
    operation = until(move(), "draining-source")
    fleet.source.open_requests[str(serving.pk)] = 1
    worker.run(operation.pk)
    pass_time(601)
    done = finish(operation.pk)
    assert (done.outcome, fleet.source.running) == ("succeeded", 0)
    assert "1 open request on the old node after 600 s: ending them." in done.events.values_list("text", flat=True)


def test_a_node_that_does_not_tell_what_it_answers_is_given_the_whole_time(fleet, serving, until, pass_time) -> None:
    operation = until(move(), "draining-source")
    fleet.source.open_requests[str(serving.pk)] = None
    for _ in range(20):
        worker.run(operation.pk)
        pass_time(20)
    operation.refresh_from_db()
    assert operation.stage == "draining-source", "unknown is not none"


def test_a_model_that_is_to_stop_first_is_stopped_moved_and_started(fleet, serving, finish) -> None:
    Placement.objects.update(start_seconds=77)
    done = finish(move("stop-first").pk)
    assert (done.outcome, done.error, stages(done)) == ("succeeded", {}, [*STOP_FIRST, "done"])
    target = the_placement()
    assert (target.node_id_text, target.generation, target.observed) == ("pc-2", serving.generation + 1, "ready")
    assert target.start_seconds == 2.5, "measured afresh"
    assert (fleet.source.stops, fleet.source.running, fleet.target.running) == (1, 0, 1)


def test_the_commit_drops_the_measured_start_time(fleet, serving, until) -> None:
    Placement.objects.update(start_seconds=77)
    until(move("stop-first"), "placement-committed")
    assert the_placement().start_seconds is None


def test_a_model_that_does_not_run_is_moved_and_not_started(fleet, finish) -> None:
    placed()
    done = finish(move().pk)
    assert (done.outcome, stages(done)) == ("succeeded", [*STOP_FIRST[:-1], "done"])
    placement = the_placement()
    assert (placement.node_id_text, placement.desired, placement.observed) == ("pc-2", "stopped", "stopped")
    assert fleet.target.launches == []


def test_a_model_that_stands_nowhere_is_placed(fleet, finish) -> None:
    placed()
    Placement.objects.all().delete()
    done = finish(move().pk)
    assert (done.outcome, stages(done)) == (
        "succeeded",
        ["downloading", "source-stopped", "placement-committed", "done"],
    )
    assert the_placement().node_id_text == "pc-2"


def test_the_button_pressed_twice_is_one_move(fleet, serving) -> None:
    first = move()
    assert move().pk == first.pk
    assert Operation.objects.filter(kind="move").count() == 1
    node("pc-3")
    with pytest.raises(ModelBusy, match="a move to node pc-2 holds it"):
        moves.request("tiny", "pc-3", (), PERSON)


def test_the_button_pressed_twice_at_once_is_one_move(fleet, serving, monkeypatch) -> None:
    first, look = move(), moves._existing
    looks = iter([None])
    monkeypatch.setattr(moves, "_existing", lambda move_request: next(looks, look(move_request)))
    assert move().pk == first.pk
    assert Operation.objects.filter(kind="move").count() == 1


def test_a_held_model_is_not_started_stopped_placed_or_deleted_but_saved(fleet, serving) -> None:
    move()
    for act in (model_runs.start, model_runs.stop, model_runs.restart, registry.delete):
        with pytest.raises(ModelBusy, match=r"Model 'tiny' is busy: a move to node pc-2 holds it\."):
            act("tiny", PERSON)
    data = registry.parse({"id": "tiny", "runtime": "sim", "delivery": "process", "tags": ["kept"]})
    registry.update("tiny", data, PERSON)
    assert ModelDefinition.objects.get().tags == ["kept"]


def test_a_hold_of_another_keeps_a_model_where_it_is(fleet, serving) -> None:
    holds.take("tiny", "job", "job-1", "a benchmark on node pc-1")
    with pytest.raises(ModelBusy, match="a benchmark on node pc-1 holds it"):
        move()
    assert AuditLine.objects.order_by("-id").values_list("action", "result", "error_code")[0] == (
        "model.move",
        "refused",
        "model_busy",
    )
    assert move(on_behalf_of="job-1").input["onBehalfOf"] == "job-1"
    assert Hold.objects.get().holder_kind == "move"


class TestRefusals:
    """Refusals, each of which leaves everything as it was."""

    @pytest.fixture(autouse=True)
    def _nothing_happens(self, fleet, serving):
        yield
        assert untouched(serving, fleet)
        assert not Operation.objects.filter(kind="move").exists()

    def test_a_model_of_a_folder(self) -> None:
        ModelSource.objects.create(model_id="tiny", folder="somewhere")
        with pytest.raises(ModelNotMovable):
            move()

    def test_the_node_that_it_stands_on(self) -> None:
        with pytest.raises(InvalidRequest, match="is already placed on node 'pc-1'"):
            moves.request("tiny", "pc-1", (), PERSON)

    @pytest.mark.parametrize(
        ("columns", "error"),
        [
            ({"draining": True}, NodeDraining),
            ({"reachability": "offline"}, NodeOffline),
            ({"lifecycle": "revoked"}, NodeRevoked),
            ({"lifecycle": "pending"}, Conflict),
        ],
    )
    def test_a_node_that_takes_no_work(self, columns, error) -> None:
        Node.objects.filter(pk="pc-2").update(**columns)
        with pytest.raises(error):
            move()

    def test_a_node_that_is_not_there_and_gpus_that_are_not(self) -> None:
        with pytest.raises(PlacementInvalid) as refused:
            moves.request("tiny", "pc-9", (), PERSON)
        assert refused.value.problems[0]["code"] == "node_unknown"
        node("pc-3", gpu("GPU-a"))
        with pytest.raises(PlacementInvalid) as refused:
            moves.request("tiny", "pc-3", ("GPU-b",), PERSON)
        assert refused.value.problems[0]["code"] == "gpu_unknown"

    def test_a_model_that_is_being_started(self) -> None:
        restarting = model_runs.restart("tiny", PERSON)
        with pytest.raises(Conflict, match="being started or stopped"):
            move()
        Operation.objects.filter(pk=restarting.pk).delete()

    def test_a_hand_over_of_what_does_not_serve(self) -> None:
        Placement.objects.update(observed="failed")
        with pytest.raises(Conflict, match="stop-first"):
            move("handover")

    def test_a_replica_of_several_nodes(self) -> None:
        Placement.objects.update(shards=2)
        with pytest.raises(ModelNotMovable, match="over 2 nodes"):
            move()
        Placement.objects.update(shards=1)


def test_gpus_are_named_by_their_index_too(fleet) -> None:
    node("pc-3", gpu("GPU-a"))
    assert moves.gpus_at("pc-3", [0]) == ("GPU-a",)
    with pytest.raises(PlacementInvalid) as refused:
        moves.gpus_at("pc-3", [7])
    assert refused.value.problems[0]["code"] == "gpu_unknown"


@pytest.mark.parametrize("stage", ["downloading", "starting-target", "target-ready"])
def test_a_hand_over_is_cancelled_until_the_switch_and_leaves_nothing(fleet, serving, until, finish, stage) -> None:
    fleet.target.plan = [{"state": InstanceState.LOADING}, READY]
    operation = until(move(), stage)
    if stage == "starting-target":
        worker.run_step(operation.pk)
        assert fleet.target.running == 1
    moves.cancel("tiny", PERSON)
    done = finish(operation.pk)
    assert (done.outcome, done.error) == ("cancelled", {})
    assert untouched(serving, fleet)
    assert fleet.source.stops == 0


@pytest.mark.parametrize("stage", ["placement-committed", "draining-source", "stopping-source"])
def test_a_hand_over_is_not_cancelled_after_the_switch(fleet, serving, until, finish, stage) -> None:
    operation = until(move(), stage)
    for cancel in (lambda: moves.cancel("tiny", PERSON), lambda: cancellation.request(operation.pk, PERSON)):
        with pytest.raises(Conflict, match="move it back instead"):
            cancel()
    assert finish(operation.pk).outcome == "succeeded"


def test_a_cancel_that_comes_with_the_switch_is_too_late(fleet, serving, until, finish) -> None:
    operation = until(move(), "target-ready")
    # The switch has happened and the process was killed before it wrote so; then somebody cancels.
    from jobs.kinds.move import plan_in
    from models_app.placement import relocate

    plan = plan_in(operation)
    assert relocate.switch(plan.source, plan.arrival.id)
    moves.cancel("tiny", PERSON)
    done = finish(operation.pk)
    assert (done.outcome, the_placement().node_id_text) == ("succeeded", "pc-2")


def test_a_move_that_stops_first_is_cancelled_while_the_source_stops_and_it_runs_again(
    fleet, serving, until, finish
) -> None:
    fleet.source.stubborn = True
    operation = until(move("stop-first"), "stopping-source")
    for _ in range(3):
        worker.run_step(operation.pk)
        Operation.objects.filter(pk=operation.pk).update(next_run_at=operation.created_at)
    assert fleet.source.stops == 1
    moves.cancel("tiny", PERSON)
    worker.run_step(operation.pk)
    # Now it ends after all.
    engine = fleet.source.engines[str(serving.pk)]
    engine.view = engine.view.model_copy(update={"state": InstanceState.EXITED, "exit_code": 0})
    done = finish(operation.pk)
    assert done.outcome == "cancelled"
    assert untouched(serving, fleet)
    assert len(fleet.source.launches) == 2
    lines = AuditLine.objects.filter(action__in=("model.start", "model.stop"), actor="system:move")
    assert [(row.action, row.node_id_text) for row in lines.order_by("id")] == [
        ("model.stop", "pc-1"),
        ("model.start", "pc-1"),
    ]


@pytest.mark.parametrize("stage", ["source-stopped", "placement-committed", "starting-target"])
def test_a_move_that_stops_first_is_not_cancelled_later(fleet, serving, until, finish, stage) -> None:
    fleet.target.plan = [{"state": InstanceState.LOADING}] * 3 + [READY]
    operation = until(move("stop-first"), stage)
    with pytest.raises(Conflict, match="move it back instead"):
        moves.cancel("tiny", PERSON)
    assert finish(operation.pk).outcome == "succeeded"
