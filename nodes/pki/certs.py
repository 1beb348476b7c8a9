"""Certificates of the fleet. Pure: from keys, names and the time.

Each kind may do one thing: agents serve, the master calls, the enroll listener serves under its own name. All of them
pass OpenSSL's strict checks (`ssl.VERIFY_X509_STRICT`).
"""

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agent.wire.base import ENROLL_SERVER_NAME, node_server_name

CA_LIFE = timedelta(days=3650)
AGENT_LIFE = timedelta(days=90)
MASTER_LIFE = timedelta(days=365)
CA_BACKDATE = timedelta(hours=24)
LEAF_BACKDATE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Issuer:
    """A CA certificate with the key that signs."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)


def to_pem(cert: x509.Certificate) -> str:
    """Return the certificate as PEM text."""
    return cert.public_bytes(Encoding.PEM).decode("ascii")


def from_pem(pem: str) -> x509.Certificate:
    """Return the first certificate in `pem`. ValueError when there is none."""
    return x509.load_pem_x509_certificate(pem.encode("ascii"))


def with_leaf(pem: str, leaf: x509.Certificate) -> str:
    """Replace the first certificate of `pem` by `leaf`; a cross certificate behind it stays."""
    _, end, rest = pem.partition("-----END CERTIFICATE-----\n")
    return to_pem(leaf) + (rest if end else "")


def leaf_only(pem: str) -> str:
    """Return the first certificate of `pem`, as PEM."""
    return to_pem(from_pem(pem))


def fingerprint(cert: x509.Certificate) -> str:
    """Return the SHA-256 of the certificate's DER, lower hex: the CA hash of a join command, without ``sha256:``."""
    return hashlib.sha256(cert.public_bytes(Encoding.DER)).hexdigest()


def node_uri(uid: str) -> str:
    """Return the URI name in the certificate of the node with `uid`."""
    return f"mirbad://node/{uid}"


def make_ca(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    """Return a self-signed root. No path length: a cross certificate must fit under it in a rotation."""
    # The name includes a part of the key, so that two roots of one fleet never share a name while both are trusted.
    label = x509.SubjectKeyIdentifier.from_public_key(key.public_key()).digest.hex()[:12]
    name = _name(f"Mirbad fleet CA {label}")
    builder = _start(name, name, key.public_key(), key.public_key(), now - CA_BACKDATE, now + CA_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return builder.sign(key, hashes.SHA256())


def cross_sign(issuer: Issuer, authority: x509.Certificate, now: datetime) -> x509.Certificate:
    """Sign `authority` (another root) by `issuer`: a peer that trusts only the issuer then accepts both."""
    key = authority.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise TypeError("a CA key must be an elliptic-curve key")
    not_after = min(issuer.cert.not_valid_after_utc, authority.not_valid_after_utc)
    builder = _start(authority.subject, issuer.cert.subject, key, issuer.key.public_key(), now - CA_BACKDATE, not_after)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return builder.sign(issuer.key, hashes.SHA256())


def is_issued_by(cert: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether `cert` was issued by `authority`: its issuer's name and key id are that CA's."""
    if cert.issuer != authority.subject:
        return False
    try:
        theirs = cert.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
        ours = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    except x509.ExtensionNotFound:
        return False
    return theirs == ours


def issue_node(
    issuer: Issuer, key: ec.EllipticCurvePublicKey, uid: str, now: datetime, life: timedelta = AGENT_LIFE
) -> x509.Certificate:
    """Issue the certificate of an agent: it may serve, under the name and URI of its uid, and nothing else."""
    names: list[x509.GeneralName] = [
        x509.DNSName(node_server_name(uid)),
        x509.UniformResourceIdentifier(node_uri(uid)),
    ]
    return _leaf(issuer, key, uid, names, ExtendedKeyUsageOID.SERVER_AUTH, now, life)


def issue_master_client(issuer: Issuer, key: ec.EllipticCurvePublicKey, now: datetime) -> x509.Certificate:
    """Issue the certificate with which the master calls agents: it may call, and cannot pose as an agent."""
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier("mirbad://master")]
    return _leaf(issuer, key, "Mirbad master", names, ExtendedKeyUsageOID.CLIENT_AUTH, now, MASTER_LIFE)


def issue_enroll(
    issuer: Issuer, key: ec.EllipticCurvePublicKey, hosts: Sequence[str], now: datetime
) -> x509.Certificate:
    """Issue the certificate of the enroll listener: its fixed name first, then the host names and addresses."""
    names: list[x509.GeneralName] = [x509.DNSName(ENROLL_SERVER_NAME)]
    names += [_general_name(host) for host in hosts if host != ENROLL_SERVER_NAME]
    return _leaf(issuer, key, "Mirbad enrollment", names, ExtendedKeyUsageOID.SERVER_AUTH, now, MASTER_LIFE)


def hosts_of(cert: x509.Certificate) -> frozenset[str]:
    """Return the DNS names and addresses that `cert` is valid for."""
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(names.get_values_for_type(x509.DNSName)) | frozenset(
        str(address) for address in names.get_values_for_type(x509.IPAddress)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Mirbad"), x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _start(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    not_before: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _leaf(
    issuer: Issuer,
    key: ec.EllipticCurvePublicKey,
    common_name: str,
    names: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    now: datetime,
    life: timedelta,
) -> x509.Certificate:
    not_after = min(now + life, issuer.cert.not_valid_after_utc)
    builder = _start(
        _name(common_name), issuer.cert.subject, key, issuer.key.public_key(), now - LEAF_BACKDATE, not_after
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer.key, hashes.SHA256())
