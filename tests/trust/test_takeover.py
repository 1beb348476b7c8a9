"""Takeovers and continuations: what each stage does, what it survives, and what is refused."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from audit.models import AuditLine
from jobs import requests, takeover, worker
from jobs.kinds import takeover as kind
from jobs.loops import resume, sweep
from jobs.loops import takeover as wishes
from jobs.models import Operation
from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG, admin
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Conflict, NotFound, Unavailable
from models_app import registry
from models_app.models import Placement
from models_app.placement import apply
from nodes import fencing
from nodes.errors import ConfirmationRequired, MasterFenced
from nodes.link import health
from nodes.models import MasterIdentity, Node
from nodes.pki import authority
from tests.pages import seed
from tests.trust import bench

pytestmark = [pytest.mark.app, pytest.mark.django_db]

OPERATOR = admin("a session")


@pytest.fixture
def table():
    """A master that commands three nodes; and the table on which others can be put."""
    with bench.playing() as make:
        made = make()
        made.first()
        for node_id in bench.NODES:
            health.connect(node_id)
        yield made


def run(table, operation, steps=12):
    """Work on an operation until it is over."""
    for _ in range(steps):
        table.step(operation.pk)
        operation.refresh_from_db()
        if operation.finished_at:
            return operation
    raise AssertionError(f"not over: {operation.stage}")


def copy(table):
    """A copy of the acting master, acting now."""
    return table.restore(table.dump())


def test_a_takeover_passes_every_epoch_that_a_node_holds(table):
    name = copy(table)
    assert fencing.is_fenced()
    done = run(table, takeover.request(takeover.PHRASE, OPERATOR))
    assert (done.outcome, done.result["epoch"], done.result["claimed"]) == ("succeeded", 2, ["a", "b", "c"])
    assert not fencing.is_fenced()
    assert all(machine.held == fencing.present() for machine in table.machines.values())
    lines = AuditLine.objects.filter(action="fencing.takeover").order_by("id")
    assert list(lines.values_list("result", flat=True)) == ["accepted", "succeeded"]
    table.act("m0")
    with pytest.raises(Exception, match="obeys another master"):
        health.connect("a")
    assert fencing.is_fenced()
    table.act(name)
    assert not fencing.is_fenced()


def test_a_takeover_changes_epoch_and_instance_id(table):
    before = fencing.present()
    run(table, takeover.request(takeover.PHRASE, OPERATOR))
    after = fencing.present()
    assert after.epoch == before.epoch + 1
    assert after.instance_id != before.instance_id


def test_a_node_that_does_not_answer_waits_and_says_for_which_takeover(table):
    table.here().cut = {"b"}
    done = run(table, takeover.request(takeover.PHRASE, OPERATOR))
    node = Node.objects.get(pk="b")
    assert (node.reachability, node.takeover_id, node.takeover_epoch) == ("fenced", done.pk, 2)
    assert done.pk in node.reachability_reason
    assert done.result["pending"] == ["b"]
    table.here().cut = set()
    health.connect("b")
    node.refresh_from_db()
    assert (node.reachability, node.takeover_id, node.takeover_epoch) == ("online", "", None)


def test_a_node_that_waits_for_approval_is_asked_and_not_claimed(table):
    Node.objects.filter(pk="c").update(lifecycle="pending", reachability="unknown")
    done = run(table, takeover.request(takeover.PHRASE, OPERATOR))
    assert done.result["claimed"] == ["a", "b"]
    assert Node.objects.get(pk="c").takeover_id == ""
    assert table.machines["c"].held.epoch == 1


@pytest.mark.parametrize("stage", [kind.PROBING, kind.STORING, kind.CLAIMING])
def test_a_worker_killed_before_it_writes_repeats_the_stage_without_harm(table, stage, monkeypatch):
    operation = takeover.request(takeover.PHRASE, OPERATOR)
    while Operation.objects.get(pk=operation.pk).stage != stage:
        table.step(operation.pk)
    real = worker.ledger.write

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(worker.ledger, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        table.step(operation.pk)
    monkeypatch.setattr(worker.ledger, "write", real)
    table.now += timedelta(minutes=2)
    done = run(table, operation)
    assert (done.outcome, done.result["epoch"]) == ("succeeded", 2)
    assert fencing.present().epoch == 2


def test_a_repeat_after_storing_does_not_shut_out_a_node_that_came_back(table, monkeypatch):
    table.here().cut = {"b"}
    operation = takeover.request(takeover.PHRASE, OPERATOR)
    table.step(operation.pk)
    real = worker.ledger.write
    monkeypatch.setattr(worker.ledger, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        table.step(operation.pk)
    monkeypatch.setattr(worker.ledger, "write", real)
    table.here().cut = set()
    health.connect("b")
    table.now += timedelta(minutes=2)
    run(table, operation)
    assert Node.objects.get(pk="b").reachability == "online"


def test_many_nodes_are_asked_in_parts(table, monkeypatch):
    monkeypatch.setattr(kind, "AT_ONCE", 2)
    done = run(table, takeover.request(takeover.PHRASE, OPERATOR))
    assert done.result["claimed"] == ["a", "b", "c"]


def test_a_second_takeover_is_the_same_operation_and_the_phrase_is_needed(table):
    first = takeover.request(f" {takeover.PHRASE} ", OPERATOR)
    assert takeover.request(takeover.PHRASE, OPERATOR).pk == first.pk
    for text in ("", "yes", takeover.PHRASE.upper()):
        with pytest.raises(ConfirmationRequired):
            takeover.request(text, OPERATOR)
    refused = AuditLine.objects.filter(action="fencing.takeover", result="refused")
    assert {line.error_code for line in refused} == {"confirmation_required"}


def test_a_master_without_an_identity_cannot_take_over(db):
    with pytest.raises(Unavailable):
        takeover.request(takeover.PHRASE, OPERATOR)


def test_a_takeover_can_be_cancelled_before_it_changed_anything_even_by_a_fenced_master(table):
    copy(table)
    operation = takeover.request(takeover.PHRASE, OPERATOR)
    requests.cancel(operation.pk, OPERATOR)
    assert run(table, operation).outcome == "cancelled"
    assert fencing.is_fenced()


def test_a_takeover_that_another_master_crosses_says_so(table):
    other = copy(table)
    operation = takeover.request(takeover.PHRASE, OPERATOR)
    table.step(operation.pk)
    table.step(operation.pk)
    table.act("m0")
    for _ in range(3):
        run(table, takeover.request(takeover.PHRASE, OPERATOR))
    table.act(other)
    done = run(table, operation)
    assert (done.outcome, done.error["code"]) == ("failed", "master_fenced")
    assert "stop it" in done.error["detail"]
    assert fencing.is_fenced()


def test_a_continuation_needs_the_node_that_was_seen(table):
    other = copy(table)
    table.here().cut = {"a"}
    run(table, takeover.request(takeover.PHRASE, OPERATOR))
    table.act("m0")
    table.here().cut = {"b", "c"}
    for _ in range(2):
        run(table, takeover.request(takeover.PHRASE, OPERATOR))
    table.act(other)
    table.here().cut = set()
    with pytest.raises(Exception, match="obeys another master"):
        health.connect("a")
    node = Node.objects.get(pk="a")
    assert not fencing.is_fenced()
    for arguments, refusal in (
        (("x", node.takeover_id, 3, "x"), NotFound),
        (("a", node.takeover_id, 3, "b"), ConfirmationRequired),
        (("a", "op-other", 3, "a"), Conflict),
        (("a", node.takeover_id, 2, "a"), Conflict),
        (("b", node.takeover_id, 2, "b"), Conflict),
    ):
        with pytest.raises(refusal):
            takeover.resume(*arguments, OPERATOR)
    operation = takeover.resume("a", node.takeover_id, 3, "a", OPERATOR)
    assert takeover.resume("a", node.takeover_id, 3, "a", OPERATOR).pk == operation.pk
    with pytest.raises(Conflict):
        takeover.request(takeover.PHRASE, OPERATOR)
    done = run(table, operation)
    assert (done.outcome, done.result["claimed"], done.result["epoch"]) == ("succeeded", ["a"], 4)
    lines = AuditLine.objects.filter(action="fencing.continue").values_list("result", flat=True)
    assert sorted(lines) == ["accepted", *["refused"] * 5, "succeeded"]


def test_a_continuation_ends_when_the_node_was_taken_again_meanwhile(table):
    other = copy(table)
    table.here().cut = {"a"}
    run(table, takeover.request(takeover.PHRASE, OPERATOR))
    table.act("m0")
    run(table, takeover.request(takeover.PHRASE, OPERATOR))
    table.act(other)
    table.here().cut = set()
    with pytest.raises(Exception, match="obeys another master"):
        health.connect("a")
    node = Node.objects.get(pk="a")
    operation = takeover.resume("a", node.takeover_id, node.held_epoch, "a", OPERATOR)
    table.act("m0")
    run(table, takeover.request(takeover.PHRASE, OPERATOR))
    table.act(other)
    done = run(table, operation)
    assert (done.outcome, done.error["code"]) == ("failed", "invalid_state")


# -- what a fenced master refuses --------------------------------------------------------------------------------------


@pytest.fixture
def fenced(db):
    """A master that an agent refused, with a model that runs and one operation that is open."""
    authority.ensure()
    seed.node("atlas", "Atlas")
    seed.model("smol", "atlas", runtime="llama.cpp")
    operation = requests.start("smol", OPERATOR)
    fencing.fence("Node atlas obeys another master.")
    return operation


def test_every_write_of_a_fenced_master_is_refused(fenced):
    model = SimpleNamespace(id="smol")
    data = registry.ModelInput(id="other", runtime="sim", delivery="process", sources=[{"folder": "smollm2-135m"}])
    writes = {
        "start": lambda: requests.start(model.id, OPERATOR),
        "stop": lambda: requests.stop(model.id, OPERATOR),
        "restart": lambda: requests.restart(model.id, OPERATOR),
        "cancel": lambda: requests.cancel(fenced.pk, OPERATOR),
        "create": lambda: registry.create(data, OPERATOR),
        "update": lambda: registry.update("smol", data.model_copy(update={"id": "smol"}), OPERATOR),
        "delete": lambda: registry.delete("smol", OPERATOR),
        "place": lambda: apply.place("smol", "atlas", (), OPERATOR),
    }
    for name, write in writes.items():
        with pytest.raises(MasterFenced) as refused:
            write()
        assert (refused.value.code, refused.value.http_status) == ("master_fenced", 409), name


def test_the_work_of_a_fenced_master_waits_and_goes_on_after_the_takeover(fenced):
    assert worker.run_step(fenced.pk) is None
    assert sweep.sweep_once() == 0
    Placement.objects.update(desired="running", observed="stopped")
    Operation.objects.all().update(finished_at=clock.now(), outcome="failed")
    assert resume.resume_once() == 0
    assert resume.autostart() == 0
    Operation.objects.all().update(finished_at=None, outcome="open")
    MasterIdentity.objects.update(fenced_reason="")
    assert worker.run_step(fenced.pk) is not None


# -- flag file and option ----------------------------------------------------------------------------------------------


@pytest.fixture
def configured(table, tmp_path, monkeypatch):
    """A function that sets what the environment would; the data folder is an empty one."""
    wishes._said.clear()

    def configure(**values):
        chosen = settings().model_copy(update={"data": tmp_path, **values})
        monkeypatch.setattr(wishes, "settings", lambda: chosen)
        return tmp_path

    configure()
    return configure


def newest():
    return Operation.objects.order_by("-id").first()


def test_a_flag_file_is_one_takeover_by_config_and_is_deleted(configured, table):
    flag = configured() / "takeover"
    assert wishes.look_once() == 0
    flag.touch()
    assert [wishes.look_once() for _ in range(3)] == [1, 0, 0]
    assert (newest().actor, newest().input["source"]) == ("config", "flag file")
    run(table, newest())
    assert flag.exists()
    assert wishes.look_once() == 0
    assert not flag.exists()
    assert wishes.look_once() == 0
    assert fencing.present().epoch == 2


def test_what_fails_is_tried_again_ever_more_slowly(configured, table, capsys):
    (configured() / "takeover").touch()
    waits = []
    for _ in range(9):
        while not wishes.look_once():
            table.now += timedelta(seconds=1)
        operation = newest()
        Operation.objects.filter(pk=operation.pk).update(outcome="failed", finished_at=clock.now())
        began = table.now
        while clock.now() < wishes._next_try(
            operation.input["key"], Operation.objects.get(pk=operation.pk).finished_at
        ):
            table.now += timedelta(seconds=1)
        waits.append(round((table.now - began).total_seconds()))
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert "failed 3 time(s) in a row; next attempt in 20 s" in capsys.readouterr().out


def test_an_option_with_an_id_happens_once(configured, table, capsys):
    configured(fencing_takeover=True, fencing_takeover_id="move-2030")
    assert not wishes.at_start()
    assert wishes.look_once() == 1
    run(table, newest())
    assert [wishes.look_once() for _ in range(3)] == [0, 0, 0]
    Operation.objects.all().delete()
    assert wishes.look_once() == 0, "remembered without its operation, too"
    assert capsys.readouterr().out.count("move-2030 already completed") == 1
    configured(fencing_takeover=True, fencing_takeover_id="another")
    assert wishes.look_once() == 1


def test_an_option_without_an_id_happens_at_every_start(configured, table):
    configured(fencing_takeover=True)
    assert wishes.look_once() == 0
    for epoch in (2, 3):
        assert wishes.at_start()
        run(table, newest())
        assert wishes.look_once() == 0
        assert fencing.present().epoch == epoch


def test_an_option_that_is_not_set_does_nothing(configured):
    assert not wishes.at_start()
    assert wishes.look_once() == 0


def test_a_wish_waits_while_a_continuation_is_open(configured, table, monkeypatch):
    (configured() / "takeover").touch()
    operation = takeover.request_by_configuration("option", "option:x")
    Operation.objects.filter(pk=operation.pk).update(kind="continuation")
    assert wishes.look_once() == 0
    Operation.objects.filter(pk=operation.pk).update(finished_at=clock.now(), outcome="succeeded")
    assert wishes.look_once() == 1


def test_a_copy_takes_over_by_a_wish_of_its_own_even_with_one_of_the_original_open(table):
    old = takeover.request(takeover.PHRASE, OPERATOR)
    table.step(old.pk)
    copy(table)
    fresh = takeover.request(takeover.PHRASE, OPERATOR)
    assert fresh.pk != old.pk
    assert Operation.objects.get(pk=old.pk).outcome == "cancelled"
    assert run(table, fresh).outcome == "succeeded"


def test_a_copy_does_not_carry_on_a_takeover_that_was_asked_of_the_original(table):
    operation = takeover.request(takeover.PHRASE, CONFIG)
    table.step(operation.pk)
    copy(table)
    done = run(table, Operation.objects.get(pk=operation.pk))
    assert (done.outcome, done.error["code"]) == ("failed", "invalid_state")
    assert fencing.is_fenced()
