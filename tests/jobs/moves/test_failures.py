"""Moves on which something goes wrong: targets that refuse or go away, engines that die, links that are cut."""

from datetime import timedelta

import pytest

from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState
from jobs import worker
from jobs.models import Operation
from jobs.requests import model_runs, moves
from mirbad.kernel.errors import Conflict
from models_app import registry
from models_app.models import ModelDefinition, Placement, RunningIntent
from nodes.errors import NodeOffline
from nodes.models import Node
from tests.jobs.moves.parts import move, the_placement, untouched
from tests.models_app.things import PERSON, capabilities, gpu, node, placed
from tests.standins.memory import DIES, READY, MemoryAgent, refusal

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def test_a_target_that_refuses_for_good_leaves_a_hand_over_undone(fleet, serving, finish) -> None:
    fleet.target.refusals = [refusal(AgentCode.ADMISSION_REFUSED, "It needs 3 GiB and 1 GiB are free.")]
    done = finish(move().pk)
    assert (done.outcome, done.error["code"]) == ("failed", "admission_refused")
    assert "The model stays on node pc-1." in done.error["detail"]
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
    assert "did not stop within 120 s" in done.events.last().text
    assert the_placement().node_id_text == "pc-2"


@pytest.mark.parametrize("mode", ["handover", "stop-first"])
def test_the_link_may_be_cut_while_the_source_is_stopped(fleet, serving, until, finish, mode) -> None:
    operation = until(move(mode), "stopping-source")
    cuts = [True] * 3

    def cut(route: str) -> None:
        if route == "POST instances/stop" and cuts:
            cuts.pop()
            raise NodeOffline("Node pc-1 is unreachable at 127.0.0.1 port 9443: the answer was lost.")

    fleet.source.before_answer = cut
    done = finish(operation.pk)
    assert (done.outcome, cuts, fleet.source.stops) == ("succeeded", [], 1)
    assert (the_placement().node_id_text, fleet.target.running) == ("pc-2", 1)


def test_settings_are_saved_in_the_middle_of_a_hand_over_wherever_the_model_stands(fleet, finish, until) -> None:
    placed(node_id="pc-2")
    finish(model_runs.start("tiny", PERSON).pk)
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
    fleet.agents["pc-3"] = MemoryAgent()
    Placement.objects.create(model_id="tiny", node_id_text="pc-2", desired="stopped", observed="stopped")
    with pytest.raises(Conflict, match="is not placed on node 'pc-9'"):
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
