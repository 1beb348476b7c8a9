"""A node keeps no record of an engine that ended and whose place is gone; what is wanted, or lives, stays."""

import pytest

from agent.wire.instances import InstanceState
from jobs.loops.orphans import stop_orphans_once
from jobs.loops.records import KEPT_FOR, forget_records_once
from mirbad.kernel import clock
from models_app import holds, running
from models_app.models import ModelDefinition, OrphanInstance, Placement
from nodes import fencing
from nodes.models import Node
from nodes.pki import authority
from tests.jobs.sweep.test_sweep import engine, runs
from tests.models_app.test_running import status
from tests.models_app.things import node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]

ENDED = {"state": InstanceState.EXITED, "reason": "It was stopped."}


@pytest.fixture(autouse=True)
def _fleet() -> None:
    node("pc-1")
    node("pc-2")
    placed("tiny", "pc-2")


def time_passes() -> None:
    OrphanInstance.objects.update(since=clock.now() - 2 * KEPT_FOR)


def test_the_record_of_a_deleted_models_engine_is_forgotten_after_a_while(agent) -> None:
    ended = engine("deleted", **ENDED)
    runs(agent, ended)
    assert not ModelDefinition.objects.filter(pk="deleted").exists()
    assert forget_records_once() == 0, "its log may still be read"
    time_passes()
    assert forget_records_once() == 1
    assert ended.instance_id not in agent.engines
    assert not OrphanInstance.objects.exists()
    running.observe_many({"pc-1": status(2)})
    assert forget_records_once() == 0
    assert [call for call in agent.calls if call.startswith("DELETE")] == ["DELETE instances"]


def test_an_engine_that_ended_is_no_engine_to_be_stopped(agent) -> None:
    runs(agent, engine(**ENDED))
    assert stop_orphans_once() == 0


@pytest.mark.parametrize("state", [InstanceState.READY, InstanceState.STOPPING, InstanceState.PREPARING])
def test_what_lives_is_never_forgotten(agent, state) -> None:
    runs(agent, engine(state=state))
    time_passes()
    assert forget_records_once() == 0
    assert agent.engines


def test_what_was_started_again_meanwhile_is_left_to_its_node(agent) -> None:
    ended = engine(**ENDED)
    runs(agent, ended)
    time_passes()
    agent.engines[ended.instance_id].view = ended.model_copy(update={"state": InstanceState.READY})
    assert forget_records_once() == 0
    assert ended.instance_id in agent.engines


def test_the_record_of_a_placement_stays_for_its_page(agent) -> None:
    runs(agent, engine(instance_id=str(Placement.objects.get().pk), **ENDED), node_id="pc-2")
    time_passes()
    assert forget_records_once() == 0
    assert agent.engines


def test_what_a_job_tries_out_and_what_is_held_stays(agent) -> None:
    runs(agent, engine(instance_id="a-candidate-of-a-job", **ENDED), engine(**ENDED))
    holds.take("tiny", "job", "job-7", "a tuning run on node pc-1")
    time_passes()
    assert forget_records_once() == 0
    assert len(agent.engines) == 2


def test_a_node_that_does_not_answer_is_asked_again_later(agent) -> None:
    runs(agent, engine(**ENDED), engine(**ENDED))
    time_passes()
    agent.offline = True
    assert forget_records_once() == 0
    assert len([call for call in agent.calls if call.startswith("DELETE")]) == 1, "one silent node costs one call"
    agent.offline = False
    assert forget_records_once() == 2


def test_nodes_that_do_not_serve_and_fenced_masters_are_left_alone(agent) -> None:
    authority.ensure()
    runs(agent, engine(**ENDED))
    time_passes()
    Node.objects.filter(pk="pc-1").update(reachability="offline")
    assert forget_records_once() == 0
    Node.objects.filter(pk="pc-1").update(reachability="online")
    fencing.fence("another master commands")
    assert forget_records_once() == 0
    assert agent.engines
