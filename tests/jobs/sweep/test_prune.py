"""Operations are forgotten after the time that is set, but never what is open or what happened last."""

from dataclasses import replace
from datetime import timedelta

import pytest

from jobs import ledger
from jobs.kinds import launch
from jobs.loops import prune
from jobs.models import Operation, OperationEvent
from mirbad.kernel import clock
from mirbad.kernel.actor import system
from mirbad.kernel.conf import settings
from models_app.models import EngineExit

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def made(model_id: str = "tiny", node_id: str = "pc-1", *, ended_days_ago: float | None = None) -> str:
    kind = replace(launch.KIND, concurrency_group="work")
    number = Operation.objects.count()
    subject = ledger.Subject("placement", f"{model_id}-{number}", node_id, model_id)
    operation = ledger.create(kind, "checking", subject, system("job"), "Begun.", operation_id=f"op-{number:04}")
    if ended_days_ago is not None:
        ended = clock.now() - timedelta(days=ended_days_ago)
        Operation.objects.filter(pk=operation.pk).update(finished_at=ended, outcome="succeeded")
    return operation.pk


def kept() -> set[str]:
    return set(Operation.objects.values_list("pk", flat=True))


def test_what_ended_long_ago_goes_with_its_timeline() -> None:
    old, young = made(ended_days_ago=91), made(ended_days_ago=89)
    assert prune.prune_once() == 1
    assert kept() == {young}
    assert not OperationEvent.objects.filter(operation_id=old).exists()


def test_what_is_open_stays_however_old_it_is() -> None:
    still = made()
    newest = made(ended_days_ago=1)
    Operation.objects.filter(pk=still).update(created_at=clock.now() - timedelta(days=900))
    assert prune.prune_once() == 0
    assert kept() == {still, newest}


def test_the_newest_of_each_model_and_of_each_node_stays() -> None:
    made("one", "pc-1", ended_days_ago=400)
    last_of_one = made("one", "pc-1", ended_days_ago=300)
    last_of_two = made("two", "pc-2", ended_days_ago=200)
    last_of_pc_2 = made("", "pc-2", ended_days_ago=100)
    assert prune.prune_once() == 1
    assert kept() == {last_of_one, last_of_two, last_of_pc_2}


def test_many_are_pruned_in_parts(monkeypatch) -> None:
    monkeypatch.setattr(prune, "AT_ONCE", 3)
    for _ in range(10):
        made(ended_days_ago=100)
    assert prune.prune_once() == 9
    assert len(kept()) == 1


def test_zero_keeps_everything(monkeypatch) -> None:
    made(ended_days_ago=4000)
    made(ended_days_ago=1)
    unset = settings().model_copy(update={"operation_retention": timedelta(0)})
    monkeypatch.setattr(prune, "settings", lambda: unset)
    assert prune.prune_once() == 0


def test_ends_of_engines_go_with_the_operations() -> None:
    for number, days in ((1, 91), (2, 89)):
        at = clock.now() - timedelta(days=days)
        EngineExit.objects.create(placement_id_text="p", run=str(number), model_id_text="m", node_id_text="n", at=at)
    prune.prune_once()
    assert [row.run for row in EngineExit.objects.all()] == ["2"]
