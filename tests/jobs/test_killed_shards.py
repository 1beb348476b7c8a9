"""A worker that is killed while the shards of a replica start, or are rebuilt: each starts once, and they meet."""

from collections.abc import Callable

import pytest

from agent.wire.capability import FabricCapability, Feature
from jobs import worker
from jobs.loops.replicas import rebuild_once
from jobs.loops.sweep import sweep_once
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import model_runs
from models_app.models import Placement
from models_app.placement import apply
from tests.jobs.test_killed import Killed, Trap, trap  # noqa: F401 - a fixture
from tests.models_app.things import PERSON, capabilities, node, placed
from tests.standins.memory import READY, MemoryAgent

pytestmark = [pytest.mark.faults, pytest.mark.django_db]

NODES = ("n0", "n1")
EVERY = 9
"""Boundaries between two samples; with 1 each is tried."""


@pytest.fixture(autouse=True)
def running(agent: MemoryAgent) -> None:
    fabric = (FabricCapability(name="ib-b", adapters=("mlx5_0", "mlx5_1")),)
    for name in NODES:
        node(name, caps=capabilities(fabrics=fabric, features=(Feature.REPLICAS_SHARDS,)))
    placed(node_id="n0")


def begin(agent: MemoryAgent) -> None:
    Operation.objects.all().delete()
    Placement.objects.all().delete()
    agent.__init__(plan=[{"rendezvous_port": 29_500}, READY])  # type: ignore[misc]
    apply.add_replica("tiny", [(name, ()) for name in NODES], PERSON)


def work(trap: Trap, kill_at: int, pass_time: Callable[[float], None]) -> bool:  # noqa: F811 - the fixture's value
    """Take every operation to its end with one kill at boundary `kill_at`; whether it fell."""
    trap.crossed, trap.armed_at, fell = 0, kill_at, False
    for _ in range(80):
        if not unfinished().exists():
            return fell
        for operation in unfinished().order_by("pk"):
            try:
                worker.run(operation.pk)
            except Killed:
                fell = True
                pass_time(60)
                sweep_once()
        pass_time(6)
    raise AssertionError(list(unfinished().values()))


def test_a_start_killed_anywhere_starts_each_shard_once_and_all_meet(agent, trap, pass_time) -> None:  # noqa: F811
    for kill_at in range(1, 400, EVERY):
        begin(agent)
        model_runs.start("tiny", PERSON)
        fell = work(trap, kill_at, pass_time)
        assert set(Operation.objects.values_list("outcome", flat=True)) == {"succeeded"}, kill_at
        met = [(spec.rendezvous.meeting, spec.rendezvous.port) for spec in agent.launches]
        assert sorted(spec.rendezvous.rank for spec in agent.launches) == [0, 1], kill_at
        assert len({meeting for meeting, _ in met}) == 1, kill_at
        assert {port for _, port in met} == {None, 29_500}, kill_at
        assert {one.observed for one in Placement.objects.all()} == {"ready"}, kill_at
        if not fell:
            break
    assert kill_at > 40, "the kills fell in every stage"


def test_a_rebuild_killed_anywhere_leaves_one_engine_a_shard(agent, trap, pass_time) -> None:  # noqa: F811
    for kill_at in range(1, 400, 2 * EVERY):
        begin(agent)
        model_runs.start("tiny", PERSON)
        work(trap, -1, pass_time)
        Placement.objects.filter(node_id_text="n1").update(observed="failed")
        assert rebuild_once() == 1
        fell = work(trap, kill_at, pass_time)
        assert {one.observed for one in Placement.objects.all()} == {"ready"}, kill_at
        assert (len(agent.launches), agent.running, agent.stops) == (4, 2, 2), kill_at
        if not fell:
            break
    assert kill_at > 40
