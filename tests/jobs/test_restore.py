"""The operation of an import: downloads, starts and notes, with real servers of agents; holds, waits, and its end."""

import shutil
from collections.abc import Iterator

import pytest

from agent.errors import AgentError
from agent.wire.errors import AgentCode
from audit.models import AuditLine
from jobs.backup import making, sealed
from jobs.backup.importing import content
from jobs.backup.importing.choices import ImportChoices
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import cancellation, model_runs, restore
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from models_app.errors import ModelBusy
from models_app.models import Hold, ModelDefinition, Placement
from models_app.registry import delete
from nodes.models import Node
from nodes.pki import authority
from tests.bench.hub import Repository
from tests.jobs.kills.bench import Bench
from tests.models_app.things import PERSON, placed
from tests.trust.ca_fleet import moving_clock

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]
WEIGHTS = b"weights" * 999


@pytest.fixture
def bench(transactional_db, tmp_path, monkeypatch) -> Iterator[Bench]:
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)
    now, forward = moving_clock()
    monkeypatch.setattr(clock, "now", now)
    authority.ensure()
    made = Bench(tmp_path, forward)
    for name in ("tiny", "small"):
        made.hub.add(Repository(name=f"acme/{name}", files={"config.json": b"{}", "model.safetensors": WEIGHTS}))
    yield made
    made.close()


def source(name):
    return [{"kind": "huggingface", "folder": f"acme--{name}", "repository": f"acme/{name}"}]


def backed_up(bench, *running):
    """Back up the models that are there, those of `running` as running ones, and delete all."""
    Placement.objects.filter(model_id__in=running).update(desired="running")
    path = bench.folder / "fleet.backup"
    path.unlink(missing_ok=True)
    making.create(path, None, PERSON)
    Placement.objects.all().delete()
    ModelDefinition.objects.all().delete()
    return content.read(path, None)


def imported(read):
    choices = ImportChoices()
    return restore.request(read, choices, restore.preview(read, choices).digest, PERSON)


def texts(operation):
    return [event.text for event in operation.events.all()]


def launched(bench, node_id):
    return len(bench.machine(node_id).engines.launches)


def test_weights_come_first_then_the_models_start_one_at_a_time(bench):
    placed("one", "a", sources=source("tiny"))
    placed("two", "a", sources=source("small"))
    placed("three", "a")
    placed("four", "b", sources=source("tiny"))
    operation = imported(backed_up(bench, "one", "two", "three"))
    open_at_once, starting_at_once = set(), set()
    while unfinished().filter(pk=operation.pk).exists():
        bench.turn()
        rows = unfinished().filter(kind="download")
        open_at_once |= {rows.filter(node_id_text="a").count()}
        starting_at_once |= {unfinished().filter(kind="launch", node_id_text="a").count()}
    operation.refresh_from_db()
    assert operation.outcome == "succeeded"
    assert max(open_at_once) == max(starting_at_once) == 1
    assert sorted(Placement.objects.values_list("model_id", "desired")) == [
        ("four", "stopped"), ("one", "running"), ("three", "running"), ("two", "running"),
    ]  # fmt: skip
    for node_id, name in (("a", "tiny"), ("a", "small"), ("b", "tiny")):
        folder = bench.machine(node_id).config.models_root / f"acme--{name}"
        assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert not Hold.objects.exists()
    downloads = Operation.objects.filter(kind="download")
    assert {row.actor for row in downloads} == {"system:restore"}
    # Each start was there when its weights were: none downloaded them itself.
    assert not Operation.objects.filter(kind="launch", state__has_key="download").exists()
    line = AuditLine.objects.get(action="restore", result="succeeded")
    assert line.detail == f"configuration import; asked by {PERSON.name}"


def test_a_model_is_held_until_it_is_done(bench):
    placed("one", "a")
    operation = imported(backed_up(bench, "one"))
    for call in (lambda: model_runs.start("one", PERSON), lambda: delete("one", PERSON)):
        with pytest.raises(ModelBusy, match=r"a restore \(configuration import\) holds it\. Wait .* cancel the conf"):
            call()
    assert bench.finish(operation.pk).outcome == "succeeded"
    assert model_runs.stop("one", PERSON).kind == "stop"


def test_a_download_that_fails_leaves_its_model_stopped_and_the_others_go_on(bench):
    placed("gone", "a", sources=[{"kind": "huggingface", "folder": "nobody--x", "repository": "nobody/x"}])
    placed("one", "a", sources=source("tiny"))
    shutil.rmtree(bench.machine("a").config.models_root / "acme--tiny", ignore_errors=True)
    ended = bench.finish(imported(backed_up(bench, "gone", "one")).pk)
    assert (ended.outcome, ended.result) == ("succeeded", {"leftStopped": ["gone"]})
    assert dict(Placement.objects.values_list("model_id", "desired")) == {"gone": "stopped", "one": "running"}
    said = [
        text for text in texts(ended) if text.startswith("Model gone on node a stays stopped: its weights cannot be")
    ]
    assert len(said) == 1
    assert "1 model is left stopped; the timeline says why." in texts(ended)[-1]


def test_a_model_that_does_not_fit_is_left_stopped_and_says_why(bench, monkeypatch):
    placed("large", "a")
    placed("one", "a")
    operation = imported(backed_up(bench, "large", "one"))
    engines = bench.machine("a").engines
    launch = engines.launch

    async def admit(instance_id, operation_id, spec):
        if spec.model_id == "large":
            raise AgentError(AgentCode.ADMISSION_REFUSED, "The host lacks 3 GiB for this model.")
        return await launch(instance_id, operation_id, spec)

    monkeypatch.setattr(engines, "launch", admit)
    ended = bench.finish(operation.pk)
    assert (ended.outcome, ended.result) == ("succeeded", {"leftStopped": ["large"]})
    assert dict(Placement.objects.values_list("model_id", "desired")) == {"large": "stopped", "one": "running"}
    why = "Model large stays stopped: on node a: Node 'a': The host lacks 3 GiB for this model."
    assert why in texts(ended)


def test_a_drained_node_starts_nothing_and_says_so(bench):
    placed("one", "a")
    read = backed_up(bench, "one")
    operation = imported(read)
    Node.objects.filter(pk="a").update(draining=True)
    ended = bench.finish(operation.pk)
    assert any(text.startswith("Model one stays stopped: Node a is draining") for text in texts(ended))
    assert Placement.objects.get().desired == "stopped"
    assert launched(bench, "a") == 0


def test_a_node_that_is_away_is_waited_for_and_then_left(bench):
    placed("one", "a")
    placed("two", "b", sources=source("tiny"))
    shutil.rmtree(bench.machine("b").config.models_root / "acme--tiny", ignore_errors=True)
    read = backed_up(bench, "one", "two")
    operation = imported(read)
    bench.machine("b").end()
    Node.objects.filter(pk="b").update(reachability="offline")
    for _ in range(8):
        bench.turn()
        Node.objects.filter(pk="b").update(reachability="offline")
    operation.refresh_from_db()
    assert operation.finished_at is None
    assert "Waiting for b." in operation.progress["text"]
    assert Placement.objects.get(model_id="one").desired == "running"
    assert set(Hold.objects.values_list("model_id", flat=True)) == {"two"}
    bench.forward(settings().launch_timeout.total_seconds() + 10)
    for _ in range(6):
        restore.open_all()
        bench.turn()
        Node.objects.filter(pk="b").update(reachability="offline")
    operation.refresh_from_db()
    assert operation.outcome == "succeeded"
    assert any(text.startswith("1 models on node b stay stopped: Node b is offline") for text in texts(operation))
    assert not Hold.objects.exists()
    bench.machine("b").begin()


def test_cancelled_what_was_written_stays_and_the_rest_is_named(bench):
    placed("one", "a", sources=source("tiny"))
    placed("two", "a")
    shutil.rmtree(bench.machine("a").config.models_root / "acme--tiny", ignore_errors=True)
    operation = imported(backed_up(bench, "one", "two"))
    restore.open_next(operation.pk)
    assert unfinished().filter(kind="download").count() == 1
    cancellation.request(operation.pk, PERSON)
    ended = bench.finish(operation.pk)
    assert ended.outcome == "cancelled"
    assert not unfinished().filter(kind="download").exists()
    assert sorted(Placement.objects.values_list("model_id", "desired")) == [("one", "stopped"), ("two", "stopped")]
    assert not Hold.objects.exists()
    assert texts(ended)[-1] == (
        "Cancelled. All models, keys and settings that were imported stay. Not downloaded, or not started: one, two."
    )
    assert launched(bench, "a") == 0


def test_a_hold_of_an_import_that_is_over_is_released_by_itself(bench):
    placed("one", "a")
    operation = imported(backed_up(bench, "one"))
    Operation.objects.filter(pk=operation.pk).update(finished_at=clock.now(), outcome="failed")
    bench.forward(60)
    bench.turn()
    assert not Hold.objects.exists()


def test_a_signal_that_comes_twice_opens_one_download(bench):
    placed("one", "a", sources=source("tiny"))
    shutil.rmtree(bench.machine("a").config.models_root / "acme--tiny", ignore_errors=True)
    operation = imported(backed_up(bench, "one"))
    assert [restore.open_next(operation.pk) for _ in range(3)] == [1, 0, 0]
    assert Operation.objects.filter(kind="download").count() == 1
    bench.finish(operation.pk)
    assert Operation.objects.filter(kind="download").count() == 1
    assert Operation.objects.filter(kind="launch").count() == 1


def test_a_model_whose_placement_is_taken_away_is_left(bench):
    placed("one", "a")
    operation = imported(backed_up(bench, "one"))
    Placement.objects.all().delete()
    ended = bench.finish(operation.pk)
    assert "Model one stays stopped: it was taken off its node meanwhile." in texts(ended)


def test_an_import_of_nothing_new_ends_at_once(bench):
    placed("one", "a")
    path = bench.folder / "same.backup"
    making.create(path, None, PERSON)
    ended = bench.finish(imported(content.read(path, None)).pk)
    assert (ended.outcome, texts(ended)[-1]) == (
        "succeeded",
        "Models: 0 created, 0 changed, 1 kept, 0 left out. API keys created: 0. Nodes with changed settings: 0.",
    )
