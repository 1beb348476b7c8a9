"""The enroll listener in each stage of a CA rotation, by the agent's own join, without a restart."""

import pytest

from agent.enroll import HashDiffers, JoinRequest, fetch_authority, join, read_endpoint, read_hashes
from agent.wire.enroll import MachineSummary
from jobs.requests import ca_rotation
from nodes.enrollment import listener, tokens
from nodes.models import Authority, CaRotation, NodePin
from nodes.pki import authority, certs, rotation, store
from tests.nodes.test_with_a_real_agent import listening
from tests.trust.ca_fleet import OPERATOR
from tests.waiting import until, until_no

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("live_master")]


@pytest.fixture
def live_master(transactional_db):
    return authority.ensure()


@pytest.fixture
def port(monkeypatch, live_master):
    monkeypatch.setattr(listener, "WATCH_SECONDS", 0.05)
    with listening() as port:
        yield port


def joined(folder, port, node_id, ca_hash):
    """A machine joins by a command that carries `ca_hash`."""
    token = tokens.create(node_id, actor=OPERATOR).token
    order = JoinRequest(
        enroll_url=f"https://127.0.0.1:{port}",
        ca_hash=ca_hash,
        node_id=node_id,
        token=token,
        address="192.0.2.7",
        machine=MachineSummary(),
    )
    folder = folder / node_id
    folder.mkdir()
    identity = join(order, folder, pause=lambda seconds: None)
    assert NodePin.objects.get(node_id=node_id).spki_sha256 == identity.spki
    return identity


def shown(port, ca_hash):
    """Wait until the listener has taken up what is stored."""
    return until_no(HashDiffers, lambda: authority_at(port, ca_hash), 10)


def authority_at(port, ca_hash):
    return fetch_authority(read_endpoint(f"https://127.0.0.1:{port}"), read_hashes(ca_hash))


def test_old_and_new_commands_join_as_long_as_their_ca_is_trusted(port, tmp_path):
    [old] = authority.ca_hashes()
    joined(tmp_path, port, "before-1", old)
    ca_rotation.start(OPERATOR)
    found = CaRotation.objects.get()
    new = f"sha256:{found.new_sha256}"
    both = tokens.create("any-1", actor=OPERATOR).ca_hash
    assert both == f"{old},{new}"
    for stage in ("AgentsTrusting", "MasterReissued", "AgentsRotating"):
        rotation.move(found, stage)
        shown(port, new)
        for name, ca_hash in (("old", old), ("both", both)):
            identity = joined(tmp_path, port, f"{stage.lower()}-{name}", ca_hash)
            assert len(identity.ca_bundle) == 2
            issuer = rotation.authority_of(identity.certificate, list(Authority.objects.all()))
            assert issuer == (found.old_sha256 if stage == "AgentsTrusting" else found.new_sha256)
        if stage != "AgentsTrusting":
            joined(tmp_path, port, f"{stage.lower()}-new", new)
    rotation.move(found, "Closing")
    rotation.move(found, "Closed")
    wait_until_gone(port, old)
    assert joined(tmp_path, port, "closed-both", both).ca_bundle == store.trust().bundle
    joined(tmp_path, port, "closed-new", new)
    with pytest.raises(HashDiffers):
        joined(tmp_path, port, "closed-old", old)


def wait_until_gone(port, ca_hash):
    def is_gone():
        try:
            authority_at(port, ca_hash)
        except HashDiffers:
            return True
        return False

    until(is_gone, "the old CA to be gone", 10)


def test_the_listener_goes_back_with_a_roll_back_and_follows_a_replaced_ca(port, tmp_path):
    [old] = authority.ca_hashes()
    ca_rotation.start(OPERATOR)
    found = CaRotation.objects.get()
    rotation.move(found, "AgentsTrusting")
    rotation.move(found, "MasterReissued")
    shown(port, f"sha256:{found.new_sha256}")
    rotation.move(found, "RollingBack")
    wait_until_gone(port, f"sha256:{found.new_sha256}")
    joined(tmp_path, port, "back-1", old)
    rotation.move(found, "RolledBack")
    ca_rotation.replace_stolen(ca_rotation.PHRASE, OPERATOR)
    [fresh] = authority.ca_hashes()
    shown(port, fresh)
    joined(tmp_path, port, "fresh-1", fresh)
    with pytest.raises(HashDiffers):
        joined(tmp_path, port, "stale-1", old)


def test_the_certificates_of_the_master_lead_to_both_cas_and_keep_the_cross_when_renewed(live_master):
    ca_rotation.start(OPERATOR)
    found = CaRotation.objects.get()
    rotation.move(found, "AgentsTrusting")
    rotation.move(found, "MasterReissued")
    row = store.master()
    assert row.client_cert_pem.count("BEGIN CERTIFICATE") == 2
    cross = certs.from_pem("-----BEGIN CERTIFICATE-----" + row.client_cert_pem.split("-----BEGIN CERTIFICATE-----")[2])
    by_slot = {one.slot: certs.from_pem(one.cert_pem) for one in Authority.objects.all()}
    assert certs.is_issued_by(cross, by_slot["previous"])
    assert cross.public_key() == by_slot["current"].public_key()
    assert authority._renew(row, frozenset({"another.example", *certs.hosts_of(certs.from_pem(row.enroll_cert_pem))}))
    assert store.master().enroll_cert_pem.count("BEGIN CERTIFICATE") == 2
