"""A confirmed import is written whole or not at all, once, and never otherwise than it was shown."""

import io
import json

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from audit.models import AuditLine
from jobs.backup import sealed
from jobs.backup.importing.choices import ImportChoices, ImportOptions, TargetChoice
from jobs.backup.importing.plan import PlannedAction
from jobs.errors import RestoreChanged
from jobs.models import Operation, OperationEvent
from jobs.requests import restore
from mirbad.kernel.errors import Conflict
from models_app import holds, keys, routing
from models_app.errors import ModelBusy, PlacementRequired
from models_app.models import ApiKey, Hold, ModelDefinition, ModelSource, Placement
from models_app.registry import specs
from nodes import fencing
from nodes.errors import MasterFenced
from nodes.models import Authority, Gpu, MasterIdentity, Node, NodePin
from tests.jobs.backup.fleet import CANARY, PASSPHRASE, fill
from tests.jobs.backup.importing.fleets import backed_up, forget_all, forget_models, imported, plan
from tests.models_app.things import GIB, PERSON, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)


@pytest.fixture
def read(tmp_path):
    """A backup, and the same master without models and keys."""
    fill()
    placed("hub", "pc-1", sources=[{"kind": "huggingface", "folder": "acme--x", "repository": "acme/x"}])
    found = backed_up(tmp_path)
    forget_models()
    AuditLine.objects.all().delete()
    return found


def rows():
    """Everything that an import writes, to compare."""
    tables = (ModelDefinition, ModelSource, Placement, ApiKey, Hold, Operation, OperationEvent, AuditLine)
    return {table.__name__: table.objects.count() for table in tables} | {
        "nodes": list(Node.objects.values("id", "labels", "display_name", "memory_reserve_bytes")),
        "gpus": list(Gpu.objects.values("uuid", "reserve_bytes")),
        "routing": routing.version(),
    }


def test_all_of_it_is_written_in_one_go(read):
    Node.objects.filter(pk="pc-1").update(labels={}, draining=False)
    before, trust = routing.version(), list(NodePin.objects.values()) + list(Authority.objects.values())
    identity = MasterIdentity.objects.values().get()
    operation = imported(read)
    assert sorted(ModelDefinition.objects.values_list("pk", flat=True)) == ["hub", "m0", "m1", "m2"]
    model = ModelDefinition.objects.get(pk="m0")
    assert (model.tags, specs.unseal_env(model)) == (["chat"], {"HF_TOKEN": f"{CANARY}-0"})
    assert ModelSource.objects.get(model_id="hub").repository == "acme/x"
    placement = Placement.objects.get(model_id="m0")
    assert (placement.node_id_text, placement.desired, placement.observed) == ("pc-1", "stopped", "stopped")
    assert placement.start_seconds == 12.5
    key = ApiKey.objects.get()
    assert (key.name, key.digest, key.created_at) == ("tools", read.keys[0].digest, read.keys[0].created_at)
    assert Node.objects.get(pk="pc-1").labels == {"room": "attic"}
    assert routing.version() > before
    assert list(NodePin.objects.values()) + list(Authority.objects.values()) == trust
    assert MasterIdentity.objects.values().get() == identity
    held = {hold.model_id: (hold.holder_kind, hold.holder_id, hold.words) for hold in Hold.objects.all()}
    words = "a restore (configuration import)"
    assert held == {name: ("restore", f"restore-{operation.pk}-{name}", words) for name in ("hub", "m0", "m1", "m2")}
    with pytest.raises(ModelBusy, match=r"Model 'm0' is busy: a restore \(configuration import\) holds it\."):
        holds.require_free("m0")


def test_the_audit_names_who_asked_and_all_that_changed(read):
    Node.objects.filter(pk="pc-1").update(labels={})
    operation = imported(read)
    assert set(AuditLine.objects.values_list("actor", flat=True)) == {"system:restore"}
    found = sorted(AuditLine.objects.values_list("action", "model_id_text", "node_id_text", "result"))
    assert found == [
        ("api-key", "", "", "succeeded"),
        ("model.create", "hub", "", "succeeded"),
        ("model.create", "m0", "", "succeeded"),
        ("model.create", "m1", "", "succeeded"),
        ("model.create", "m2", "", "succeeded"),
        ("node.update", "", "pc-1", "succeeded"),
        ("restore", "", "", "accepted"),
    ]
    line = AuditLine.objects.get(action="restore")
    assert f"asked by {PERSON.name}" in line.detail
    assert (line.operation_id_text, line.target) == (operation.pk, read.name)
    assert AuditLine.objects.get(model_id_text="m0").detail == "imported; placed on pc-1"


def test_a_second_import_keeps_everything(read):
    first = imported(read)
    Hold.objects.all().delete()
    Operation.objects.filter(pk=first.pk).update(finished_at=first.created_at, outcome="succeeded")
    before = (ModelDefinition.objects.count(), list(Placement.objects.values_list("pk")), ApiKey.objects.count())
    sealed_before = bytes(ModelDefinition.objects.get(pk="m0").secret_env_sealed)
    assert {one.action for one in plan(read).models} == {PlannedAction.KEPT}
    second = imported(read)
    assert second.pk != first.pk
    assert before == (
        ModelDefinition.objects.count(),
        list(Placement.objects.values_list("pk")),
        ApiKey.objects.count(),
    )
    assert bytes(ModelDefinition.objects.get(pk="m0").secret_env_sealed) == sealed_before
    assert not Hold.objects.exists()


def test_the_same_confirmation_twice_is_one_import(read):
    choices = ImportChoices()
    digest = restore.preview(read, choices).digest
    assert restore.request(read, choices, digest, PERSON).pk == restore.request(read, choices, digest, PERSON).pk
    with pytest.raises(Conflict, match="Another configuration import is in progress"):
        restore.request(read, choices, "0" * 64, PERSON)


@pytest.mark.parametrize(
    "change",
    [
        lambda: placed("m1", "pc-1"),
        lambda: keys.create("tools", actor=PERSON),
        lambda: Node.objects.filter(pk="pc-1").update(draining=True),
        lambda: Node.objects.filter(pk="pc-1").update(memory_reserve_bytes=7),
    ],
    ids=["a model", "a key", "a drain", "a setting"],
)
def test_what_changed_since_the_preview_is_not_written(read, change):
    choices = ImportChoices()
    digest = restore.preview(read, choices).digest
    change()
    before = rows()
    with pytest.raises(RestoreChanged) as refusal:
        restore.request(read, choices, digest, PERSON)
    assert refusal.value.fields["digest"] == restore.preview(read, choices).digest
    line = AuditLine.objects.latest("pk")
    assert (line.action, line.result, line.error_code) == ("restore", "refused", "restore_changed")
    line.delete()
    assert rows() == before
    assert restore.request(read, choices, refusal.value.fields["digest"], PERSON).kind == "restore"


def test_what_changed_and_makes_no_difference_is_none(read):
    choices = ImportChoices()
    digest = restore.preview(read, choices).digest
    node("pc-9", address="192.0.2.44")
    assert restore.request(read, choices, digest, PERSON).kind == "restore"


def test_models_without_a_target_keep_an_import_from_being_written(tmp_path):
    fill()
    found = backed_up(tmp_path)
    forget_all()
    before = ModelDefinition.objects.count()
    with pytest.raises(PlacementRequired, match="3 models were on machines that are not here") as refusal:
        imported(found)
    assert [problem["field"] for problem in refusal.value.problems] == ["m0", "m1", "m2"]
    assert ModelDefinition.objects.count() == before
    assert imported(found, others_unplaced=True).kind == "restore"
    assert Placement.objects.count() == 0
    assert not Hold.objects.exists()


def test_a_fenced_master_imports_nothing(read):
    fencing.fence("another master")
    with pytest.raises(MasterFenced):
        imported(read)
    assert not ModelDefinition.objects.exists()


class Dead(BaseException):
    """The process ends here."""


def test_whatever_interrupts_it_at_any_statement_leaves_nothing_of_it(read):
    Node.objects.filter(pk="pc-1").update(labels={})
    choices = ImportChoices()
    digest = restore.preview(read, choices).digest
    before = rows()
    statements = 0

    def count(execute, sql, params, many, context):
        nonlocal statements
        statements += 1
        return execute(sql, params, many, context)

    def die_at(number, *, after):
        seen = 0

        def wrapper(execute, sql, params, many, context):
            nonlocal seen
            seen += 1
            if seen == number and not after:
                raise Dead
            result = execute(sql, params, many, context)
            if seen == number:
                raise Dead
            return result

        return wrapper

    number, survived = 0, False
    while not survived:
        number += 1
        try:
            with connection.execute_wrapper(die_at(number, after=number % 2 == 0)):
                restore.request(read, choices, digest, PERSON)
            survived = True
        except Dead:
            found = rows()
            assert found == before, number
    assert number > 20
    assert ModelDefinition.objects.count() == Placement.objects.count() == 4


def test_a_canary_is_nowhere_in_clear_and_is_there_afterwards(read, caplog, capsys):
    operation = imported(read)
    texts = [json.dumps(list(table.objects.values()), default=str) for table in (Operation, OperationEvent, AuditLine)]
    texts += [caplog.text, *capsys.readouterr(), restore.preview(read, ImportChoices()).__repr__()]
    for model in ModelDefinition.objects.all():
        texts.append(json.dumps([model.env, model.args, bytes(model.secret_env_sealed or b"").decode("latin-1")]))
    hidden = [CANARY, PASSPHRASE, read.keys[0].digest]
    assert [word for word in hidden if any(word in text for text in texts)] == []
    assert operation.input["nodes"]["pc-1"]
    values = [specs.unseal_env(model) for model in ModelDefinition.objects.filter(pk__startswith="m").order_by("pk")]
    assert values == [{"HF_TOKEN": f"{CANARY}-{number}"} for number in range(3)]


def test_without_the_passphrase_the_values_of_this_master_stay(tmp_path):
    fill()
    bare = backed_up(tmp_path, None)
    ModelDefinition.objects.filter(pk="m1").update(tags=["other"])
    imported(bare)
    model = ModelDefinition.objects.get(pk="m1")
    assert (model.tags, specs.unseal_env(model)) == (["chat"], {"HF_TOKEN": f"{CANARY}-1"})
    assert ApiKey.objects.count() == 1


def test_notes_are_lines_of_the_timeline(tmp_path):
    fill()
    found = backed_up(tmp_path)
    forget_all()
    node("spark", address="192.0.2.50")
    ModelDefinition.objects.create(pk="m2", runtime="sim", delivery="process")
    holds.take("m2", "move", "move-op-1", "a move to node spark")
    operation = imported(found, TargetChoice(model_id="m1", node_id="spark"), others_unplaced=True)
    texts = [event.text for event in operation.events.all()]
    assert texts[0].startswith(f"Import requested by {PERSON.name} and written. Models: 2 created")
    assert "Model m0: It stays unplaced." in texts
    assert any(text.startswith("Model m2: It is busy here: a move to node spark holds it.") for text in texts)


def test_settings_of_the_same_machine_alone_are_applied(read):
    Node.objects.filter(pk="pc-1").update(labels={}, display_name="", memory_reserve_bytes=1, address="192.0.2.77")
    Gpu.objects.all().update(reserve_bytes=None)
    imported(read, options=ImportOptions(node_settings=False))
    assert Node.objects.get(pk="pc-1").labels == {}
    Operation.objects.all().delete()
    Hold.objects.all().delete()
    imported(read)
    found = Node.objects.get(pk="pc-1")
    assert (found.labels, found.display_name, found.memory_reserve_bytes) == ({"room": "attic"}, "The PC", GIB)
    assert found.address == "192.0.2.77"
    assert set(Gpu.objects.values_list("reserve_bytes", flat=True)) == {GIB}


def test_statements_do_not_grow_with_the_models(tmp_path, django_assert_max_num_queries):
    fill(models=60)
    found = backed_up(tmp_path)
    forget_models()
    choices = ImportChoices()
    digest = restore.preview(found, choices).digest
    with django_assert_max_num_queries(60):
        restore.request(found, choices, digest, PERSON)


def command(*words, answer="yes"):
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.input", lambda _: answer)
        call_command("backup", "restore", *words, stdout=out)
    return out.getvalue()


@pytest.fixture
def file(tmp_path):
    """The file of a backup, and of its passphrase, for a master that has other machines."""
    fill()
    backed_up(tmp_path)
    (tmp_path / "passphrase").write_text(f"{PASSPHRASE}\n")
    forget_all()
    node("spark", address="192.0.2.50")
    return str(tmp_path / "fleet-0.backup"), "--passphrase-file", str(tmp_path / "passphrase")


def test_the_command_shows_asks_and_imports(file):
    with pytest.raises(CommandError, match="3 models were on machines that are not here"):
        command(*file)
    targets = ("--target", "model:m0=spark", "--unplaced", "model:m1", "--unplaced", "all", "--no-start")
    with pytest.raises(CommandError, match="Nothing was changed"):
        command(*file, *targets, answer="no")
    assert not ModelDefinition.objects.exists()
    said = command(*file, *targets)
    assert "Node pc-1 is not here." in said
    assert "Model m0: created on spark." in said
    assert "  It is restored unplaced, as chosen." in said
    assert "API key tools: created." in said
    assert "Imported. Downloads and starts go on as operation op-" in said
    assert list(Placement.objects.values_list("model_id", "node_id_text")) == [("m0", "spark")]
    assert CANARY not in said
    assert AuditLine.objects.get(action="restore").detail.partition("asked by ")[2].startswith("config")


def test_the_command_takes_a_target_for_a_node_and_needs_no_answer_with_yes(file):
    assert "on spark" in command(*file, "--target", "node:pc-1=spark", "--yes", answer="no")
    assert Placement.objects.count() == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target", "m0=spark"), "'m0' is not model:NAME or node:NAME"),
        (("--target", "model:m0=nowhere"), "Node 'nowhere' does not exist here"),
        (("--target", "model:m9=spark"), "The backup has no model 'm9'"),
        (("--target", "model:m0=spark:GPU-7"), "unified memory"),
        (("--target", "model:m0"), "Choose either a node or unplaced"),
    ],
)
def test_the_command_refuses_targets_that_are_none(file, words, said):
    with pytest.raises(CommandError, match=said):
        command(*file, *words)
    assert not ModelDefinition.objects.exists()
