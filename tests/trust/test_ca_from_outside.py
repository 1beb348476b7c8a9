"""A CA that comes from outside: files that the settings name take the place of a CA of our own."""

from datetime import timedelta

import pytest

from agent.common import keys
from audit.models import AuditLine
from jobs.requests import ca_rotation
from mirbad.kernel import clock, conf
from mirbad.kernel.errors import Conflict, Unavailable
from nodes.models import Authority, Node, NodeCondition
from nodes.pki import authority, certs, outside, rotation, store
from nodes.states import RE_PAIR
from tests.nodes.parts import OPERATOR, approved, fresh_issuer

pytestmark = pytest.mark.app


@pytest.fixture
def outside_ca(tmp_path, monkeypatch):
    """Writes a CA into two files and lets the settings name them."""

    def write(issuer=None, mode=0o600):
        made = issuer or fresh_issuer()
        cert, key = tmp_path / "ca.pem", tmp_path / "ca.key"
        cert.write_text(certs.to_pem(made.cert))
        key.touch(mode=mode)
        key.write_bytes(keys.key_to_pem(made.key))
        value = conf.settings().model_copy(update={"pki_ca_cert_file": cert, "pki_ca_key_file": key})
        for module in (outside, rotation):
            monkeypatch.setattr(module, "settings", lambda: value)
        return made

    return write


def test_a_ca_from_outside_is_the_fleets(db, outside_ca):
    made = outside_ca()
    authority.ensure()
    assert store.trust().hashes == (f"sha256:{certs.fingerprint(made.cert)}",)
    leaf = certs.from_pem(approved("pc-1").answer.chain[0])
    assert certs.is_issued_by(leaf, made.cert)
    with pytest.raises(Conflict, match="MIRBAD_PKI_CA_CERT_FILE"):
        ca_rotation.start(OPERATOR)
    with pytest.raises(Conflict, match="MIRBAD_PKI_CA_CERT_FILE"):
        ca_rotation.replace_stolen(ca_rotation.PHRASE, OPERATOR)


def test_another_ca_in_the_files_takes_its_place_and_every_node_is_to_be_re_paired(db, outside_ca):
    outside_ca()
    authority.ensure()
    approved("pc-1")
    authority.ensure()
    assert not NodeCondition.objects.exists()
    made = outside_ca()
    authority.ensure()
    assert store.trust().hashes == (f"sha256:{certs.fingerprint(made.cert)}",)
    assert NodeCondition.objects.get(node_id="pc-1").code == RE_PAIR
    assert AuditLine.objects.get(action="pki.ca-rotation").actor == "config"
    assert Node.objects.get().lifecycle == "approved"


def test_files_that_cannot_be_used_stop_a_first_start_and_never_a_running_fleet(db, outside_ca, tmp_path):
    outside_ca()
    (tmp_path / "ca.key").write_bytes(keys.key_to_pem(keys.new_key()))
    with pytest.raises(Unavailable, match="is not the key of the certificate"):
        authority.ensure()
    assert not Authority.objects.exists()
    outside_ca()
    authority.ensure()
    standing = store.trust()
    (tmp_path / "ca.pem").write_text("nonsense")
    authority.ensure()
    assert store.trust() == standing


@pytest.mark.parametrize("broken", ["missing", "leaf", "expired", "no key", "rsa"])
def test_what_is_no_ca_is_told_with_the_name_of_the_setting(db, outside_ca, tmp_path, monkeypatch, broken):
    made = outside_ca()
    if broken == "missing":
        (tmp_path / "ca.pem").unlink()
    elif broken == "leaf":
        leaf = certs.issue_node(made, made.key.public_key(), "uid", clock.now())
        (tmp_path / "ca.pem").write_text(certs.to_pem(leaf))
    elif broken == "expired":
        long_ago = clock.now() - timedelta(days=5000)
        (tmp_path / "ca.pem").write_text(certs.to_pem(certs.make_ca(made.key, long_ago)))
    elif broken == "no key":
        (tmp_path / "ca.key").unlink()
    else:
        (tmp_path / "ca.key").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    with pytest.raises(Unavailable, match=r"MIRBAD_PKI_CA_(CERT|KEY)_FILE"):
        authority.ensure()


def test_a_key_that_others_may_read_is_told(db, outside_ca, log_lines):
    outside_ca(mode=0o644)
    authority.ensure()
    assert any("readable by other users" in line for line in log_lines)
