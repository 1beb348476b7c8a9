"""Takeovers: what each stage does, what it survives, and what is refused."""

from datetime import timedelta

import pytest

from audit.models import AuditLine
from jobs import worker
from jobs.kinds import takeover as kind
from jobs.models import Operation
from jobs.requests import cancellation, takeover
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.errors import Unavailable
from nodes import fencing
from nodes.errors import ConfirmationRequired
from nodes.link import health
from nodes.models import Node
from tests.nodes.parts import OPERATOR
from tests.trust.parts import copy, run

pytestmark = [pytest.mark.app, pytest.mark.django_db]


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
    for node_id, is_fenced in (("a", False), ("a", False), ("b", True)):
        with pytest.raises(Exception, match="obeys another master"):
            health.connect(node_id)
        assert fencing.is_fenced() is is_fenced
    assert fencing.fenced_reason() == "Nodes a, b obey another master. Stop the other master, then take over."
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
    cancellation.request(operation.pk, OPERATOR)
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
