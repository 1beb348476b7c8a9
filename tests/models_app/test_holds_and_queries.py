"""Holds keep a model for one holder; lists cost a constant number of statements."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mirbad.kernel.errors import NotFound
from models_app import holds, queries
from models_app.errors import ModelBusy
from models_app.models import Hold, Placement
from tests.models_app.things import node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def test_one_holder_at_a_time() -> None:
    node("pc-1")
    placed()
    holds.take("tiny", "move", "move-1", "a move to node pc-2")
    holds.take("tiny", "move", "move-1", "a move to node pc-3")
    assert Hold.objects.get().words == "a move to node pc-3"
    with pytest.raises(ModelBusy) as caught:
        holds.take("tiny", "job", "job-1", "a benchmark")
    assert caught.value.fields["holderId"] == "move-1"
    holds.require_free("tiny", unless="move-1")
    assert not holds.release("tiny", "job-1")
    assert holds.release("tiny", "move-1")
    holds.require_free("tiny")


def test_what_is_not_there_cannot_be_held() -> None:
    with pytest.raises(NotFound):
        holds.take("tiny", "job", "job-1", "a benchmark")


@pytest.mark.parametrize(
    ("desired", "observed", "name", "serves", "said"),
    [
        ("running", "ready", "ready", True, ""),
        ("stopped", "ready", "ready", False, "It is to be stopped."),
        ("running", "starting", "starting", False, ""),
        ("running", "stopped", "stopped", False, "It should run on node pc-1 and does not yet."),
        ("stopped", "stopped", "stopped", False, ""),
        ("running", "unknown", "unknown", False, "Node pc-1 does not report now; the model should run there."),
        ("stopped", "failed", "failed", False, ""),
        ("running", "unhealthy", "unhealthy", False, ""),
    ],
)
def test_the_shown_state_says_what_is_seen_and_what_is_wanted(desired, observed, name, serves, said) -> None:
    placement = Placement(model_id="tiny", node_id_text="pc-1", desired=desired, observed=observed)
    shown = queries.shown_state(placement)
    assert (shown.name, shown.serves) == (name, serves)
    assert " ".join(shown.reasons) == said


def test_a_model_without_a_node_is_shown_as_unplaced() -> None:
    assert queries.shown_state(None).name == "unplaced"


def test_the_statements_of_a_list_do_not_grow_with_its_rows() -> None:
    node("pc-1")

    def count() -> int:
        with CaptureQueriesContext(
            connection,
        ) as caught:
            for model in queries.all_models():
                queries.shown_state(queries.placement_of(model))
                list(model.sources.all())
                getattr(model, "hold", None)
        return len(caught)

    placed("m0")
    one = count()
    for number in range(1, 9):
        placed(f"m{number}")
    assert count() == one <= 3


def test_placements_of_many_nodes_come_in_one_statement(django_assert_num_queries) -> None:
    node("pc-1")
    placed("m0")
    placed("m1")
    with django_assert_num_queries(1):
        found = queries.placements_on(["pc-1", "pc-2"])
        assert [p.model.name for p in found["pc-1"]] == ["m0", "m1"]
    assert found["pc-2"] == []
