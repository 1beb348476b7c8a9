"""The fleet as witnesses of the audit log: the master's real code, and the real routes of three agents."""

import shutil
from unittest import mock

import pytest
from django.core.management import CommandError, call_command

from agent.wire.errors import AgentCode, AgentErrorBody
from audit import checkpoints, log, seal, verification
from audit.models import AuditLine, ChainState, Checkpoint
from mirbad.kernel import actor
from mirbad.kernel.errors import Conflict, InvalidRequest
from nodes import accepted_logs, fencing, witnesses
from nodes.errors import AgentRefused, ConfirmationRequired, MasterFenced
from nodes.link import client, health
from nodes.models import Node, NodeCondition, NodeWitness
from tests.audit.test_checkpoints import rewrite
from tests.trust import bench

pytestmark = [pytest.mark.app, pytest.mark.django_db]

OWNER = actor.admin("a session", "ada", "owner", "192.0.2.7")


@pytest.fixture
def table(tmp_path, monkeypatch):
    settings = seal.settings().model_copy(update={"data": tmp_path})
    for module in (seal, verification):
        monkeypatch.setattr(module, "settings", lambda: settings)
    with bench.playing() as make:
        made = make()
        made.first()
        for node_id in bench.NODES:
            health.connect(node_id)
        able = {**Node.objects.get(pk="a").capabilities, "features": ["audit.witness", "audit.breaks"]}
        Node.objects.update(capabilities=able)
        yield made


@pytest.fixture
def conditions(table):
    """Conditions by node, as they were written last."""
    written: dict[str, list[str]] = {}

    def replace(node_id, source, found):
        assert source == "audit"
        before, written[node_id] = written.get(node_id), [one.code for one in found]
        return before != written[node_id]

    # Ended before the table is, which has put another in its place.
    with mock.patch.object(witnesses.conditions, "replace", replace):
        yield written


def write(count):
    for number in range(count):
        log.record("job", actor.CONFIG, detail=f"line {number}")
    while seal.seal_once():
        pass


def test_every_serving_node_signs_each_new_head_once(table, conditions):
    assert witnesses.collect_once() == 0
    write(3)
    assert [witnesses.collect_once() for _ in range(2)] == [3, 0]
    write(4)
    table.here().cut = {"b"}
    assert witnesses.collect_once() == 2
    newest = checkpoints.latest()
    assert (newest.size, sorted(newest.witnesses)) == (7, ["a", "c"])
    table.here().cut = set()
    assert witnesses.collect_once() == 1
    assert sorted(checkpoints.latest().witnesses) == ["a", "b", "c"]
    found, silent = witnesses.views()
    assert ({view.held.size for view in found.values()}, silent) == ({7}, [])
    assert verification.verify().holds
    assert conditions == {"a": [], "b": [], "c": []}


def test_agents_that_cannot_are_not_asked_and_a_fenced_master_calls_nobody(table, conditions):
    write(2)
    Node.objects.filter(pk="a").update(capabilities={})
    Node.objects.filter(pk="b").update(reachability="offline")
    assert witnesses.collect_once() == 1
    assert witnesses.views()[1] == ["a", "b"]
    fencing.fence("Another master is obeyed.")
    write(2)
    assert witnesses.collect_once() == 0
    assert checkpoints.latest().size == 4


def forge():
    """Rewrite the log, and sign it with the log's own key."""
    rows = list(AuditLine.objects.order_by("seq"))
    rows[0].detail = "all is well"
    rewrite(rows)
    Checkpoint.objects.all().delete()


@pytest.mark.parametrize("attack", ["rewrite", "cut"])
def test_a_log_that_was_signed_anew_is_refused_by_each_node_and_found_by_the_command(table, conditions, attack, capsys):
    write(5)
    assert witnesses.collect_once() == 3
    if attack == "rewrite":
        forge()
    else:
        rewrite(list(AuditLine.objects.order_by("seq"))[:3])
        Checkpoint.objects.all().delete()
    assert witnesses.collect_once() == 0
    assert conditions == {node_id: ["audit_head_refused"] for node_id in "abc"}
    lines = AuditLine.objects.filter(action="audit", error_code="audit_head_refused")
    assert sorted(lines.values_list("node_id_text", flat=True)) == ["a", "b", "c"]
    witnesses.collect_once()
    assert lines.count() == 3, "recorded once"
    with pytest.raises(CommandError):
        call_command("audit_verify")
    told = capsys.readouterr().err
    assert told.count("does not continue what it saw before") == 3
    assert "checkpoints: node a: " in told


def test_one_honest_node_is_enough(table, conditions, capsys):
    write(5)
    assert witnesses.collect_once() == 3
    for node_id in "ab":
        table.machines[node_id].folder.joinpath("witness.json").unlink()
    forge()
    assert witnesses.collect_once() == 2
    assert conditions["c"] == ["audit_head_refused"]
    with pytest.raises(CommandError):
        call_command("audit_verify")
    assert "node c: refused a log of 5 lines" in capsys.readouterr().err


def restore(size):
    """Go back to the log as it was at `size` lines, as the restore of a data folder does, and write on."""
    shutil.rmtree(seal.settings().data / "audit")
    rows = list(AuditLine.objects.filter(seq__lte=size).order_by("seq"))
    Checkpoint.objects.filter(size__gt=size).delete()
    rewrite(rows)
    NodeWitness.objects.all().delete()
    log.record("restore", actor.CONFIG, detail="a backup was restored")
    while seal.seal_once():
        pass


def decide(**also):
    """Decide as an owner, and let the worker do what the signal asks for."""
    nodes = accepted_logs.accept("restored after a disk failure", accepted_logs.PHRASE, OWNER, **also)
    while seal.seal_once():
        pass
    return nodes


def test_after_a_restore_an_owner_decides_and_each_node_takes_the_log_and_keeps_both_heads(table, conditions, capsys):
    write(5)
    assert witnesses.collect_once() == 3
    old = checkpoints.head_of(checkpoints.latest())
    restore(3)
    assert witnesses.collect_once() == 0
    assert conditions == {node_id: ["audit_head_refused"] for node_id in "abc"}
    table.here().cut = {"c"}
    assert decide() == ["a", "b", "c"]
    assert witnesses.collect_once() == 2
    table.here().cut = set()
    write(1)
    assert witnesses.collect_once() == 3, "a node that was away takes it when it is back"
    assert conditions == {"a": [], "b": [], "c": []}
    for view in witnesses.views()[0].values():
        left = view.breaks[0]
        assert (len(view.breaks), left.was, view.refused) == (1, old, None)
        assert '"person":"ada"' in left.line
        assert "restored after a disk failure" in left.line
    lines = AuditLine.objects.filter(action="audit.accept-log").order_by("id")
    assert [line.result for line in lines] == ["accepted"] * 3 + ["succeeded"] * 3
    # Nodes are asked at the same moment: the lines of their answers come in any order.
    assert sorted((line.result, line.node_id_text, line.person, line.role, line.address) for line in lines) == [
        (result, node_id, "ada", "owner", "192.0.2.7") for result in ("accepted", "succeeded") for node_id in "abc"
    ]
    assert {line.target for line in lines} == {f"5 lines, root {old.root}"}
    call_command("audit_verify")
    shown = capsys.readouterr().out
    assert shown.count(f"in place of 5 lines, root {old.root}, decided by ") == 3
    write(2)
    assert witnesses.collect_once() == 3
    assert not accepted_logs.conflicts()


def test_a_log_that_only_grew_worse_is_recorded_as_one_conflict(table, conditions):
    write(5)
    assert witnesses.collect_once() == 3
    restore(3)
    for _ in range(3):
        assert witnesses.collect_once() == 0
        while seal.seal_once():
            pass
    lines = AuditLine.objects.filter(action="audit", error_code="audit_head_refused")
    assert sorted(lines.values_list("node_id_text", flat=True)) == ["a", "b", "c"]


def test_a_decision_counts_for_the_nodes_and_the_head_that_it_names(table, conditions):
    write(5)
    assert witnesses.collect_once() == 3
    restore(3)
    witnesses.collect_once()
    assert decide(node_ids=["b"]) == ["b"]
    assert witnesses.collect_once() == 1
    assert [row.node_id for row in accepted_logs.conflicts()] == ["a", "c"]
    restore(4)
    assert witnesses.collect_once() == 0, "the decision was about another head"
    assert [row.node_id for row in accepted_logs.conflicts()] == ["a", "b", "c"]
    assert decide() == ["a", "b", "c"]
    assert witnesses.collect_once() == 3
    assert [len(view.breaks) for _, view in sorted(witnesses.views()[0].items())] == [1, 2, 1]


def test_a_refusal_that_is_over_is_laid_aside_by_a_decision_too(table, conditions):
    write(5)
    assert witnesses.collect_once() == 3
    truth = list(AuditLine.objects.order_by("seq"))
    kept = list(Checkpoint.objects.all())
    forge()
    assert witnesses.collect_once() == 0
    AuditLine.objects.filter(seq=None).delete()
    Checkpoint.objects.all().delete()
    NodeWitness.objects.all().delete()
    rewrite(truth)
    Checkpoint.objects.bulk_create(kept)
    write(1)
    assert witnesses.collect_once() == 3
    assert conditions == {node_id: ["audit_head_refused"] for node_id in "abc"}, "what was tried stays shown"
    assert decide() == ["a", "b", "c"]
    assert witnesses.collect_once() == 3
    assert conditions == {node_id: [] for node_id in "abc"}
    assert {view.refused for view in witnesses.views()[0].values()} == {None}


def test_a_decision_needs_the_phrase_a_reason_and_nodes_that_can(table, conditions):
    write(5)
    assert witnesses.collect_once() == 3
    good = ("a reason", accepted_logs.PHRASE, OWNER)
    with pytest.raises(Conflict, match="No node is in conflict"):
        accepted_logs.accept(*good)
    restore(3)
    witnesses.collect_once()
    for arguments, refusal in (
        (("a reason", "yes", OWNER), ConfirmationRequired),
        (("", accepted_logs.PHRASE, OWNER), InvalidRequest),
        ((" \n ", accepted_logs.PHRASE, OWNER), InvalidRequest),
        (("x" * 301, accepted_logs.PHRASE, OWNER), InvalidRequest),
        ((*good, ["a", "z"]), Conflict),
    ):
        with pytest.raises(refusal):
            accepted_logs.accept(*arguments)
    Node.objects.filter(pk__in="ab").update(capabilities={"features": ["audit.witness"]})
    with pytest.raises(Conflict, match="too old to take another log: a"):
        accepted_logs.accept(*good, ["a", "c"])
    assert accepted_logs.accept(*good) == ["c"]
    fencing.fence("Another master is obeyed.")
    with pytest.raises(MasterFenced):
        accepted_logs.accept(*good)
    results = AuditLine.objects.filter(action="audit.accept-log").values_list("result", flat=True)
    assert sorted(results) == ["accepted", *["refused"] * 7]


@pytest.mark.parametrize("text", ["ä" * 300, "😀" * 300, '"' * 300, "\\" * 300])
def test_a_decision_fits_its_message_whatever_the_reason_says(table, conditions, text):
    write(5)
    assert witnesses.collect_once() == 3
    restore(3)
    witnesses.collect_once()
    who = actor.admin("s", "😀" * 150, "owner", "192.0.2.7")
    assert len(accepted_logs.accept(text, accepted_logs.PHRASE, who)) == 3
    while seal.seal_once():
        pass
    assert witnesses.collect_once() == 3


def test_lines_that_retention_took_are_not_called_a_cut(table, conditions, monkeypatch):
    write(5)
    assert witnesses.collect_once() == 3
    monkeypatch.setattr(checkpoints, "consistency", lambda *_: None)
    write(1)
    assert witnesses.collect_once() == 0
    assert conditions == {node_id: ["audit_head_too_old"] for node_id in "abc"}
    assert all(view.refused is None for view in witnesses.views()[0].values())
    assert decide() == ["a", "b", "c"]
    assert witnesses.collect_once() == 3
    assert conditions == {node_id: [] for node_id in "abc"}


def test_a_signature_that_is_none_is_not_counted(table, conditions, monkeypatch):
    write(2)
    real = client._conclude

    def forged(prepared, received, kind):
        answer = real(prepared, received, kind)
        return answer.model_copy(update={"signature": "0" * 128}) if prepared.method == "PUT" else answer

    monkeypatch.setattr(client, "_conclude", forged)
    assert witnesses.collect_once() == 0
    assert checkpoints.latest().witnesses == {}
    assert conditions == {node_id: ["audit_witness_invalid"] for node_id in "abc"}


def test_a_node_that_fails_otherwise_is_tried_again(table, conditions, monkeypatch):
    write(2)
    body = AgentErrorBody(code=AgentCode.INTERNAL, detail="disk full").to_wire()
    real = client._conclude

    def failing(prepared, received, kind):
        if prepared.method == "PUT":
            raise AgentRefused(body["code"], 500, body["detail"])
        return real(prepared, received, kind)

    with monkeypatch.context() as patched:
        patched.setattr(client, "_conclude", failing)
        assert witnesses.collect_once() == 0
    assert conditions == {}
    assert witnesses.collect_once() == 3
    assert not NodeCondition.objects.exists()
    assert ChainState.objects.get().head_seq == 2
