"""A stop, whatever the node does meanwhile."""

import pytest

from jobs import worker
from jobs.requests import cancellation, model_runs
from mirbad.kernel.errors import Conflict
from models_app.models import Placement
from tests.models_app.things import PERSON, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture
def running(agent, finish):
    node("pc-1")
    placed()
    finish(model_runs.start("tiny", PERSON).pk)
    return agent


def test_a_stop_ends_with_an_engine_that_is_gone(running, finish) -> None:
    done = finish(model_runs.stop("tiny", PERSON).pk)
    placement = Placement.objects.get()
    assert (done.kind, done.outcome, placement.desired, placement.observed) == (
        "stop",
        "succeeded",
        "stopped",
        "stopped",
    )


def test_a_second_stop_is_the_same_operation(running) -> None:
    assert model_runs.stop("tiny", PERSON).pk == model_runs.stop("tiny", PERSON).pk


def test_what_is_stopped_is_not_stopped_again(running, finish) -> None:
    finish(model_runs.stop("tiny", PERSON).pk)
    with pytest.raises(Conflict):
        model_runs.stop("tiny", PERSON)


def test_a_stop_is_not_forgotten_while_its_node_is_away(running, finish, pass_time) -> None:
    running.offline = True
    operation = model_runs.stop("tiny", PERSON)
    for _ in range(3):
        worker.run(operation.pk)
        pass_time(3600)
    operation.refresh_from_db()
    assert (operation.outcome, operation.error["code"]) == ("open", "node_offline")
    with pytest.raises(Conflict):
        model_runs.start("tiny", PERSON)
    running.offline = False
    assert finish(operation.pk).outcome == "succeeded"
    assert running.stops == 1


def test_a_stop_that_waits_for_its_node_may_be_given_up(running, finish) -> None:
    running.offline = True
    operation = model_runs.stop("tiny", PERSON)
    worker.run(operation.pk)
    cancellation.request(operation.pk, PERSON)
    assert finish(operation.pk).outcome == "cancelled"


def test_an_engine_that_does_not_end_is_told(running, finish) -> None:
    running.stubborn = True
    done = finish(model_runs.stop("tiny", PERSON).pk)
    assert (done.outcome, done.error["code"]) == ("failed", "stop_timeout")
    assert Placement.objects.get().desired == "stopped"


def test_an_engine_that_the_node_forgot_is_stopped(running, finish) -> None:
    running.engines.clear()
    assert finish(model_runs.stop("tiny", PERSON).pk).outcome == "succeeded"
