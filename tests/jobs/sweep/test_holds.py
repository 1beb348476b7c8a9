"""A hold does not outlive its owner, and says what to do about it while it stands."""

from dataclasses import replace
from datetime import timedelta

import pytest

from jobs import ledger
from jobs.kinds import launch
from jobs.loops.holds import YOUNG, release_stale_once
from jobs.models import Operation
from jobs.requests import model_runs
from mirbad.kernel import clock
from mirbad.kernel.actor import system
from models_app import holds, registry
from models_app.errors import ModelBusy
from models_app.models import Hold, ModelDefinition
from tests.models_app.things import PERSON, definition, model_data, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def _model() -> None:
    node("pc-1")
    placed()


def owner(kind: str = "move") -> Operation:
    made = replace(launch.KIND, name=kind, concurrency_group="work")
    return ledger.create(made, "somewhere", ledger.Subject("model", "tiny", "pc-1", "tiny"), system("job"), "Begun.")


def held(kind: str, holder_id: str) -> None:
    holds.take("tiny", kind, holder_id, "a move to node pc-2")
    Hold.objects.update(since=clock.now() - 2 * YOUNG)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("move", "move-{0}"),
        ("unplace", "unplace-{0}"),
        ("job", "job-{0}"),
        ("restore", "restore-{0}-tiny"),
        ("revoke", "{0}"),
    ],
)
def test_a_hold_goes_when_its_operation_is_over_and_not_before(kind, shape) -> None:
    operation = owner()
    held(kind, shape.format(operation.pk))
    assert release_stale_once() == 0
    Operation.objects.update(finished_at=clock.now(), outcome="failed")
    assert release_stale_once() == 1
    assert not Hold.objects.exists()
    assert release_stale_once() == 0


def test_a_hold_of_an_operation_that_nobody_knows_goes() -> None:
    held("job", "job-of-another-life")
    assert release_stale_once() == 1


def test_a_hold_that_was_taken_just_now_stays() -> None:
    holds.take("tiny", "move", "move-op_soon", "a move to node pc-2")
    assert release_stale_once() == 0


@pytest.mark.parametrize(
    ("kind", "words", "advice"),
    [
        ("move", "a move to node pc-2", "Wait for it to finish, or cancel the move."),
        ("job", "a benchmark on node pc-1", "Wait for it to finish, or cancel the job."),
        ("restore", "a restore (configuration import)", "Wait for it to finish, or cancel the configuration import."),
        ("unplace", "an unplace from node pc-1", "Wait for it to finish."),
    ],
)
@pytest.mark.parametrize("verb", [model_runs.start, model_runs.stop, model_runs.restart])
def test_a_start_stop_or_restart_of_a_held_model_says_who_holds_it_and_what_to_do(kind, words, advice, verb) -> None:
    holds.take("tiny", kind, f"{kind}-1", words)
    with pytest.raises(ModelBusy) as refused:
        verb("tiny", PERSON)
    assert refused.value.detail == f"Model 'tiny' is busy: {words} holds it. {advice}"
    assert refused.value.fields["holderId"] == f"{kind}-1"
    assert not Operation.objects.exists()


def test_a_held_model_has_one_holder() -> None:
    holds.take("tiny", "move", "move-1", "a move to node pc-2")
    holds.take("tiny", "move", "move-1", "a move to node pc-2")
    with pytest.raises(ModelBusy):
        holds.take("tiny", "job", "job-1", "a benchmark on node pc-1")


def test_settings_and_tags_of_a_held_model_can_be_saved_but_not_its_place() -> None:
    holds.take("tiny", "move", "move-1", "a move to node pc-2")
    placement = {"nodeId": "pc-1"}
    registry.update("tiny", model_data(tags=["held"], contextLength=4096, placement=placement), PERSON)
    assert (definition().tags, definition().context_length) == (["held"], 4096)
    with pytest.raises(ModelBusy):
        registry.delete("tiny", PERSON)
    assert ModelDefinition.objects.exists()


def test_the_same_holder_may_be_released_once() -> None:
    holds.take("tiny", "move", "move-1", "a move to node pc-2")
    assert not holds.release("tiny", "move-2")
    assert holds.release("tiny", "move-1")
    assert not holds.release("tiny", "move-1")


def test_time_alone_releases_nothing(monkeypatch) -> None:
    operation = owner()
    held("move", f"move-{operation.pk}")
    later = clock.now() + timedelta(days=30)
    monkeypatch.setattr(clock, "now", lambda: later)
    assert release_stale_once() == 0
