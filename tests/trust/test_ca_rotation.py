"""A whole CA rotation with real agents over real mutual TLS."""

import threading

import pytest
from django.db import connections

from agent.wire.status import NodeStatus
from jobs.models import Operation
from jobs.requests import ca_rotation
from mirbad.kernel import clock
from mirbad.kernel.errors import Conflict, MirbadError
from nodes import queries, registry
from nodes.errors import ConfirmationRequired, NodeOffline
from nodes.link import client
from nodes.models import Authority, CaRotation, CaRotationNode, MasterIdentity, NodeCondition
from nodes.pki import authority, members, store
from nodes.states import RE_PAIR
from tests.trust.ca_fleet import OPERATOR, Crashes, Fleet, insist, moving_clock, stage, survive

pytestmark = pytest.mark.faults


@pytest.fixture
def fleet(transactional_db, tmp_path, monkeypatch):
    authority.ensure()
    now, forward = moving_clock()
    monkeypatch.setattr(clock, "now", now)
    made = Fleet(tmp_path, forward)
    yield made
    made.close()


def slots():
    return sorted(Authority.objects.values_list("slot", flat=True))


def test_a_whole_rotation_changes_every_key_and_leaves_nobody_out(fleet):
    for node_id in ("pc-1", "pc-2"):
        fleet.add(node_id)
    before = {node_id: agent.identity for node_id, agent in fleet.nodes.items()}
    old = store.trust()
    row = MasterIdentity.objects.get()
    operation = ca_rotation.start(OPERATOR)
    assert slots() == ["current", "next"]
    assert len(authority.ca_hashes()) == 2
    fleet.drive(lambda: stage() == "Closed")
    operation.refresh_from_db()
    assert operation.outcome == "succeeded", operation.error
    assert fleet.locked_out() == []
    assert slots() == ["current", "retired"]
    assert Authority.objects.get(slot="retired").key_sealed is None
    assert store.trust().bundle != old.bundle
    now = MasterIdentity.objects.get()
    assert now.client_spki != row.client_spki
    assert now.next_spki == ""
    assert now.client_cert_pem.count("BEGIN") == 1
    for node_id, agent in fleet.nodes.items():
        identity = agent.identity
        assert identity.ca_bundle == store.trust().bundle
        assert identity.master_pins == {now.client_spki}
        assert identity.spki != before[node_id].spki
        assert identity.fleet == before[node_id].fleet
    over = CaRotation.objects.get()
    assert over.new_client_key_sealed is None
    assert over.old_client_key_sealed is None
    assert not NodeCondition.objects.filter(source="ca-rotation").exists()
    assert set(CaRotationNode.objects.values_list("done_stage", flat=True)) == {"Closing"}


def test_a_crash_at_every_boundary_of_every_stage_loses_nothing(fleet, monkeypatch):
    fleet.add("pc-1")
    fleet.add("pc-2")
    ca_rotation.start(OPERATOR)
    crashes = Crashes(monkeypatch)
    survive(fleet, lambda: stage() == "Closed", crashes)
    for at in ("Started", "AgentsTrusting", "MasterReissued", "AgentsRotating", "Closing"):
        assert any(boundary.startswith(at) for boundary in crashes.met), at
    assert any(boundary.startswith("Closed after") for boundary in crashes.met)
    assert len(crashes.met) > 20
    assert fleet.locked_out() == []
    assert slots() == ["current", "retired"]


@pytest.mark.parametrize("at", ["Started", "AgentsTrusting", "MasterReissued", "AgentsRotating"])
def test_a_rotation_is_rolled_back_from_each_stage_with_a_crash_at_every_boundary(fleet, monkeypatch, at):
    fleet.add("pc-1")
    fleet.add("pc-2")
    before = store.trust()
    spki = MasterIdentity.objects.get().client_spki
    ca_rotation.start(OPERATOR)
    if at == "AgentsRotating":
        rotated = CaRotation.objects.get()
        fleet.drive(lambda: any(member.issuer == rotated.new_sha256 for member in members.read(rotated)))
    elif at != "Started":
        fleet.drive(lambda: stage() == at)
    assert stage() == at
    crashes = Crashes(monkeypatch)
    insist(lambda: ca_rotation.roll_back(OPERATOR))
    survive(fleet, lambda: stage() == "RolledBack", crashes)
    assert any(boundary.startswith("RollingBack") for boundary in crashes.met)
    survive(fleet, lambda: not ledger_open(), crashes)
    assert fleet.locked_out() == []
    assert store.trust() == before
    assert MasterIdentity.objects.get().client_spki == spki
    assert not NodeCondition.objects.filter(source="ca-rotation").exists()
    for agent in fleet.nodes.values():
        assert agent.identity.ca_bundle == before.bundle
        assert agent.identity.master_pins == {spki}
    # And another one may begin.
    ca_rotation.start(OPERATOR)


def ledger_open():
    return Operation.objects.filter(kind="ca-rotation", finished_at=None).exists()


def test_an_offline_node_is_waited_for_named_and_taken_along_when_it_comes_back(fleet):
    fleet.add("pc-1")
    fleet.add("pc-2")
    fleet.down("pc-2")
    operation = ca_rotation.start(OPERATOR)
    for _ in range(4):
        fleet.drive(lambda: "pc-2" in Operation.objects.get(pk=operation.pk).progress.get("text", ""))
        fleet.forward(6)
    assert stage() == "AgentsTrusting"
    condition = NodeCondition.objects.get(node_id="pc-2", source="ca-rotation")
    assert (condition.code, operation.pk in condition.detail, "AgentsTrusting" in condition.detail) == (
        "ca_rotation_pending",
        True,
        True,
    )
    fleet.up("pc-2")
    fleet.drive(lambda: stage() == "AgentsRotating")
    fleet.down("pc-1")
    with pytest.raises(AssertionError, match="not there"):
        fleet.drive(lambda: stage() == "Closing", rounds=8)
    fleet.up("pc-1")
    fleet.drive(lambda: stage() == "Closed")
    assert fleet.locked_out() == []


def test_nodes_that_join_or_are_re_paired_in_the_middle_get_what_the_stage_issues(fleet):
    fleet.add("pc-1")
    ca_rotation.start(OPERATOR)
    fleet.add("started-1")
    fleet.drive(lambda: stage() == "AgentsTrusting")
    fleet.add("trusting-1")
    fleet.drive(lambda: stage() == "MasterReissued")
    fleet.add("reissued-1")
    fleet.drive(lambda: stage() == "AgentsRotating")
    fleet.add("rotating-1")
    again = fleet.nodes["pc-1"]
    again.end()
    again.enroll(rekey=True)
    again.begin()
    fleet.drive(lambda: stage() == "Closing")
    fleet.add("closing-1")
    fleet.drive(lambda: stage() == "Closed")
    fleet.add("after-1")
    fleet.connect()
    assert fleet.locked_out() == []
    assert len(fleet.nodes) == 7
    assert all(agent.identity.ca_bundle == store.trust().bundle for agent in fleet.nodes.values())


def test_a_node_that_waits_for_approval_is_never_passed_over_silently(fleet):
    fleet.add("pc-1")
    fleet.add("waits-1", approve=False)
    operation = ca_rotation.start(OPERATOR)
    fleet.drive(lambda: "approve or reject" in Operation.objects.get(pk=operation.pk).progress.get("text", ""))
    with pytest.raises(AssertionError, match="not there"):
        fleet.drive(lambda: stage() == "MasterReissued", rounds=5)
    registry.approve("waits-1", fleet.nodes["waits-1"].identity.spki, OPERATOR)
    fleet.drive(lambda: stage() == "Closed")
    assert fleet.locked_out() == []


def test_closing_early_names_who_is_left_behind_and_a_rekey_takes_them_back(fleet):
    fleet.add("pc-1")
    gone = fleet.add("pc-2")
    ca_rotation.start(OPERATOR)
    with pytest.raises(Conflict, match="MasterReissued"):
        ca_rotation.close(OPERATOR)
    fleet.drive(lambda: stage() == "MasterReissued")
    fleet.down("pc-2")
    with pytest.raises(AssertionError, match="not there"):
        fleet.drive(lambda: stage() == "Closing", rounds=6)
    operation = ca_rotation.close(OPERATOR)
    fleet.drive(lambda: stage() == "ClosedEarly")
    fleet.drive(lambda: not ledger_open())
    operation.refresh_from_db()
    assert operation.result["stranded"] == ["pc-2"]
    assert "pc-2" in Operation.objects.get(pk=operation.pk).events.last().text
    condition = NodeCondition.objects.get(source="ca-rotation")
    assert (condition.node_id, condition.code) == ("pc-2", RE_PAIR)
    assert any("Re-pair" in reason for reason in queries.shown_state(gone.node, [condition]).reasons)
    gone.enroll(rekey=True)
    fleet.up("pc-2")
    fleet.drive(lambda: not NodeCondition.objects.filter(source="ca-rotation").exists())
    assert fleet.locked_out() == []


def test_closing_early_leaves_no_node_behind_that_answers(fleet):
    fleet.add("pc-1")
    fleet.add("pc-2")
    ca_rotation.start(OPERATOR)
    fleet.drive(lambda: stage() == "MasterReissued")
    ca_rotation.close(OPERATOR)
    fleet.drive(lambda: stage() in ("Closed", "ClosedEarly"))
    assert stage() == "Closed"
    assert fleet.locked_out() == []


@pytest.mark.parametrize(("failures", "end"), [(1, "Closed"), (1000, "ClosedEarly")])
def test_closing_early_tries_a_node_that_is_online_more_than_once(fleet, monkeypatch, failures, end):
    fleet.add("pc-1")
    fleet.add("pc-2")
    ca_rotation.start(OPERATOR)
    fleet.drive(lambda: stage() == "MasterReissued")
    ca_rotation.close(OPERATOR)
    fleet.drive(lambda: stage() == "Closing")
    real, failed = client.acall_once, []

    async def interrupted(node_id, *arguments, **also):
        if node_id == "pc-2" and len(failed) < failures:
            failed.append(node_id)
            raise NodeOffline("Connection reset by peer.")
        return await real(node_id, *arguments, **also)

    monkeypatch.setattr(client, "acall_once", interrupted)
    fleet.drive(lambda: stage() in ("Closed", "ClosedEarly"))
    assert stage() == end
    assert len(failed) >= min(failures, 2)
    assert fleet.locked_out() == []


def test_a_node_that_missed_the_closing_is_told_when_it_comes_back(fleet):
    fleet.add("pc-1")
    fleet.add("pc-2")
    ca_rotation.start(OPERATOR)
    fleet.drive(lambda: stage() == "Closing")
    fleet.down("pc-2")
    ca_rotation.close(OPERATOR)
    fleet.drive(lambda: stage() == "ClosedEarly")
    assert NodeCondition.objects.get(source="ca-rotation").code == "ca_trust_leftover"
    assert len(fleet.nodes["pc-2"].identity.ca_bundle) == 2
    fleet.up("pc-2")
    fleet.drive(lambda: not NodeCondition.objects.filter(source="ca-rotation").exists())
    assert fleet.nodes["pc-2"].identity.ca_bundle == store.trust().bundle


def test_a_state_folder_restored_from_before_the_rotation_is_told_again(fleet, tmp_path):
    agent = fleet.add("pc-1")
    fleet.add("pc-2")
    agent.keep_state(tmp_path / "backup")
    ca_rotation.start(OPERATOR)
    fleet.down("pc-2")
    fleet.drive(lambda: len(agent.identity.ca_bundle) == 2)
    fleet.down("pc-1")
    agent.restore_state(tmp_path / "backup")
    assert len(agent.identity.ca_bundle) == 1
    fleet.up("pc-1")
    fleet.up("pc-2")
    fleet.drive(lambda: stage() == "AgentsRotating")
    assert len(agent.identity.ca_bundle) == 1
    fleet.drive(lambda: stage() == "Closed")
    assert fleet.locked_out() == []


def test_calls_of_others_are_answered_all_the_while(fleet):
    for node_id in ("pc-1", "pc-2", "pc-3"):
        fleet.add(node_id)
    stop, asked, failed = threading.Event(), [0], []

    def ask():
        while not stop.is_set():
            for node_id in ("pc-1", "pc-2", "pc-3"):
                try:
                    client.call(node_id, "GET", "status", answer=NodeStatus)
                    asked[0] += 1
                except MirbadError as error:
                    failed.append((stage(), error.detail))
        connections.close_all()

    traffic = threading.Thread(target=ask)
    traffic.start()
    try:
        ca_rotation.start(OPERATOR)
        fleet.drive(lambda: stage() == "Closed")
        ca_rotation.start(OPERATOR)
        fleet.drive(lambda: stage() == "AgentsRotating")
        ca_rotation.roll_back(OPERATOR)
        fleet.drive(lambda: stage() == "RolledBack")
    finally:
        stop.set()
        traffic.join()
    assert asked[0] > 100
    assert failed == []


def test_a_rotation_whose_operation_was_lost_is_taken_up_again(fleet):
    fleet.add("pc-1")
    operation = ca_rotation.start(OPERATOR)
    fleet.drive(lambda: stage() == "AgentsTrusting")
    Operation.objects.filter(pk=operation.pk).update(finished_at=clock.now(), outcome="failed")
    fleet.drive(lambda: stage() == "Closed")
    assert fleet.locked_out() == []
    assert CaRotation.objects.get().pk == operation.pk


def test_a_stolen_key_is_answered_by_another_ca_and_a_re_pairing_of_every_node(fleet):
    agent = fleet.add("pc-1")
    ca_rotation.start(OPERATOR)
    fleet.drive(lambda: stage() == "AgentsTrusting")
    with pytest.raises(ConfirmationRequired):
        ca_rotation.replace_stolen("yes", OPERATOR)
    assert ca_rotation.replace_stolen(ca_rotation.PHRASE, OPERATOR) == ["pc-1"]
    assert stage() == "Replaced"
    assert len(store.trust().bundle) == len(store.accepted()) == 1
    assert "BEGIN" not in store.client_identity(MasterIdentity.objects.get()).chain[0].split("END CERT")[1]
    fleet.drive(lambda: not ledger_open(), reconnect=False)
    assert fleet.locked_out() == ["pc-1"]
    assert NodeCondition.objects.get(node_id="pc-1", source="ca-rotation").code == RE_PAIR
    agent.end()
    agent.enroll(rekey=True)
    agent.begin()
    fleet.drive(lambda: not NodeCondition.objects.filter(source="ca-rotation").exists())
    assert fleet.locked_out() == []
