"""Several placements of one model: who is started and stopped with whom, and what is rebuilt."""

from collections.abc import Callable
from uuid import UUID

import pytest

from agent.wire.capability import FabricCapability, Feature
from agent.wire.instances import LIVE_STATES, InstanceState
from audit.models import AuditLine
from jobs import worker
from jobs.loops.replicas import MOST_REBUILDS, rebuild_once
from jobs.loops.resume import autostart, resume_once
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import cancellation, identity, model_runs
from mirbad.kernel.errors import Conflict
from models_app import holds, queries, registry
from models_app.errors import ModelPlaced, UseMove
from models_app.models import Placement
from models_app.placement import apply
from nodes.errors import NodeOffline
from nodes.models import Node
from tests.models_app.things import PERSON, capabilities, definition, model_data, node, placed
from tests.standins.memory import DIES, READY, MemoryAgent

pytestmark = [pytest.mark.app, pytest.mark.django_db]

FABRIC = (FabricCapability(name="ib-b", adapters=("mlx5_0", "mlx5_1")),)
NODES = ("n0", "n1", "n2")


@pytest.fixture(autouse=True)
def fleet(agent: MemoryAgent) -> MemoryAgent:
    for name in NODES:
        node(name, caps=capabilities(fabrics=FABRIC, features=(Feature.REPLICAS_SHARDS,)))
    agent.plan = [{"rendezvous_port": 29_500}, READY]
    return agent


@pytest.fixture
def work(pass_time: Callable[[float], None]) -> Callable[[], None]:
    """Return a function that does the workers' work until nothing is left to do."""

    def run() -> None:
        for _ in range(60):
            for operation in unfinished():
                worker.run(operation.pk)
            if not unfinished().exists():
                return
            pass_time(6)
        raise AssertionError(list(unfinished().values("node_id_text", "stage", "progress", "error")))

    return run


def on(node_id: str) -> Placement:
    return Placement.objects.get(node_id_text=node_id)


def replicas(*nodes: str) -> None:
    """A model with a replica of its own on each node."""
    placed(node_id=nodes[0])
    for name in nodes[1:]:
        apply.add_replica("tiny", [(name, ())], PERSON)


def sharded(*nodes: str) -> UUID:
    placed(node_id=nodes[0])
    Placement.objects.all().delete()
    return apply.add_replica("tiny", [(name, ()) for name in nodes], PERSON).id


def seen(**states: str) -> None:
    """Write the state of each node's placement, as the watcher does."""
    for name, state in states.items():
        Placement.objects.filter(node_id_text=name).update(observed=state)


def state() -> tuple[str, bool]:
    shown = queries.shown_model_state(definition())
    return shown.name, shown.serves


def test_every_replica_is_started_and_stopped_by_an_operation_of_its_own(work) -> None:
    replicas(*NODES)
    first = model_runs.start("tiny", PERSON)
    assert (first.node_id_text, unfinished().count()) == ("n0", 3)
    assert model_runs.start("tiny", PERSON).pk == first.pk, "a second start is the same"
    work()
    assert state() == ("ready", True)
    with pytest.raises(Conflict, match="already runs"):
        model_runs.start("tiny", PERSON)
    assert model_runs.stop("tiny", PERSON).node_id_text == "n0"
    work()
    assert {one.observed for one in Placement.objects.all()} == {"stopped"}
    with pytest.raises(Conflict, match="already stopped"):
        model_runs.stop("tiny", PERSON)


def test_a_replica_that_cannot_start_does_not_keep_the_others_down(work) -> None:
    replicas(*NODES)
    Node.objects.filter(pk="n0").update(reachability="offline")
    accepted = model_runs.start_all("tiny", PERSON)
    assert [one.node_id_text for one in accepted.operations] == ["n1", "n2"]
    assert [(one.node_ids, one.code) for one in accepted.skipped] == [(("n0",), "node_offline")]
    assert on("n0").desired == "stopped", "nothing is wanted of what was left out"
    Node.objects.update(reachability="offline")
    work_over = unfinished()
    work_over.update(finished_at="2026-01-01T00:00:00Z", outcome="failed")
    with pytest.raises(NodeOffline):
        model_runs.start("tiny", PERSON)


def test_a_start_brings_up_only_what_does_not_run(work) -> None:
    replicas("n0", "n1")
    model_runs.start_all("tiny", PERSON, replica=on("n1").replica)
    work()
    accepted = model_runs.start_all("tiny", PERSON)
    assert [one.node_id_text for one in accepted.operations] == ["n0"]
    assert [one.code for one in accepted.skipped] == ["invalid_state"]


def test_what_a_move_brings_up_is_left_alone() -> None:
    replicas("n0", "n1")
    Placement.objects.filter(node_id_text="n1").update(routed=False)
    accepted = model_runs.start_all("tiny", PERSON)
    assert [one.node_id_text for one in accepted.operations] == ["n0"]
    assert model_runs.stop_all("tiny", PERSON).operations == accepted.operations
    assert on("n1").desired == "stopped"


def test_a_restart_restarts_each(work, agent) -> None:
    replicas("n0", "n1")
    model_runs.start("tiny", PERSON)
    work()
    model_runs.restart("tiny", PERSON)
    work()
    assert (agent.stops, len(agent.launches), state()) == (2, 4, ("ready", True))


def test_the_shards_of_a_replica_meet_at_rank_0(work, agent) -> None:
    sharded(*NODES)
    first = model_runs.start("tiny", PERSON)
    work()
    met = {spec.rendezvous.rank: spec.rendezvous for spec in agent.launches}
    assert sorted(met) == [0, 1, 2]
    assert {(one.meeting, one.world_size, one.address, one.fabric) for one in met.values()} == {
        (first.pk, 3, "127.0.0.1", "ib-b")
    }
    assert [met[rank].port for rank in (0, 1, 2)] == [None, 29_500, 29_500]
    assert met[1].adapters == ("mlx5_0", "mlx5_1")
    assert state() == ("ready", True)


def test_a_replica_is_never_ready_while_a_shard_is_missing(agent, pass_time) -> None:
    sharded(*NODES)
    model_runs.start("tiny", PERSON)
    for _ in range(8):
        for operation in unfinished().exclude(node_id_text="n2"):
            worker.run(operation.pk)
        pass_time(2)
        assert not state()[1]
    assert Operation.objects.get(node_id_text="n1").finished_at is None, "none is done before the whole is"


def test_another_port_of_an_earlier_start_is_not_taken_for_this_one(agent) -> None:
    sharded("n0", "n1")
    model_runs.start("tiny", PERSON)
    second = Operation.objects.get(node_id_text="n1")
    Operation.objects.filter(node_id_text="n0").update(stage="starting")
    for _ in range(3):
        worker.run(second.pk)
    second.refresh_from_db()
    assert (second.stage, second.progress["text"]) == (
        "starting",
        "Waiting until shard 0 has chosen the rendezvous port.",
    )
    assert not agent.launches


def test_no_engine_waits_for_weights_that_are_still_on_their_way(agent) -> None:
    sharded("n0", "n1")
    first = model_runs.start("tiny", PERSON)
    Operation.objects.filter(node_id_text="n1").update(stage="downloading", next_run_at="2100-01-01T00:00:00Z")
    for _ in range(5):
        worker.run(first.pk)
    first.refresh_from_db()
    assert (first.stage, first.progress["text"]) == ("starting", "Waiting until n1 can start its part, too.")
    assert not agent.launches


def test_of_two_replicas_that_share_nodes_the_earlier_goes_first(work, agent) -> None:
    """Each would hold the turn on one node and wait for it on the other."""
    sharded("n0", "n1")
    placed("other", "n2")
    apply.add_replica("other", [("n1", ()), ("n0", ())], PERSON)
    model_runs.start("tiny", PERSON)
    model_runs.start_all("other", PERSON, replica=Placement.objects.get(model_id="other", node_id_text="n1").replica)
    for _ in range(4):
        for operation in unfinished().filter(model_id_text="other"):
            worker.run(operation.pk)
        for operation in unfinished().filter(model_id_text="tiny").exclude(node_id_text="n1"):
            worker.run(operation.pk)
    assert not [spec for spec in agent.launches if spec.model_id == "other" and spec.rendezvous.rank == 1]
    work()
    assert set(Operation.objects.values_list("outcome", flat=True)) == {"succeeded"}


@pytest.mark.parametrize("lost", ["n0", "n1", "n2"])
def test_a_lost_shard_has_the_whole_replica_rebuilt(work, agent, lost) -> None:
    sharded(*NODES)
    model_runs.start("tiny", PERSON)
    work()
    agent.engines[str(on(lost).pk)].view = agent.engines[str(on(lost).pk)].view.model_copy(
        update={"state": InstanceState.EXITED, "exit_code": 137}
    )
    seen(**{lost: "failed"})
    assert state()[1] is False
    assert rebuild_once() == 1
    assert rebuild_once() == 0
    assert {one.actor for one in unfinished()} == {"system:replica"}
    work()
    assert (state(), len(agent.launches), agent.stops) == (("ready", True), 6, 2)
    assert len({spec.rendezvous.meeting for spec in agent.launches}) == 2


def test_a_replica_that_fails_again_and_again_is_stopped_and_says_why(work, agent) -> None:
    sharded("n0", "n1")
    model_runs.start("tiny", PERSON)
    work()
    for _ in range(MOST_REBUILDS):
        seen(n1="failed")
        assert rebuild_once() == 1
        work()
        assert state() == ("ready", True)
    seen(n1="failed")
    assert rebuild_once() == 1
    assert {one.kind for one in unfinished()} == {"stop"}
    told = Operation.objects.filter(kind="stop").first().events.first().text
    assert "not restarted automatically" in told
    work()
    assert {one.desired for one in Placement.objects.all()} == {"stopped"}
    assert rebuild_once() == 0, "a person looks now"


def test_a_shard_that_dies_at_start_is_no_crash_loop(work, agent) -> None:
    sharded("n0", "n1")
    agent.plan = [{"rendezvous_port": 29_500}, DIES]
    model_runs.start("tiny", PERSON)
    work()
    assert {one.desired for one in Placement.objects.all()} == {"stopped"}
    codes = set(Operation.objects.values_list("error__code", flat=True))
    assert "shard_failed" in codes
    assert "engine_exited" in codes
    assert rebuild_once() == 0
    assert agent.running == 0


def test_a_node_that_is_away_does_not_have_its_replica_rebuilt(work, agent) -> None:
    sharded("n0", "n1")
    model_runs.start("tiny", PERSON)
    work()
    seen(n1="unknown")
    assert (state()[1], rebuild_once()) == (False, 0)


def test_a_rebuild_waits_until_every_node_can_take_part(work, agent) -> None:
    sharded("n0", "n1")
    model_runs.start("tiny", PERSON)
    work()
    seen(n1="failed")
    Node.objects.filter(pk="n0").update(draining=True)
    assert rebuild_once() == 0
    holds.take("tiny", "job", "job-1", "a benchmark")
    Node.objects.update(draining=False)
    assert rebuild_once() == 0, "a held model is its holder's"
    holds.release("tiny", "job-1")
    assert rebuild_once() == 1


def test_what_is_left_of_a_replica_is_stopped(work, agent) -> None:
    sharded(*NODES)
    model_runs.start("tiny", PERSON)
    work()
    Placement.objects.filter(node_id_text="n1").delete()
    assert state() == ("failed", False)
    assert rebuild_once() == 1
    work()
    assert {one.observed for one in Placement.objects.all()} == {"stopped"}
    assert rebuild_once() == 0


def test_the_revoke_of_one_node_leaves_the_other_replicas_serving(work, agent) -> None:
    replicas("n0", "n1")
    model_runs.start("tiny", PERSON)
    work()
    identity.revoke("n1", "n1", PERSON, unplace_models=True)
    work()
    assert [one.node_id_text for one in Placement.objects.all()] == ["n0"]
    assert state() == ("ready", True)


def test_cancelling_one_shard_cancels_all(work, agent) -> None:
    sharded(*NODES)
    agent.plan = [{"rendezvous_port": 29_500}]
    model_runs.start("tiny", PERSON)
    for operation in unfinished():
        worker.run(operation.pk)
    cancellation.request(Operation.objects.get(node_id_text="n2").pk, PERSON)
    assert unfinished().filter(cancel_requested_at__isnull=True).count() == 0
    work()
    assert set(Operation.objects.values_list("outcome", flat=True)) == {"cancelled"}
    assert {one.desired for one in Placement.objects.all()} == {"stopped"}
    assert not [engine for engine in agent.engines.values() if engine.view.state in LIVE_STATES]


def test_a_reboot_is_recovered_by_the_whole_replica_and_not_shard_by_shard(work, agent) -> None:
    sharded("n0", "n1")
    autostart()
    assert not Placement.objects.filter(desired="running").exists(), "it is not marked to start with the master"
    registry.update("tiny", model_data(autoStart=True), PERSON)
    autostart()
    assert resume_once() == 0
    assert rebuild_once() == 1
    work()
    assert state() == ("ready", True)


def test_an_edit_speaks_of_the_first_replica_and_sends_elsewhere_for_the_others() -> None:
    replicas("n0", "n1")
    registry.update("tiny", model_data(displayName="Tiny", placement={"nodeId": "n0"}), PERSON)
    with pytest.raises(UseMove, match="several nodes"):
        registry.update("tiny", model_data(placement={"nodeId": "n2"}), PERSON)


def test_a_model_is_deleted_once_every_replica_is_stopped() -> None:
    replicas("n0", "n1")
    Placement.objects.filter(node_id_text="n1").update(desired="running", observed="ready")
    with pytest.raises(ModelPlaced, match="n1"):
        registry.delete("tiny", PERSON)
    Placement.objects.update(desired="stopped", observed="stopped")
    registry.delete("tiny", PERSON)
    assert not Placement.objects.exists()


def test_each_start_and_stop_leaves_an_audit_line_for_its_node(work) -> None:
    replicas("n0", "n1")
    model_runs.start("tiny", PERSON)
    lines = AuditLine.objects.filter(action="model.start", result="accepted")
    assert sorted(lines.values_list("node_id_text", flat=True)) == ["n0", "n1"]
