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
        ("stopped", "ready", "ready", False, "Will be stopped."),
        ("running", "starting", "starting", False, ""),
        ("running", "stopped", "stopped", False, "Should be running on node pc-1; not started yet."),
        ("stopped", "stopped", "stopped", False, ""),
        ("running", "unknown", "unknown", False, "Node pc-1 is not reporting; the model should run there."),
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


@pytest.mark.parametrize(
    ("observed", "view", "said"),
    [
        ("ready", {"notice": "Model tiny does not use GPU 0."}, ("Model tiny does not use GPU 0.",)),
        ("unhealthy", {"notice": "It does not."}, ("It does not.",)),
        ("ready", {"notice": None}, ()),
        ("ready", {}, ()),
        ("failed", {"notice": "It does not."}, ("It is started again automatically.",)),
    ],
)
def test_a_notice_is_a_reason_of_an_engine_that_runs_and_changes_no_state(observed, view, said) -> None:
    placement = Placement(node_id_text="pc-1", desired="running", observed=observed, observed_view=view)
    shown = queries.shown_state(placement)
    assert (shown.name, shown.reasons) == (observed, said)
    assert shown.serves is (observed == "ready")


def test_the_statements_of_a_list_do_not_grow_with_its_rows() -> None:
    node("pc-1")

    def count() -> int:
        with CaptureQueriesContext(
            connection,
        ) as caught:
            for model in queries.all_models():
                queries.shown_state(queries.primary(model))
                list(model.sources.all())
                getattr(model, "hold", None)
        return len(caught)

    placed("m0")
    one = count()
    for number in range(1, 9):
        placed(f"m{number}")
    assert count() == one <= 3
