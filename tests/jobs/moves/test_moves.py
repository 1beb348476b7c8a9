"""Moves from the request to the end, by both ways, and every way in which they can end otherwise."""

from datetime import timedelta

import pytest

from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState
from audit.models import AuditLine
from jobs import moves, requests, worker
from jobs.models import Operation
from mirbad.kernel.errors import Conflict, InvalidRequest
from models_app import holds, registry, routing
from models_app.errors import ModelBusy, ModelNotMovable, PlacementInvalid
from models_app.models import Hold, ModelDefinition, ModelSource, Placement, RunningIntent
from nodes.errors import NodeDraining, NodeOffline, NodeRevoked
from nodes.models import Node
from tests.jobs.agents import DIES, READY, FakeAgent, refusal
from tests.models_app.things import PERSON, capabilities, gpu, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]

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


def test_a_model_that_serves_is_handed_over(fleet, serving, finish) -> None:
    operation = move()
    assert (operation.kind, operation.lane, operation.input["mode"]) == ("move", "placement", "handover")
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
    assert operation.progress["text"] == "3 requests are still answered there."
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
    assert "1 request is still answered there after 600 s; they are ended now." in done.events.values_list(
        "text", flat=True
    )


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


def test_a_held_model_is_not_started_stopped_placed_or_deleted_but_saved(fleet, serving) -> None:
    move()
    for act in (requests.start, requests.stop, requests.restart, registry.delete):
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
    """What is refused, and leaves everything as it was."""

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
        with pytest.raises(InvalidRequest, match="stands on node 'pc-1' already"):
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
        restarting = requests.restart("tiny", PERSON)
        with pytest.raises(Conflict, match="being started or stopped"):
            move()
        Operation.objects.filter(pk=restarting.pk).delete()

    def test_a_hand_over_of_what_does_not_serve(self) -> None:
        Placement.objects.update(observed="failed")
        with pytest.raises(Conflict, match="stop-first"):
            move("handover")

    def test_a_replica_of_several_nodes(self) -> None:
        Placement.objects.update(shards=2)
        with pytest.raises(ModelNotMovable, match="2 nodes as one"):
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
    for cancel in (lambda: moves.cancel("tiny", PERSON), lambda: requests.cancel(operation.pk, PERSON)):
        with pytest.raises(Conflict, match="move it back instead"):
            cancel()
    assert finish(operation.pk).outcome == "succeeded"


def test_a_cancel_that_comes_with_the_switch_is_too_late(fleet, serving, until, finish) -> None:
    operation = until(move(), "target-ready")
    # The switch has happened and the process was killed before it wrote so; then somebody cancels.
    from jobs.kinds.move import plan_in
    from models_app.placement import handover

    plan = plan_in(operation)
    assert handover.switch(plan.source, plan.arrival.id)
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


def test_a_target_that_refuses_for_good_leaves_a_hand_over_undone(fleet, serving, finish) -> None:
    fleet.target.refusals = [refusal(AgentCode.ADMISSION_REFUSED, "It needs 3 GiB and 1 GiB are free.")]
    done = finish(move().pk)
    assert (done.outcome, done.error["code"]) == ("failed", "admission_refused")
    assert "The model stands on node pc-1 as before." in done.error["detail"]
    assert untouched(serving, fleet)
    assert fleet.source.stops == 0


def test_an_engine_that_dies_on_the_target_leaves_a_hand_over_undone(fleet, serving, finish) -> None:
    fleet.target.plan = [{"state": InstanceState.LOADING}, DIES]
    done = finish(move().pk)
    assert (done.outcome, done.error["code"]) == ("failed", "engine_exited")
    assert done.error["lines"] == ["loading", "CUDA out of memory"]
    assert untouched(serving, fleet)


@pytest.mark.parametrize("code", [AgentCode.ADMISSION_REFUSED, AgentCode.GPU_MISSING])
def test_a_start_refused_for_good_after_the_commit_ends_the_move_done_with_the_reason(
    fleet, serving, finish, code
) -> None:
    fleet.target.refusals = [refusal(code, "No, and this is why.")]
    done = finish(move("stop-first").pk)
    assert (done.outcome, done.stage) == ("succeeded", "done")
    assert done.result["start"]["code"] == code.value
    assert "No, and this is why." in done.result["start"]["detail"]
    placement = the_placement()
    assert (placement.node_id_text, placement.desired) == ("pc-2", "stopped"), "nobody tries it for ever"
    record = moves.record("tiny")
    assert (record.stage, record.start["code"]) == ("done", code.value)


def test_starts_beside_others_and_passing_errors_are_tried_again(fleet, serving, finish) -> None:
    fleet.target.refusals = [
        *[refusal(AgentCode.START_CONFLICT, "Another model starts on this GPU.")] * 3,
        *[refusal(AgentCode.DELIVERY_FAILED, "Docker does not answer.")] * 6,
    ]
    done = finish(move().pk)
    assert (done.outcome, len(fleet.target.launches)) == ("succeeded", 1)


@pytest.mark.parametrize("mode", ["handover", "stop-first"])
def test_a_start_is_tried_for_ten_minutes_and_no_longer(fleet, serving, finish, mode) -> None:
    fleet.target.refusals = [refusal(AgentCode.START_CONFLICT, "Another model starts on this GPU.")] * 500
    operation = move(mode)
    done = finish(operation.pk, steps=200)
    waited = done.finished_at - done.stage_since
    if mode == "handover":
        assert (done.outcome, done.error["code"]) == ("failed", "start_conflict")
        assert untouched(serving, fleet)
    else:
        assert (done.outcome, done.result["start"]["code"]) == ("succeeded", "start_conflict")
        assert the_placement().node_id_text == "pc-2"
        assert timedelta(minutes=10) < waited < timedelta(minutes=11)


def test_a_target_that_goes_away_before_the_switch_is_waited_for_and_then_given_up(
    fleet, serving, until, finish, pass_time
) -> None:
    operation = until(move(), "starting-target")
    fleet.lose("pc-2")
    worker.run(operation.pk)
    operation.refresh_from_db()
    assert (operation.progress["paused"], operation.outcome) == (True, "open")
    fleet.find("pc-2")
    pass_time(5)
    until(operation, "target-ready")
    fleet.lose("pc-2")
    done = finish(operation.pk, steps=300)
    assert (done.outcome, done.error["code"]) == ("failed", "node_offline")
    placement = the_placement()
    assert (placement.pk, placement.routed, placement.desired) == (serving.pk, True, "running")


def test_a_target_that_goes_away_after_the_commit_gets_the_model_started_once_it_is_back(
    fleet, serving, until, finish
) -> None:
    operation = until(move("stop-first"), "starting-target")
    fleet.lose("pc-2")
    done = finish(operation.pk, steps=300)
    assert (done.outcome, done.result["start"]["code"]) == ("succeeded", "node_offline")
    placement = the_placement()
    assert (placement.node_id_text, placement.desired) == ("pc-2", "running")
    assert RunningIntent.objects.get().placement_id == placement.pk


def test_a_target_that_goes_away_before_the_commit_lets_the_source_run_again(fleet, serving, until, finish) -> None:
    operation = until(move("stop-first"), "source-stopped")
    fleet.lose("pc-2")
    done = finish(operation.pk, steps=300)
    assert (done.outcome, done.error["code"]) == ("failed", "node_offline")
    assert untouched(serving, fleet)
    assert len(fleet.source.launches) == 2


def test_a_target_that_loses_its_gpu_before_the_commit_changes_nothing(fleet, serving, until, finish) -> None:
    node("pc-3", gpu("GPU-a"))
    fleet.agents["pc-3"] = fleet.target
    operation = until(moves.request("tiny", "pc-3", ("GPU-a",), PERSON, mode="stop-first"), "source-stopped")
    Node.objects.filter(pk="pc-3").update(capabilities=capabilities(gpu("GPU-b")).to_wire())
    done = finish(operation.pk)
    assert (done.outcome, done.error["code"]) == ("failed", "placement_invalid")
    assert untouched(serving, fleet)
    assert len(fleet.source.launches) == 2


def test_a_target_that_loses_its_gpu_after_the_commit_has_the_model_but_does_not_run_it(
    fleet, serving, until, finish
) -> None:
    node("pc-3", gpu("GPU-a"))
    fleet.agents["pc-3"] = fleet.target
    operation = until(moves.request("tiny", "pc-3", ("GPU-a",), PERSON, mode="stop-first"), "starting-target")
    Node.objects.filter(pk="pc-3").update(capabilities=capabilities(gpu("GPU-b")).to_wire())
    done = finish(operation.pk)
    assert (done.outcome, done.result["start"]["code"]) == ("succeeded", "gpu_missing")
    assert (the_placement().node_id_text, the_placement().gpu_uuids) == ("pc-3", ["GPU-a"])
    assert Node.objects.get(pk="pc-3").conditions.filter(code="placed_gpu_missing").exists()


def test_an_engine_that_does_not_end_lets_a_move_that_stops_first_fail_and_keeps_the_wish(
    fleet, serving, finish
) -> None:
    fleet.source.stubborn = True
    done = finish(move("stop-first").pk, steps=200)
    assert (done.outcome, done.error["code"]) == ("failed", "stop_timeout")
    placement = the_placement()
    assert (placement.pk, placement.node_id_text, placement.desired) == (serving.pk, "pc-1", "running")
    assert RunningIntent.objects.filter(placement=placement).exists(), "it is started again once its engine has ended"


def test_an_engine_that_does_not_end_keeps_no_hand_over_from_being_done(fleet, serving, finish) -> None:
    fleet.source.stubborn = True
    done = finish(move().pk, steps=200)
    assert done.outcome == "succeeded"
    assert "did not end within 120 s" in done.events.last().text
    assert the_placement().node_id_text == "pc-2"


@pytest.mark.parametrize("mode", ["handover", "stop-first"])
def test_the_link_may_be_cut_while_the_source_is_stopped(fleet, serving, until, finish, mode) -> None:
    operation = until(move(mode), "stopping-source")
    cuts = [True] * 3

    def cut(route: str) -> None:
        if route == "POST instances/stop" and cuts:
            cuts.pop()
            raise NodeOffline("Node pc-1 cannot be reached at 127.0.0.1 port 9443: the answer was lost.")

    fleet.source.before_answer = cut
    done = finish(operation.pk)
    assert (done.outcome, cuts, fleet.source.stops) == ("succeeded", [], 1)
    assert (the_placement().node_id_text, fleet.target.running) == ("pc-2", 1)


def test_settings_are_saved_in_the_middle_of_a_hand_over_wherever_the_model_stands(fleet, finish, until) -> None:
    placed(node_id="pc-2")
    finish(requests.start("tiny", PERSON).pk)
    operation = until(moves.request("tiny", "pc-1", (), PERSON), "target-ready")
    placement = {"nodeId": "pc-2", "gpuUuids": []}
    data = registry.parse(
        {"id": "tiny", "runtime": "sim", "delivery": "process", "tags": ["kept"], "placement": placement}
    )
    registry.update("tiny", data, PERSON)
    assert ModelDefinition.objects.get().tags == ["kept"]
    assert finish(operation.pk).outcome == "succeeded"
    assert the_placement().node_id_text == "pc-1"


def test_one_of_several_replicas_is_moved_and_the_others_stay(fleet, serving, finish) -> None:
    node("pc-3")
    fleet.agents["pc-3"] = FakeAgent()
    Placement.objects.create(model_id="tiny", node_id_text="pc-2", desired="stopped", observed="stopped")
    with pytest.raises(Conflict, match="does not stand on node 'pc-9'"):
        moves.request("tiny", "pc-3", (), PERSON, source_node_id="pc-9")
    done = finish(moves.request("tiny", "pc-3", (), PERSON, source_node_id="pc-2").pk)
    assert done.outcome == "succeeded"
    assert sorted(Placement.objects.values_list("node_id_text", flat=True)) == ["pc-1", "pc-3"]
    assert fleet.source.running == 1


@pytest.mark.parametrize("mode", ["handover", "stop-first"])
def test_what_the_downloads_noted_is_not_mistaken_for_the_time_of_a_stop(
    fleet, serving, until, pass_time, mode
) -> None:
    fleet.source.stubborn = True
    operation = until(move(mode), "stopping-source")
    operation.refresh_from_db()
    Operation.objects.filter(pk=operation.pk).update(state={**operation.state, "asked": 2, "seen": "2026-01-01"})
    for _ in range(3):
        worker.run(operation.pk)
        pass_time(3)
    operation.refresh_from_db()
    assert (operation.outcome, operation.error, operation.progress) == ("open", {}, {"text": "Stopping the engine."})


@pytest.mark.parametrize(
    ("mode", "stage"),
    [("handover", "starting-target"), ("handover", "target-ready"), ("stop-first", "starting-target")],
)
def test_a_target_that_reboots_in_the_middle_starts_the_model_again_once(
    fleet, serving, until, finish, mode, stage
) -> None:
    fleet.target.plan = [{"state": InstanceState.LOADING}] * 2 + [READY]
    operation = until(move(mode), stage)
    if stage == "starting-target":
        worker.run_step(operation.pk)
    engine = next(iter(fleet.target.engines.values()))
    engine.view, engine.script = engine.view.model_copy(update={"state": InstanceState.LOST}), []
    done = finish(operation.pk)
    assert (done.outcome, done.error, done.result.get("start")) == ("succeeded", {}, None)
    assert (the_placement().node_id_text, the_placement().observed) == ("pc-2", "ready")
    assert (len(fleet.target.launches), fleet.target.running, fleet.source.running) == (2, 1, 0)
