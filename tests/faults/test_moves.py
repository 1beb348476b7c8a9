"""A hand-over whose workers are killed and whose broker is emptied, between two real agents, under load."""

from collections.abc import Iterator

import pytest

from jobs.models import Operation
from jobs.requests import model_runs, moves
from models_app.models import Hold, Placement
from nodes.pki import authority
from tests.jobs.moves.bench import Door, TwoNodes, run
from tests.jobs.processes import BEAT, WORKER, Broker, Program, running_broker
from tests.models_app.things import PERSON, placed
from tests.waiting import pause, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180), pytest.mark.django_db(transaction=True)]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with running_broker() as made:
        yield made


@pytest.fixture
def nodes(transactional_db, tmp_path) -> Iterator[TwoNodes]:
    authority.ensure()
    for name in ("local", "next"):
        (tmp_path / name).mkdir()
    with TwoNodes(tmp_path).up() as made:
        yield made


def test_workers_that_are_killed_in_a_hand_over_cost_no_request(nodes, broker, tmp_path) -> None:
    placed(node_id="local", args=["--start-seconds", "1", "--tokens-per-second", "40"])
    assert run(model_runs.start("tiny", PERSON)).outcome == "succeeded"
    worker = Program(tmp_path, broker.url, *WORKER).start()
    beat = Program(tmp_path, broker.url, *BEAT).start()
    try:
        with Door() as door, nodes.load(door, "tiny", clients=2).on() as load:
            operation = moves.request("tiny", "next", (), PERSON)
            for seconds in (5.0, 1.0, 1.7):
                pause(seconds)
                worker.kill()
                broker.client().flushall()
                worker.start()

            def over() -> bool:
                return Operation.objects.filter(pk=operation.pk, finished_at__isnull=False).exists()

            until(over, f"the move to end\n{worker.said[-3000:]}", 120)
    finally:
        worker.kill()
        beat.kill()
    operation.refresh_from_db()
    assert (operation.outcome, operation.error, load.failed) == ("succeeded", {}, [])
    placement = Placement.objects.get()
    assert (placement.node_id_text, placement.observed, placement.routed) == ("next", "ready", True)
    views = {
        name: [view.state.value for view in agent.server._instances.views()] for name, agent in nodes.agents.items()
    }
    assert views == {"local": ["exited"], "next": ["ready"]}, "each engine was started once"
    assert not Hold.objects.exists()
