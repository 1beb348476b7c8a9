"""Signing requests: only the public key is taken, and nothing that a stranger sends ends in an unnamed error."""

import base64

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.common.keys import new_key, spki_of
from nodes.pki.signing_requests import BadRequestToSign, csr_public_key
from tests.nodes.parts import make_csr

pytestmark = pytest.mark.unit

KEY = new_key()
GOOD = make_csr(KEY)
DER = x509.load_pem_x509_csr(GOOD.encode()).public_bytes(Encoding.DER)


def pem(der: bytes) -> str:
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n"


def signed_by(key, algorithm) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, algorithm)
    return request.public_bytes(Encoding.PEM).decode()


def test_the_key_comes_out():
    assert spki_of(csr_public_key(GOOD)) == spki_of(KEY.public_key())


def test_names_and_extensions_in_the_request_are_not_read():
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "another-node")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("evil.example")]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    text = builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    assert spki_of(csr_public_key(text)) == spki_of(KEY.public_key())


def bad_requests():
    other = x509.load_pem_x509_csr(make_csr(new_key()).encode())
    swapped = DER.replace(
        KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        other.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    )
    flipped = bytearray(DER)
    flipped[-3] ^= 0x40
    yield "empty", ""
    yield "words", "please"
    yield "not ascii", GOOD.replace("CERTIFICATE", "CERTIFICÄTE")
    yield "lone surrogate", "\ud800" + GOOD
    yield "nothing inside", pem(b"")
    yield "cut short", pem(DER[:60])
    yield "bytes after it", pem(DER + b"\x00\x01")
    yield "another version", pem(DER.replace(b"\x02\x01\x00", b"\x02\x01\x07", 1))
    yield "a key that did not sign", pem(swapped)
    yield "a broken signature", pem(bytes(flipped))
    yield "a private key", KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    yield "rsa", signed_by(rsa.generate_private_key(65537, 2048), hashes.SHA256())
    yield "dsa", signed_by(dsa.generate_private_key(2048), hashes.SHA256())
    yield "ed25519", signed_by(ed25519.Ed25519PrivateKey.generate(), None)
    yield "p-384", signed_by(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256())
    yield "secp256k1", signed_by(ec.generate_private_key(ec.SECP256K1()), hashes.SHA256())
    yield "another hash", signed_by(KEY, hashes.SHA3_256())


@pytest.mark.parametrize(("why", "text"), [pytest.param(*item, id=item[0]) for item in bad_requests()])
def test_a_bad_request_is_refused_by_name(why, text):
    with pytest.raises(BadRequestToSign):
        csr_public_key(text)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(DER) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_no_change_of_bytes_ends_in_an_unnamed_error_or_another_key(changes):
    data = bytearray(DER)
    for position, value in changes:
        data[position] = value
    try:
        key = csr_public_key(pem(bytes(data)))
    except BadRequestToSign:
        return
    assert spki_of(key) == spki_of(KEY.public_key())


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=300), st.binary(max_size=200).map(pem)))
def test_no_text_ends_in_an_unnamed_error(text):
    with pytest.raises(BadRequestToSign):
        csr_public_key(text)
