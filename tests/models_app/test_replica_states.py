"""The state of a model that runs on several nodes."""

from uuid import uuid4

import pytest

from models_app import queries
from models_app.models import Placement
from tests.models_app.things import definition, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture
def model():
    node("pc-1")
    placed()
    Placement.objects.all().delete()
    return definition()


def shard(number: int, of: int, replica, observed: str = "ready", desired: str = "running", **more) -> Placement:
    return Placement.objects.create(
        model_id="tiny",
        node_id_text=more.pop("on", f"n{number}"),
        replica=replica,
        shard=number,
        shards=of,
        desired=desired,
        observed=observed,
        **more,
    )


def alone(on: str, observed: str = "ready", **more) -> Placement:
    return shard(0, 1, uuid4(), observed, on=on, **more)


def test_a_replica_with_every_shard_ready_is_ready(model) -> None:
    replica = uuid4()
    for number in range(3):
        shard(number, 3, replica)
    shown = queries.shown_model_state(model)
    assert (shown.name, shown.serves, shown.reasons) == ("ready", True, ())


def test_a_replica_is_never_ready_with_fewer_shards_than_it_must_have(model) -> None:
    replica = uuid4()
    shard(0, 3, replica)
    shard(2, 3, replica)
    shown = queries.shown_model_state(model)
    assert (shown.name, shown.serves) == ("failed", False)
    assert shown.reasons[0] == "2 of 3 shards ready."
    assert "remove this replica" in shown.reasons[1]


def test_a_replica_whose_rank_0_is_missing_is_not_ready_though_all_that_is_left_of_it_is(model) -> None:
    shard(1, 2, uuid4())
    shown = queries.shown_model_state(model)
    assert (shown.name, shown.serves) == ("failed", False)


@pytest.mark.parametrize(
    ("third", "name"),
    [
        ("failed", "failed"),
        ("unknown", "unknown"),
        ("unhealthy", "unhealthy"),
        ("starting", "starting"),
        ("stopped", "starting"),
        ("stopping", "stopping"),
    ],
)
def test_one_shard_that_is_not_ready_keeps_the_replica_from_it(model, third, name) -> None:
    replica = uuid4()
    shard(0, 3, replica)
    shard(1, 3, replica)
    shard(2, 3, replica, third)
    shown = queries.shown_model_state(model)
    assert (shown.name, shown.serves, shown.reasons[0]) == (name, False, "2 of 3 shards ready.")


def test_a_model_serves_while_one_of_its_replicas_does(model) -> None:
    alone("n1")
    alone("n2", "failed", observed_reason="The engine ended by itself with exit code 1.")
    shown = queries.shown_model_state(model)
    assert (shown.name, shown.serves) == ("ready", True)
    assert shown.reasons == (
        "1 of 2 replicas are serving.",
        "On n2: The engine ended by itself with exit code 1.",
        "On n2: It is started again automatically.",
    )


def test_a_stopped_model_with_several_replicas_is_stopped(model) -> None:
    alone("n1", "stopped", desired="stopped")
    alone("n2", "stopped", desired="stopped")
    shown = queries.shown_model_state(model)
    assert (shown.name, shown.serves, shown.reasons) == ("stopped", False, ())


def test_the_target_of_a_move_does_not_speak_for_the_model(model) -> None:
    target = alone("n1", "ready", routed=False)
    source = alone("n2", "starting")
    assert queries.primary(model) == source
    assert queries.placements_of(model) == (source, target)
    assert queries.shown_model_state(model).name == "starting"


def test_the_primary_is_shard_0_of_the_oldest_replica(model) -> None:
    first, second = uuid4(), uuid4()
    shard(1, 2, first, on="n1")
    head = shard(0, 2, first, on="n2")
    shard(0, 1, second, on="n3")
    # The age of a replica is that of its shard 0.
    assert queries.primary(model) == head
    assert [(p.node_id_text, p.shard) for p in queries.placements_of(model)] == [("n2", 0), ("n1", 1), ("n3", 0)]


def test_a_model_that_stands_nowhere_has_no_primary(model) -> None:
    assert queries.primary(model) is None
    assert queries.shown_model_state(model).name == "unplaced"
