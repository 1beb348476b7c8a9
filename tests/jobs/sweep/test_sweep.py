"""Engines that are left over are stopped; what anyone wants, and what is not ours, is left alone."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from agent.wire.instances import InstanceState, InstanceView
from audit.models import AuditLine
from jobs import ledger, worker
from jobs.kinds import launch
from jobs.loops.orphans import AGAIN_AFTER, stop_orphans_once
from jobs.models import Operation
from jobs.steps.moving import MoveInput
from mirbad.kernel.actor import system
from models_app import holds, running
from models_app.models import OrphanInstance, Placement
from models_app.placement import apply
from nodes.models import MasterIdentity, Node
from nodes.pki import authority
from tests.models_app.test_running import status
from tests.models_app.things import PERSON, node, placed
from tests.standins.memory import ScriptedInstance

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def _fleet() -> None:
    node("pc-1")
    node("pc-2")
    placed("tiny", "pc-2")


def engine(model_id: str = "tiny", instance_id: str = "", **fields: Any) -> InstanceView:
    values: dict[str, Any] = {
        "instance_id": instance_id or str(uuid4()),
        "model_id": model_id,
        "generation": 1,
        "config_hash": "c" * 64,
        "operation_id": "op_gone:starting:0123456789ab",
        "runtime": "sim",
        "delivery": "process",
        "state": InstanceState.READY,
    }
    return InstanceView(**(values | fields))


def runs(agent, *views: InstanceView, node_id: str = "pc-1", seq: int = 1) -> None:
    """They live on the node, and it has said so."""
    for view in views:
        agent.engines[view.instance_id] = ScriptedInstance(view, [])
    running.observe_many({node_id: status(seq, *views)})


def test_an_engine_that_has_no_place_on_its_node_is_stopped_in_the_name_of_move(agent, finish) -> None:
    runs(agent, engine())
    assert stop_orphans_once() == 1
    operation = Operation.objects.get()
    assert (operation.kind, operation.actor, operation.node_id_text, operation.model_id_text) == (
        "sweep",
        "system:move",
        "pc-1",
        "tiny",
    )
    assert stop_orphans_once() == 0, "it is being stopped"
    assert finish(operation.pk).outcome == "succeeded"
    assert (agent.running, agent.stops, OrphanInstance.objects.count(), stop_orphans_once()) == (0, 1, 0, 0)
    line = AuditLine.objects.get(action="model.stop")
    assert (line.actor, line.node_id_text, line.model_id_text, line.result) == (
        "system:move",
        "pc-1",
        "tiny",
        "succeeded",
    )


def test_the_old_instance_of_a_move_that_was_forced_is_stopped_when_its_node_serves_again(agent, finish) -> None:
    # the placement that stood on pc-1 was taken away while pc-1 was off; the model stands on pc-2 now
    runs(agent, engine())
    Node.objects.filter(pk="pc-1").update(reachability="offline")
    assert stop_orphans_once() == 0
    Node.objects.filter(pk="pc-1").update(reachability="online")
    assert stop_orphans_once() == 1


def test_a_placed_instance_is_left_alone(agent) -> None:
    runs(agent, engine(instance_id=str(Placement.objects.get().pk)), node_id="pc-2")
    assert (OrphanInstance.objects.count(), stop_orphans_once()) == (0, 0)


def test_an_unrouted_instance_that_a_move_brings_up_is_left_alone(agent) -> None:
    made = Placement.objects.create(model_id="tiny", node_id_text="pc-1", routed=False)
    runs(agent, engine(instance_id=str(made.pk)))
    assert stop_orphans_once() == 0


def test_an_engine_of_a_model_that_nobody_knows_is_left_alone(agent) -> None:
    runs(agent, engine("somebodys"))
    assert (OrphanInstance.objects.get().model_id_text, stop_orphans_once()) == ("somebodys", 0)


def test_an_engine_that_was_not_started_as_a_placement_is_left_alone(agent) -> None:
    runs(agent, engine(instance_id="a-container-of-someone"))
    assert stop_orphans_once() == 0


@pytest.mark.parametrize(
    ("kind", "holder", "swept"),
    [
        ("job", "job-7", 0),
        ("restore", "restore-7-tiny", 0),
        ("move", "move-7", 1),
        ("unplace", "unplace-7", 1),
    ],
)
def test_models_that_a_job_or_a_restore_holds_are_left_alone(agent, kind, holder, swept) -> None:
    holds.take("tiny", kind, holder, "a tuning run on node pc-1")
    runs(agent, engine())
    assert stop_orphans_once() == swept


def test_a_candidate_of_an_operation_that_is_at_work_is_left_alone(agent) -> None:
    subject = ledger.Subject("node", "pc-1", "pc-1", "tiny")
    job = ledger.create(
        replace(launch.KIND, name="tuning", concurrency_group="work"), "trying", subject, system("job"), "Tuning."
    )
    runs(agent, engine(operation_id=f"{job.pk}:trying:3"))
    assert stop_orphans_once() == 0
    Operation.objects.filter(pk=job.pk).update(finished_at="2026-01-01T00:00:00Z", outcome="failed")
    assert stop_orphans_once() == 1


@pytest.mark.parametrize(
    ("mode", "target", "swept"),
    [("handover", "pc-1", 0), ("handover", "pc-2", 0), ("stop-first", "pc-1", 0), ("stop-first", "pc-2", 1)],
)
def test_a_moves_own_instances_are_left_alone_on_both_sides_of_a_handover(agent, mode, target, swept) -> None:
    subject = ledger.Subject("model", "tiny", target, "tiny")
    kind = replace(launch.KIND, name="move", concurrency_group="placement")
    ledger.create(kind, "starting-target", subject, PERSON, "Move.", MoveInput(mode=mode))
    runs(agent, engine())
    assert stop_orphans_once() == swept


def test_with_one_fleet_member_what_was_taken_off_by_hand_goes_on_running(agent) -> None:
    Node.objects.filter(pk="pc-2").update(lifecycle="pending")
    runs(agent, engine())
    assert stop_orphans_once() == 0


def test_a_fenced_master_stops_nothing(agent) -> None:
    authority.ensure()
    MasterIdentity.objects.update(fenced_reason="Another master is obeyed.")
    runs(agent, engine())
    assert stop_orphans_once() == 0


def test_engines_that_have_ended_are_no_strays(agent) -> None:
    runs(agent, engine(state=InstanceState.EXITED), engine(state=InstanceState.LOST))
    assert stop_orphans_once() == 0


def test_a_stray_that_is_seen_no_more_is_forgotten_and_an_older_report_does_not_bring_it_back(agent) -> None:
    stray = engine()
    runs(agent, stray, seq=5)
    running.observe_many({"pc-1": status(4)})
    assert OrphanInstance.objects.count() == 1
    running.observe_many({"pc-1": status(6)})
    assert OrphanInstance.objects.count() == 0


def test_an_engine_that_ended_meanwhile_is_told_of_by_no_audit_line(agent, finish) -> None:
    stray = engine()
    runs(agent, stray)
    assert stop_orphans_once() == 1
    agent.engines.clear()
    assert finish(Operation.objects.get().pk).outcome == "cancelled"
    assert (agent.stops, AuditLine.objects.filter(action="model.stop").count()) == (0, 0)


def test_an_engine_that_is_wanted_after_all_is_left_alone_at_the_last_moment(agent, finish) -> None:
    runs(agent, engine())
    assert stop_orphans_once() == 1
    holds.take("tiny", "job", "job-7", "a tuning run on node pc-1")
    assert finish(Operation.objects.get().pk).outcome == "cancelled"
    assert (agent.stops, agent.running) == (0, 1)


def test_an_engine_that_does_not_end_is_asked_again_much_later(agent, finish, pass_time) -> None:
    agent.stubborn = True
    runs(agent, engine())
    assert stop_orphans_once() == 1
    ended = finish(Operation.objects.get().pk)
    assert (ended.outcome, ended.error["code"]) == ("failed", "stop_timeout")
    assert AuditLine.objects.get(action="model.stop").error_code == "stop_timeout"
    assert stop_orphans_once() == 0
    pass_time(AGAIN_AFTER.total_seconds())
    assert stop_orphans_once() == 1


def test_a_node_that_goes_away_in_the_middle_is_waited_for(agent, finish) -> None:
    runs(agent, engine())
    assert stop_orphans_once() == 1
    operation = Operation.objects.get()
    agent.offline = True
    worker.run(operation.pk)
    operation.refresh_from_db()
    assert (operation.outcome, operation.error["code"]) == ("open", "node_offline")
    agent.offline = False
    assert finish(operation.pk).outcome == "succeeded"


def test_a_model_that_is_placed_again_on_the_node_gets_its_own_instance_and_the_old_one_goes(agent) -> None:
    runs(agent, engine())
    apply.remove_placement(Placement.objects.get(), PERSON, "moved")
    apply.place("tiny", "pc-1", (), PERSON)
    running.observe_many({"pc-1": status(2, *(kept.view for kept in agent.engines.values()))})
    assert stop_orphans_once() == 1
