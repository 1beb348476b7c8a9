"""Models that should run and do not are started again; failed ones are not."""

import pytest

from agent.wire.instances import InstanceState
from audit.models import AuditLine
from jobs import worker
from jobs.loops.resume import autostart, resume_once
from jobs.models import Operation
from jobs.requests import model_runs
from models_app import holds, intents
from models_app.models import Placement
from models_app.placement import apply
from nodes.models import Node
from tests.models_app.things import PERSON, node, placed
from tests.standins.memory import DIES, READY

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def _machine() -> None:
    node("pc-1", boot_id="boot-1")
    placed()
    wanted()


def wanted() -> None:
    """Every model is to run, and waits for its node to start it."""
    Placement.objects.update(desired="running", observed="stopped")
    intents.ask(Placement.objects.all(), "asked")


def test_a_model_that_should_run_is_started_in_the_name_of_autostart(agent, finish) -> None:
    assert resume_once() == 1
    operation = Operation.objects.get()
    assert operation.actor == "system:autostart"
    assert resume_once() == 0, "it starts already"
    finish(operation.pk)
    assert (Placement.objects.get().observed, resume_once()) == ("ready", 0)


@pytest.mark.parametrize("observed", ["failed", "unknown", "starting", "ready", "unhealthy", "stopping"])
def test_only_what_is_seen_stopped_is_started(agent, observed) -> None:
    Placement.objects.update(observed=observed)
    assert resume_once() == 0


def test_what_should_be_stopped_stays_so(agent) -> None:
    Placement.objects.update(desired="stopped")
    assert resume_once() == 0


@pytest.mark.parametrize("columns", [{"reachability": "offline"}, {"draining": True}, {"lifecycle": "revoked"}])
def test_a_model_on_a_node_that_takes_none_waits(agent, columns) -> None:
    Node.objects.update(**columns)
    assert resume_once() == 0


def test_a_held_model_waits(agent) -> None:
    holds.take("tiny", "job", "job-1", "a benchmark")
    assert resume_once() == 0


def test_a_model_that_fails_to_start_is_not_started_for_ever(agent, finish) -> None:
    agent.plan = [DIES]
    assert resume_once() == 1
    finish(Operation.objects.get().pk)
    assert (resume_once(), Placement.objects.get().desired) == (0, "stopped")


def test_one_model_a_node_starts_at_a_time(agent, finish) -> None:
    node("pc-2")
    placed("second")
    placed("other", "pc-2")
    wanted()
    agent.plan = [READY]
    assert resume_once() == 2
    assert set(Operation.objects.values_list("model_id_text", flat=True)) == {"tiny", "other"}
    assert resume_once() == 0
    for row in Operation.objects.all():
        finish(row.pk)
    assert resume_once() == 1


def test_a_model_marked_to_start_with_the_master_is_wanted_when_it_comes_up(agent, finish) -> None:
    placed("marked", autoStart=True)
    for placement in Placement.objects.all():
        apply.set_desired(placement, "stopped")
    assert (autostart(), autostart()) == (1, 0)
    assert list(Placement.objects.filter(desired="running").values_list("model_id", flat=True)) == ["marked"]
    assert resume_once() == 1
    assert finish(Operation.objects.get().pk).outcome == "succeeded"
    line = AuditLine.objects.filter(action="model.start").order_by("id").first()
    assert (line.actor, line.model_id_text, line.result) == ("system:autostart", "marked", "accepted")


def test_a_stop_by_a_person_ends_the_wish(agent, finish) -> None:
    finish(model_runs.start("tiny", PERSON).pk)
    finish(model_runs.stop("tiny", PERSON).pk)
    assert resume_once() == 0


@pytest.mark.parametrize("was_ready", [False, True], ids=["while it loaded", "ready, but nobody had looked yet"])
def test_a_start_that_the_end_of_the_last_run_interrupted_is_made_again(agent, finish, pass_time, was_ready) -> None:
    """Ctrl-C ends the engines of the master's own machine; a launch may still be open then."""
    Node.objects.update(is_bootstrap=True)
    agent.plan = [{"state": InstanceState.LOADING}] * 9
    operation = model_runs.start("tiny", PERSON)
    for _ in range(4):
        worker.run(operation.pk)
        pass_time(1)
    engine = next(iter(agent.engines.values()))
    engine.script.clear()
    ready = {"ready_at": "2026-01-01T00:00:01Z", "start_seconds": 1.0} if was_ready else {}
    ended = {"state": InstanceState.EXITED, "stop_requested": True, "exit_code": 0, **ready}
    engine.view = engine.view.model_copy(update=ended)
    agent.plan = [READY]

    autostart()
    done = finish(operation.pk)
    assert (done.outcome, done.error.get("code")) == (
        ("succeeded", None) if was_ready else ("failed", "stopped_meanwhile")
    )
    assert (Placement.objects.get().desired, Placement.objects.get().observed) == ("running", "stopped")
    assert resume_once() == 1
    assert finish(Operation.objects.latest("pk").pk).outcome == "succeeded"
    assert (Placement.objects.get().observed, len(agent.launches)) == ("ready", 2)


def test_an_engine_that_somebody_stopped_on_its_node_while_it_started_is_left_so(agent, finish, pass_time) -> None:
    intents.forget(list(Placement.objects.values_list("pk", flat=True)))
    agent.plan = [{"state": InstanceState.LOADING}] * 9
    operation = model_runs.start("tiny", PERSON)
    for _ in range(4):
        worker.run(operation.pk)
        pass_time(1)
    engine = next(iter(agent.engines.values()))
    engine.script.clear()
    engine.view = engine.view.model_copy(update={"state": InstanceState.EXITED, "stop_requested": True})
    assert finish(operation.pk).error["code"] == "stopped_meanwhile"
    assert (resume_once(), len(agent.launches)) == (0, 1)
