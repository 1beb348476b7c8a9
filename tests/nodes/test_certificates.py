"""Certificates: each kind does one thing, all pass strict checks, real handshakes decide."""

import ssl
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID

from agent.common import keys
from agent.wire.base import ENROLL_SERVER_NAME
from mirbad.kernel import clock
from nodes.pki import certs
from nodes.pki.tls import BrokenIdentity, TlsIdentity, load_identity, prove, server_context, trusting_context
from tests.nodes.parts import fresh_issuer, node_identity

pytestmark = pytest.mark.unit

UID = "0b9c6f7e-6a83-4a5e-9a44-0d3f6c2e8a11"
NODE_NAME = f"{UID}.node.mirbad.internal"


def handshake(client, server, name):
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    assert not waiting
    return ends


def master_identity(issuer):
    key = keys.new_key()
    cert = certs.issue_master_client(issuer, key.public_key(), clock.now())
    return TlsIdentity((certs.to_pem(cert),), keys.key_to_pem(key))


def mutual(issuer, server_identity, client_identity):
    server = server_context(server_identity)
    server.verify_mode = ssl.CERT_REQUIRED
    server.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_verify_locations(cadata=certs.to_pem(issuer.cert))
    client = trusting_context((certs.to_pem(issuer.cert),))
    load_identity(client, client_identity)
    return client, server


def test_master_and_node_shake_hands_under_strict_checks_on_both_sides():
    issuer = fresh_issuer()
    client, server = mutual(issuer, node_identity(issuer, UID), master_identity(issuer))
    assert client.verify_flags & ssl.VERIFY_X509_STRICT
    ours, theirs = handshake(client, server, NODE_NAME)
    assert ours.version() == theirs.version() == "TLSv1.3"
    assert ("URI", f"mirbad://node/{UID}") in ours.getpeercert()["subjectAltName"]


def test_a_node_cannot_call_another_node_with_its_own_certificate():
    issuer = fresh_issuer()
    client, server = mutual(issuer, node_identity(issuer, UID), node_identity(issuer, "another"))
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        handshake(client, server, NODE_NAME)


def test_the_master_s_certificate_cannot_pose_as_a_node():
    issuer = fresh_issuer()
    client, server = mutual(issuer, master_identity(issuer), master_identity(issuer))
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        handshake(client, server, NODE_NAME)


def test_a_node_s_certificate_is_not_taken_for_another_node_s_or_for_the_listener_s():
    issuer = fresh_issuer()
    for name in ("other.node.mirbad.internal", ENROLL_SERVER_NAME, "127.0.0.1"):
        client, server = mutual(issuer, node_identity(issuer, UID), master_identity(issuer))
        with pytest.raises(ssl.SSLCertVerificationError, match=r"ostname mismatch|address mismatch"):
            handshake(client, server, name)


@pytest.mark.parametrize("name", [ENROLL_SERVER_NAME, "master.lan", "192.0.2.5", "2001:db8::5"])
def test_the_listener_s_certificate_is_good_for_its_own_name_and_for_every_host(name):
    issuer, key = fresh_issuer(), keys.new_key()
    cert = certs.issue_enroll(issuer, key.public_key(), ["master.lan", "192.0.2.5", "2001:db8::5"], clock.now())
    identity = TlsIdentity((certs.to_pem(cert), certs.to_pem(issuer.cert)), keys.key_to_pem(key))
    handshake(trusting_context((certs.to_pem(issuer.cert),)), server_context(identity), name)
    assert certs.hosts_of(cert) == {ENROLL_SERVER_NAME, "master.lan", "192.0.2.5", "2001:db8::5"}


def test_purposes_are_exactly_one_each():
    issuer, key, now = fresh_issuer(), keys.new_key().public_key(), clock.now()
    for cert, expected in (
        (certs.issue_node(issuer, key, UID, now), [ExtendedKeyUsageOID.SERVER_AUTH]),
        (certs.issue_master_client(issuer, key, now), [ExtendedKeyUsageOID.CLIENT_AUTH]),
        (certs.issue_enroll(issuer, key, [], now), [ExtendedKeyUsageOID.SERVER_AUTH]),
    ):
        assert list(cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == expected
        assert not cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_validity_is_backdated_and_never_outlives_the_authority():
    key, now = keys.new_key(), clock.now().replace(microsecond=0)
    ca = certs.make_ca(key, now)
    assert ca.not_valid_before_utc == now - timedelta(hours=24)
    issuer = certs.Issuer(ca, key)
    leaf = certs.issue_node(issuer, key.public_key(), UID, now)
    assert leaf.not_valid_before_utc == now - timedelta(hours=1)
    assert leaf.not_valid_after_utc == now + timedelta(days=90)
    late = ca.not_valid_after_utc - timedelta(days=10)
    assert certs.issue_node(issuer, key.public_key(), UID, late).not_valid_after_utc == ca.not_valid_after_utc


def test_the_root_leaves_room_for_a_cross_certificate():
    old, new = fresh_issuer(), fresh_issuer()
    assert old.cert.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length is None
    assert old.cert.subject != new.cert.subject
    now = clock.now()
    cross = (
        x509.CertificateBuilder()
        .subject_name(new.cert.subject)
        .issuer_name(old.cert.subject)
        .public_key(new.key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )
    for extension in new.cert.extensions:
        if not isinstance(extension.value, x509.AuthorityKeyIdentifier):
            cross = cross.add_extension(extension.value, extension.critical)
    cross = cross.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(old.key.public_key()), critical=False
    ).sign(old.key, hashes.SHA256())
    leaf = node_identity(new, UID)
    chained = TlsIdentity((*leaf.chain, certs.to_pem(cross)), leaf.key_pem)
    handshake(trusting_context((certs.to_pem(old.cert),)), server_context(chained), NODE_NAME)


def test_a_torn_pair_is_refused_before_anything_is_served_with_it():
    issuer = fresh_issuer()
    torn = TlsIdentity(node_identity(issuer, UID).chain, keys.key_to_pem(keys.new_key()))
    with pytest.raises(BrokenIdentity, match="cannot be loaded"):
        server_context(torn)


def test_a_certificate_of_another_authority_does_not_pass_the_proof():
    identity = node_identity(fresh_issuer(), UID)
    with pytest.raises(BrokenIdentity, match="rejects the new certificate"):
        prove(server_context(identity), (certs.to_pem(fresh_issuer().cert),), NODE_NAME)


def test_secrets_are_not_in_what_a_debugger_prints():
    issuer = fresh_issuer()
    identity = node_identity(issuer, UID)
    assert "PRIVATE" not in repr(identity)
    assert "PrivateKey" not in repr(issuer)
