"""Moves between two real agents with real engines, under load through the real gateway."""

import os
import signal
from collections.abc import Iterator
from datetime import timedelta

import psutil
import pytest

from jobs import worker
from jobs.requests import model_runs, moves
from models_app.models import Placement
from nodes.pki import authority
from tests.jobs.moves.bench import Door, TwoNodes, at, run
from tests.models_app.things import PERSON, placed
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def nodes(transactional_db, tmp_path) -> Iterator[TwoNodes]:
    authority.ensure()
    for name in ("local", "next"):
        (tmp_path / name).mkdir()
    with TwoNodes(tmp_path).up() as made:
        yield made


def test_no_request_fails_while_a_model_is_handed_over(nodes) -> None:
    placed(node_id="local", args=["--start-seconds", "0.5", "--tokens-per-second", "40"])
    assert run(model_runs.start("tiny", PERSON)).outcome == "succeeded"
    pid = Placement.objects.get().observed_view["pid"]
    with Door() as door, nodes.load(door, "tiny").on() as load:
        done = run(moves.request("tiny", "next", (), PERSON))
        while load.answered < 60:
            assert not load.failed, load.failed
    assert (done.outcome, done.error) == ("succeeded", {})
    assert load.failed == []
    assert load.streams > 20
    assert load.gap < 1.5
    placement = Placement.objects.get()
    assert (placement.node_id_text, placement.observed, placement.routed) == ("next", "ready", True)
    assert not psutil.pid_exists(pid)


def test_a_source_that_stops_before_the_gateway_has_looked_fails_no_request(nodes, quick, monkeypatch) -> None:
    # Without the wait for the gateway: requests still come to the source while it stops, and after it has.
    monkeypatch.setattr("jobs.kinds.move.handover.SETTLE", timedelta(seconds=-60))
    monkeypatch.setattr("models_app.gateway.loader.REBUILD_SECONDS", 30.0)
    monkeypatch.setattr("models_app.gateway.loader.POLL_SECONDS", 4.0)
    placed(node_id="local", args=["--tokens-per-second", "0"])
    assert run(model_runs.start("tiny", PERSON)).outcome == "succeeded"
    with Door() as door, nodes.load(door, "tiny", clients=3, tokens=2).on() as load:
        done = run(moves.request("tiny", "next", (), PERSON))
        assert done.outcome == "succeeded"
        seen = load.answered
        until(lambda: load.failed or load.answered > seen + 100, "answers of the target")
    assert load.failed == []


@pytest.mark.parametrize("stage", ["starting-target", "stopping-source"])
def test_agents_that_restart_in_the_middle_of_a_hand_over_are_waited_for(nodes, quick, stage) -> None:
    placed(node_id="local", args=["--start-seconds", "1"])
    assert run(model_runs.start("tiny", PERSON)).outcome == "succeeded"
    operation = at(moves.request("tiny", "next", (), PERSON), stage)
    for agent in nodes.agents.values():
        agent.end()
    worker.run(operation.pk)
    for agent in nodes.agents.values():
        agent.begin()
    assert run(operation).outcome == "succeeded"
    placement = Placement.objects.get()
    assert (placement.node_id_text, placement.observed) == ("next", "ready")
    views = {
        name: [view.state.value for view in agent.server._instances.views()] for name, agent in nodes.agents.items()
    }
    assert views == {"local": ["exited"], "next": ["ready"]}


def test_a_source_that_dies_in_the_middle_of_a_hand_over_changes_nothing_of_it(nodes, quick) -> None:
    placed(node_id="local", args=["--start-seconds", "1"])
    assert run(model_runs.start("tiny", PERSON)).outcome == "succeeded"
    pid = Placement.objects.get().observed_view["pid"]
    operation = at(moves.request("tiny", "next", (), PERSON), "starting-target")
    os.kill(pid, signal.SIGKILL)
    assert run(operation).outcome == "succeeded"
    assert Placement.objects.get().node_id_text == "next"
