"""The join: what a token buys, to whom it is refused, and what stands afterwards."""

from datetime import timedelta

import pytest
import time_machine
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from django.db import IntegrityError
from structlog.testing import capture_logs

from agent.common import keys
from agent.wire.enroll import EnrollResponse
from audit.models import AuditLine
from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.errors import InvalidRequest
from nodes import addresses, fencing, registry
from nodes.enrollment import join, tokens
from nodes.errors import EnrollmentRefused, MasterFenced
from nodes.models import JoinToken, Node, NodePin, RevokedKey, TokenAttempt
from nodes.pki import certs
from tests.nodes.parts import (
    OPERATOR,
    PEER,
    Machine,
    approved,
    ca_bundle,
    enrolled,
    master_spki,
    pin_of,
    request_for,
)

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("master")]


def token_row(token: str) -> JoinToken:
    return JoinToken.objects.get(pk=token.split(".", maxsplit=1)[0])


def refused(token, node_id="pc-1", key=None, *, peer=PEER, rekey=False, **also):
    with pytest.raises(EnrollmentRefused) as caught:
        join.enroll(request_for(token, node_id, key or keys.new_key(), **also), peer, rekey=rekey)
    return caught.value


def rekeyed(machine: Machine, key=None, **also):
    made = tokens.create(machine.node_id, actor=OPERATOR, purpose="rekey")
    key = key or keys.new_key()
    uid = also.pop("node_uid", str(machine.node.uid))
    request = request_for(made.token, machine.node_id, key, node_uid=uid, **also)
    return key, request, made.token


def test_a_machine_that_joins_waits_for_approval_with_its_pin_in_the_pending_slot():
    machine = enrolled("pc-1", address="192.0.2.44", port=9555)
    node = machine.node
    assert (node.lifecycle, node.address, node.port) == ("pending", "192.0.2.44", 9555)
    assert node.request_address == PEER
    assert node.machine["hostname"] == "pc-1-host"
    assert not node.is_bootstrap
    assert pin_of("pc-1", NodePin.PENDING) == machine.spki
    assert pin_of("pc-1") is None


def test_without_an_address_the_one_it_came_from_is_taken():
    assert enrolled("pc-1").node.address == PEER


def test_the_answer_holds_certificate_roots_and_the_master_s_key():
    machine = enrolled("pc-1")
    cert = certs.from_pem(machine.answer.chain[0])
    uid = str(machine.node.uid)
    assert machine.answer.node_uid == uid
    assert keys.spki_of(cert.public_key()) == machine.spki
    assert machine.answer.ca_bundle == ca_bundle()
    assert machine.answer.master_spki.current == master_spki()
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [f"{uid}.node.mirbad.internal"]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"mirbad://node/{uid}"]


def test_names_in_the_signing_request_mean_nothing():
    made = tokens.create("pc-1", actor=OPERATOR)
    key = keys.new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pc-2")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("pc-2.evil")]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    text = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    request = request_for(made.token, "pc-1", key).model_copy(update={"csr_pem": text})
    cert = certs.from_pem(join.enroll(request, PEER).chain[0])
    assert "evil" not in str(cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    assert not cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert "pc-2" not in cert.subject.rfc4514_string()


def test_a_lost_answer_is_given_again_to_the_same_key():
    machine = enrolled("pc-1")
    again = join.enroll(request_for(machine.token, "pc-1", machine.key), "198.51.100.9")
    assert again == machine.answer
    assert Node.objects.count() == NodePin.objects.count() == 1


def test_it_is_given_again_after_the_approval_too():
    machine = approved("pc-1")
    assert join.enroll(request_for(machine.token, "pc-1", machine.key), PEER) == machine.answer


def test_a_used_token_is_refused_to_another_key_and_raises_an_alarm():
    machine = enrolled("pc-1")
    with capture_logs() as logged:
        refused(machine.token)
    assert pin_of("pc-1", NodePin.PENDING) == machine.spki
    line = AuditLine.objects.get(action="node.enroll", result="refused")
    assert "another key" in line.detail
    assert line.node_id_text == "pc-1"
    assert [(entry["log_level"], entry["alarm"]) for entry in logged] == [("error", True)]


def test_a_used_token_gives_nothing_after_its_time_even_to_the_same_key():
    machine = enrolled("pc-1")
    with time_machine.travel(clock.now() + timedelta(hours=2)):
        refused(machine.token, key=machine.key)


def test_an_expired_token_is_refused_and_stays_unused():
    made = tokens.create("pc-1", actor=OPERATOR)
    with time_machine.travel(clock.now() + timedelta(hours=1, seconds=1)):
        refused(made.token)
    assert token_row(made.token).used_at is None


def test_a_withdrawn_token_is_refused():
    made = tokens.create("pc-1", actor=OPERATOR)
    tokens.withdraw("pc-1", OPERATOR)
    refused(made.token)


def test_every_refusal_is_one_and_the_same_sentence():
    made = tokens.create("pc-1", actor=OPERATOR)
    other = tokens.create("pc-2", actor=OPERATOR)
    token_id, secret = made.token.split(".")
    approved_machine = approved("pc-3")
    texts = {
        refused(f"{token_id}.{'A' * 43}").detail,
        refused(f"{'0' * 16}.{secret}").detail,
        refused("not a token at all").detail,
        refused("").detail,
        refused(other.token).detail,
        refused(made.token, "pc-9").detail,
        refused(made.token, rekey=True, node_uid=str(approved_machine.node.uid)).detail,
    }
    assert len(texts) == 1
    assert not Node.objects.filter(pk__in=("pc-1", "pc-2", "pc-9")).exists()
    assert token_row(made.token).used_at is None


def test_an_unknown_id_takes_the_same_comparison_and_leaves_no_row():
    made = tokens.create("pc-1", actor=OPERATOR)
    with capture_logs() as logged:
        refused(f"{'0' * 16}.{made.token.split('.')[1]}")
    assert [(entry["why"], entry["alarm"]) for entry in logged] == [("the token is not valid", False)]
    assert not TokenAttempt.objects.exists()
    assert not AuditLine.objects.filter(action="node.enroll").exists()


def test_ten_wrong_tries_lock_that_peer_out_and_nobody_else():
    made = tokens.create("pc-1", actor=OPERATOR)
    wrong = f"{made.token.split('.')[0]}.{'A' * 43}"
    for _ in range(10):
        refused(wrong, peer="198.51.100.1")
    refused(made.token, peer="198.51.100.1")
    assert token_row(made.token).used_at is None
    key = keys.new_key()
    assert join.enroll(request_for(made.token, "pc-1", key), "198.51.100.2").chain


def test_one_wrong_try_less_locks_nobody():
    made = tokens.create("pc-1", actor=OPERATOR)
    for _ in range(9):
        refused(f"{made.token.split('.')[0]}.{'A' * 43}")
    assert join.enroll(request_for(made.token, "pc-1", keys.new_key()), PEER).chain


def test_a_bad_signing_request_is_a_bad_request_and_burns_no_token():
    made = tokens.create("pc-1", actor=OPERATOR)
    request = request_for(made.token, "pc-1", keys.new_key()).model_copy(update={"csr_pem": "nonsense"})
    with pytest.raises(InvalidRequest, match="signing request"):
        join.enroll(request, PEER)
    assert token_row(made.token).used_at is None


def test_an_address_that_may_not_be_dialled_is_said_so_and_burns_no_token():
    made = tokens.create("pc-1", actor=OPERATOR)
    for address in ("127.0.0.1", "::1", "169.254.1.1", "224.0.0.1", "0.0.0.0"):
        with pytest.raises(InvalidRequest, match="address"):
            join.enroll(request_for(made.token, "pc-1", keys.new_key(), address=address), PEER)
    assert token_row(made.token).used_at is None
    assert join.enroll(request_for(made.token, "pc-1", keys.new_key(), address="192.0.2.5"), PEER).chain


def test_an_address_is_judged_only_for_those_who_hold_a_token(monkeypatch):
    asked = []
    monkeypatch.setattr(addresses.socket, "getaddrinfo", lambda *args, **kwargs: asked.append(args) or [])
    refused(f"{'0' * 16}.{'A' * 43}", address="name.example")
    assert asked == []


def test_only_the_master_s_own_machine_may_have_a_loopback_address():
    made = tokens.create("local", actor=CONFIG, purpose="bootstrap")
    key = keys.new_key()
    join.enroll(request_for(made.token, "local", key, address="127.0.0.1"), "127.0.0.1")
    node = Node.objects.get(pk="local")
    assert node.is_bootstrap
    registry.approve("local", keys.spki_of(key.public_key()), CONFIG)
    _, request, _ = rekeyed(Machine("local", key, None, ""), address="127.0.0.1")
    assert join.enroll(request, "127.0.0.1", rekey=True).chain


def test_a_name_taken_by_an_approved_node_is_never_replaced():
    made = tokens.create("pc-1", actor=OPERATOR)
    first = approved_with(tokens.create("pc-1", actor=OPERATOR).token)
    JoinToken.objects.filter(pk=made.token.split(".")[0]).update(expires_at=clock.now() + timedelta(minutes=30))
    refused(made.token)
    assert pin_of("pc-1") == first
    assert token_row(made.token).used_at is None


def approved_with(token: str, node_id: str = "pc-1") -> str:
    key = keys.new_key()
    join.enroll(request_for(token, node_id, key), PEER)
    spki = keys.spki_of(key.public_key())
    registry.approve(node_id, spki, OPERATOR)
    return spki


def test_a_pending_node_may_enroll_again_with_another_token_and_key():
    second = tokens.create("pc-1", actor=OPERATOR)
    machine = enrolled("pc-1")
    key = keys.new_key()
    join.enroll(request_for(second.token, "pc-1", key), PEER)
    assert pin_of("pc-1", NodePin.PENDING) == keys.spki_of(key.public_key())
    refused(machine.token, key=machine.key)


def test_a_revoked_node_never_comes_back_by_id_or_by_key():
    machine = approved("pc-1")
    made = tokens.create("pc-2", actor=OPERATOR)
    spare = tokens.create("pc-1", actor=OPERATOR, purpose="rekey")
    registry.revoke("pc-1", OPERATOR)
    assert RevokedKey.objects.filter(pk=machine.spki).exists()
    JoinToken.objects.filter(pk=spare.token.split(".")[0]).update(expires_at=clock.now() + timedelta(minutes=30))
    refused(made.token, "pc-2", machine.key)
    refused(spare.token, "pc-1", rekey=True, node_uid=str(machine.node.uid))
    refused(machine.token, "pc-1", machine.key)
    assert not Node.objects.filter(pk="pc-2").exists()
    assert token_row(made.token).used_at is None


def test_one_key_never_names_two_nodes():
    machine = enrolled("pc-1")
    made = tokens.create("pc-2", actor=OPERATOR)
    with capture_logs() as logged:
        refused(made.token, "pc-2", machine.key)
    assert not Node.objects.filter(pk="pc-2").exists()
    assert [(entry["why"], entry["alarm"]) for entry in logged] == [("the key belongs to another node", True)]


def test_a_join_that_another_one_overtakes_looks_again(monkeypatch):
    made = tokens.create("pc-1", actor=OPERATOR)
    store, tries = join._store, []

    def overtaken_once(*args):
        tries.append(args)
        if len(tries) == 1:
            raise IntegrityError
        return store(*args)

    monkeypatch.setattr(join, "_store", overtaken_once)
    assert join.enroll(request_for(made.token, "pc-1", keys.new_key()), PEER).chain
    assert len(tries) == 2


def test_a_rejected_node_s_token_is_gone_and_its_id_free():
    machine = enrolled("pc-1")
    registry.reject("pc-1", OPERATOR)
    refused(machine.token, key=machine.key)
    assert enrolled("pc-1").node.lifecycle == "pending"


def test_a_rekey_keeps_uid_approval_and_address_and_changes_the_key():
    machine = approved("pc-1", address="192.0.2.44")
    Node.objects.update(seq=77, boot_id="a boot")
    key, request, _ = rekeyed(machine)
    answer = join.enroll(request, PEER, rekey=True)
    node = Node.objects.get(pk="pc-1")
    assert answer.node_uid == str(node.uid) == machine.answer.node_uid
    assert (node.lifecycle, node.address) == ("approved", "192.0.2.44")
    assert list(node.pins.values_list("slot", "spki_sha256")) == [("current", keys.spki_of(key.public_key()))]
    assert (node.seq, node.boot_id) == (0, "")
    assert join.enroll(request, PEER, rekey=True) == answer


def test_a_rekeyed_node_that_waits_still_waits():
    machine = enrolled("pc-1")
    key, request, _ = rekeyed(machine)
    join.enroll(request, PEER, rekey=True)
    assert machine.node.lifecycle == "pending"
    assert pin_of("pc-1", NodePin.PENDING) == keys.spki_of(key.public_key())


def test_a_rekey_with_another_uid_or_none_is_refused():
    machine = approved("pc-1")
    for uid in ("6f1c9a43-9df1-4d6b-8f43-0c2f3a7f9b11", None):
        _, request, token = rekeyed(machine, node_uid=uid)
        with pytest.raises(EnrollmentRefused):
            join.enroll(request, PEER, rekey=True)
        assert token_row(token).used_at is None
    assert pin_of("pc-1") == machine.spki


def test_a_rekey_token_does_not_join_and_a_join_token_does_not_rekey():
    machine = approved("pc-1")
    _, request, _ = rekeyed(machine)
    with pytest.raises(EnrollmentRefused):
        join.enroll(request, PEER)
    made = tokens.create("pc-2", actor=OPERATOR)
    refused(made.token, "pc-2", rekey=True, node_uid=str(machine.node.uid))


def test_a_fenced_master_enrolls_nobody():
    made = tokens.create("pc-1", actor=OPERATOR)
    fencing.fence("Another master commands.")
    with pytest.raises(MasterFenced):
        join.enroll(request_for(made.token, "pc-1", keys.new_key()), PEER)
    assert token_row(made.token).used_at is None


def test_an_enrollment_is_audited_with_its_fingerprint():
    machine = enrolled("pc-1")
    line = AuditLine.objects.get(action="node.enroll", result="succeeded")
    assert line.actor == f"api:{PEER}"
    assert machine.spki in line.detail


def test_the_stored_answer_is_the_answer():
    machine = enrolled("pc-1")
    stored = token_row(machine.token).answer
    assert EnrollResponse.model_validate(stored) == machine.answer
    assert "PRIVATE" not in str(stored)
