"""Requests for a CA rotation: flag files, the API, the page; and refusals."""

import json
import os

import pytest

from audit.models import AuditLine
from jobs.loops import ca_upkeep as loop
from jobs.models import Operation
from jobs.requests import ca_rotation
from mirbad.kernel import clock, conf
from mirbad.kernel.errors import Conflict
from nodes.enrollment import tokens
from nodes.errors import MasterFenced
from nodes.models import Authority, CaRotation, JoinToken, MasterIdentity, NodeCondition
from nodes.pki import authority, certs, rotation, store
from nodes.states import RE_PAIR
from tests.nodes.parts import OPERATOR, approved, enrolled, fresh_issuer

pytestmark = pytest.mark.app


@pytest.fixture
def master(db):
    return authority.ensure()


@pytest.fixture
def flags(master, tmp_path, monkeypatch):
    """The folder of flag files of a master whose data is in `tmp_path`."""
    value = conf.settings().model_copy(update={"data": tmp_path})
    monkeypatch.setattr(loop, "settings", lambda: value)
    monkeypatch.setattr(loop, "_looked", [])
    monkeypatch.setattr(loop, "_undeletable", set())
    folder = tmp_path / "pki"
    folder.mkdir()
    return folder


def send(client, body):
    return client.generic("POST", "/api/pki/ca-rotation", json.dumps(body), content_type="application/json")


# Flag files


def test_a_flag_file_begins_a_rotation_and_is_deleted(flags):
    (flags / "rotate-ca").touch()
    loop.tick()
    assert not (flags / "rotate-ca").exists()
    assert CaRotation.objects.get().stage == "Started"
    line = AuditLine.objects.get(action="pki.ca-rotation")
    assert (line.actor, line.result, line.target) == ("config", "accepted", "start")


def test_flag_files_are_looked_for_at_the_start_and_then_at_the_interval(flags, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    loop.tick()
    (flags / "rotate-ca").touch()
    now[0] += 299
    loop.tick()
    assert (flags / "rotate-ca").exists()
    now[0] += 2
    loop.tick()
    assert not (flags / "rotate-ca").exists()


@pytest.mark.parametrize(
    ("flag", "words"),
    [("rotate-ca", "is open at Started"), ("close-ca-rotation", "MasterReissued")],
)
def test_a_refused_flag_is_deleted_and_the_log_says_why(flags, log_lines, flag, words):
    ca_rotation.start(OPERATOR)
    (flags / flag).touch()
    assert loop.look_at_flags() == 1
    assert not (flags / flag).exists()
    [said] = [line for line in log_lines if "refused" in line]
    assert said.startswith(f"CA rotation flag {flag} refused: ")
    assert words in said
    assert AuditLine.objects.filter(action="pki.ca-rotation", result="refused", actor="config").count() == 1


def test_closing_by_flag_without_a_rotation_is_refused(flags, log_lines):
    (flags / "close-ca-rotation").touch()
    loop.look_at_flags()
    assert "CA rotation flag close-ca-rotation refused: No CA rotation is open." in log_lines


@pytest.mark.skipif(os.geteuid() == 0, reason="root may delete in any folder")
def test_a_flag_that_cannot_be_deleted_asks_once_read_only_folder(flags):
    (flags / "rotate-ca").touch()
    flags.chmod(0o500)
    try:
        assert_asked_once(flags)
    finally:
        flags.chmod(0o700)


def test_a_flag_that_cannot_be_deleted_asks_once(flags, monkeypatch, log_lines):
    (flags / "rotate-ca").touch()

    def refuse(self, missing_ok=False):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    assert_asked_once(flags)
    assert sum("cannot be deleted" in line for line in log_lines) == 2  # once a process


def assert_asked_once(flags):
    loop.look_at_flags()
    rotated = CaRotation.objects.get()
    rotation.move(rotated, "RollingBack")
    rotation.move(rotated, "RolledBack")
    Operation.objects.update(finished_at=clock.now(), outcome="cancelled")
    loop._undeletable.clear()  # another process looks
    loop.look_at_flags()
    assert CaRotation.objects.count() == 1


def test_a_flag_that_is_a_folder_or_a_dangling_link_harms_nothing(flags):
    (flags / "rotate-ca").mkdir()
    (flags / "close-ca-rotation").symlink_to("/nowhere")
    assert loop.look_at_flags() == 2
    assert not (flags / "close-ca-rotation").is_symlink()


# Refusals


def test_only_one_rotation_is_open_at_a_time(master):
    ca_rotation.start(OPERATOR)
    with pytest.raises(Conflict, match="is open at Started"):
        ca_rotation.start(OPERATOR)
    assert CaRotation.objects.count() == 1
    assert Operation.objects.count() == 1


def test_a_rotation_is_refused_when_two_cas_are_trusted_outside_one(master):
    issuer = fresh_issuer()
    Authority.objects.create(slot="previous", cert_pem=certs.to_pem(issuer.cert), sha256=certs.fingerprint(issuer.cert))
    with pytest.raises(Conflict, match="more than one CA"):
        ca_rotation.start(OPERATOR)
    assert not Operation.objects.exists()


def test_nothing_is_changed_by_a_fenced_master(master):
    ca_rotation.start(OPERATOR)
    MasterIdentity.objects.update(fenced_reason="another one commands")
    for act in (ca_rotation.start, ca_rotation.roll_back, ca_rotation.close):
        with pytest.raises(MasterFenced):
            act(OPERATOR)
    with pytest.raises(MasterFenced):
        ca_rotation.replace_stolen(ca_rotation.PHRASE, OPERATOR)


def test_there_is_no_way_back_once_nodes_refuse_the_old_ca(master):
    ca_rotation.start(OPERATOR)
    found = CaRotation.objects.get()
    for target in ("AgentsTrusting", "MasterReissued", "AgentsRotating", "Closing"):
        rotation.move(found, target)
    with pytest.raises(Conflict, match="no way back"):
        ca_rotation.roll_back(OPERATOR)


def test_a_second_roll_back_is_the_same(master):
    ca_rotation.start(OPERATOR)
    first = ca_rotation.roll_back(OPERATOR)
    assert ca_rotation.roll_back(OPERATOR).pk == first.pk


def test_cancelling_the_operation_rolls_the_rotation_back(master, monkeypatch):
    from jobs import worker
    from jobs.requests import cancellation

    monkeypatch.setattr("jobs.kinds.ca_rotation.SETTLE_SECONDS", 0.0)
    operation = ca_rotation.start(OPERATOR)
    cancellation.request(operation.pk, OPERATOR)
    worker.run(operation.pk)
    worker.run(operation.pk)
    operation.refresh_from_db()
    assert (CaRotation.objects.get().stage, operation.outcome) == ("RolledBack", "cancelled")


# Tokens, hashes, secrets


def test_join_commands_carry_both_hashes_while_both_cas_are_trusted(master):
    [old] = authority.ca_hashes()
    ca_rotation.start(OPERATOR)
    found = CaRotation.objects.get()
    assert tokens.create("pc-9", actor=OPERATOR).ca_hash == f"{old},sha256:{found.new_sha256}"
    rotation.move(found, "AgentsTrusting")
    rotation.move(found, "MasterReissued")
    assert tokens.create("pc-8", actor=OPERATOR).ca_hash == f"sha256:{found.new_sha256},{old}"
    rotation.move(found, "AgentsRotating")
    rotation.move(found, "Closing")
    assert tokens.create("pc-7", actor=OPERATOR).ca_hash == f"sha256:{found.new_sha256}"


def test_a_node_that_joins_gets_the_trust_of_the_stage(master):
    old = MasterIdentity.objects.get().client_spki
    ca_rotation.start(OPERATOR)
    found = CaRotation.objects.get()
    answer = enrolled("pc-1").answer
    assert (answer.master_spki.current, answer.master_spki.next) == (old, found.new_client_spki)
    assert len(answer.ca_bundle) == 2
    rotation.move(found, "AgentsTrusting")
    rotation.move(found, "MasterReissued")
    answer = enrolled("pc-2").answer
    assert (answer.master_spki.current, answer.master_spki.next) == (found.new_client_spki, old)
    leaf = certs.from_pem(answer.chain[0])
    assert rotation.authority_of(leaf, list(Authority.objects.all())) == found.new_sha256
    rotation.move(found, "RollingBack")
    answer = enrolled("pc-3").answer
    assert (answer.master_spki.current, answer.master_spki.next, len(answer.ca_bundle)) == (old, None, 1)


def test_the_bundle_hash_is_the_one_that_agents_report(master):
    from agent.identity import Identity

    ca_rotation.start(OPERATOR)
    machine = approved("pc-1")
    identity = Identity(
        node_id="pc-1",
        node_uid=machine.answer.node_uid,
        fleet="f",
        master=machine.answer.master_spki,
        key_pem=machine.identity.key_pem,
        chain=machine.answer.chain,
        ca_bundle=machine.answer.ca_bundle,
    )
    assert rotation.bundle_hash(store.trust().bundle) == identity.trust_bundle_hash


def test_no_private_key_is_stored_in_clear_or_kept_after_the_end(master):
    ca_rotation.start(OPERATOR)
    found = CaRotation.objects.get()
    for name in ("new_client_key_sealed", "new_enroll_key_sealed", "old_client_key_sealed", "old_enroll_key_sealed"):
        assert b"PRIVATE" not in bytes(getattr(found, name))
    rotation.move(found, "RollingBack")
    rotation.move(found, "RolledBack")
    assert found.new_client_key_sealed is None
    assert Authority.objects.get(slot="retired").key_sealed is None
    with pytest.raises(Conflict):
        rotation.new_identity(found)


# The API and the page


def test_the_api_begins_shows_and_rolls_back(master, operator, viewer):
    assert viewer.client.get("/api/pki/ca-rotation").json()["rotation"] is None
    assert send(viewer.client, {"action": "start"}).status_code == 403
    begun = send(operator.client, {"action": "start"})
    assert (begun.status_code, begun.json()["kind"]) == (202, "ca-rotation")
    approved("pc-1")
    shown = viewer.client.get("/api/pki/ca-rotation").json()
    assert [one["slot"] for one in shown["authorities"]] == ["current", "next"]
    assert (shown["rotation"]["stage"], shown["rotation"]["canRollBack"], shown["rotation"]["canClose"]) == (
        "Started",
        True,
        False,
    )
    assert [(node["nodeId"], node["state"]) for node in shown["rotation"]["nodes"]] == [("pc-1", "waiting")]
    assert "PRIVATE" not in json.dumps(shown)
    again = send(operator.client, {"action": "start"})
    assert (again.status_code, again.json()["code"]) == (409, "invalid_state")
    assert send(operator.client, {"action": "close"}).json()["code"] == "invalid_state"
    assert send(operator.client, {"action": "burn"}).status_code == 400
    assert send(operator.client, {"action": "rollback"}).status_code == 202
    assert CaRotation.objects.get().stage == "RollingBack"
    refused = AuditLine.objects.filter(action="pki.ca-rotation", result="refused")
    assert refused.count() >= 2


def test_replacing_a_stolen_ca_is_for_owners_and_wants_the_phrase(master, operator, owner):
    approved("pc-1")
    before = store.trust()
    path = "/api/pki/ca-replacement"

    def ask(client, confirm):
        return client.generic("POST", path, json.dumps({"confirm": confirm}), content_type="application/json")

    assert ask(operator.client, ca_rotation.PHRASE).status_code == 403
    assert ask(owner.client, "yes").json()["code"] == "confirmation_required"
    assert store.trust() == before
    token = tokens.create("pc-2", actor=OPERATOR)
    done = ask(owner.client, ca_rotation.PHRASE)
    assert (done.status_code, done.json()) == (200, {"toRePair": ["pc-1"]})
    assert store.trust().hashes != before.hashes
    assert not JoinToken.objects.filter(pk=token.token.split(".")[0], expires_at__gt=clock.now()).exists()
    assert NodeCondition.objects.get(node_id="pc-1").code == RE_PAIR
    assert tokens.create("pc-1", actor=OPERATOR, purpose="rekey").ca_hash == store.trust().hashes[0]


def test_the_page_offers_what_can_be_done_and_shows_the_nodes(master, operator, viewer, owner):
    approved("pc-1")
    assert "Rotate the CA" in operator.client.get("/pki/ca").content.decode()
    assert "Rotate the CA" not in viewer.client.get("/pki/ca").content.decode()
    assert "Replace the CA" not in operator.client.get("/pki/ca").content.decode()
    assert "Replace the CA" in owner.client.get("/pki/ca").content.decode()
    hx = {"HX-Request": "true"}
    assert operator.client.post("/pki/ca/start", headers=hx).status_code == 204
    page = operator.client.get("/pki/ca").content.decode()
    assert "Roll back" in page
    assert "Close early" not in page
    assert "pc-1" in page
    assert "0 of 1 nodes" in operator.client.get("/pki/ca/card", headers=hx).content.decode()
    assert "waiting for this node" in operator.client.get("/pki/ca/-/of/pc-1", headers=hx).content.decode()
    refused = operator.client.post("/pki/ca/start", headers=hx)
    assert refused.status_code == 409
    assert b"is open at" in refused.content
    assert operator.client.post("/pki/ca/rollback", headers=hx).status_code == 204
    assert viewer.client.post("/pki/ca/close", headers=hx).status_code == 403
    assert owner.client.get("/pki/ca/replace").status_code == 200
