"""Keys: P-256 everywhere. Pure: values in, values out."""

import hashlib

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509 import DuplicateExtension, InvalidVersion, UnsupportedGeneralNameType

_CSR_HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)


class BadRequestToSign(ValueError):
    """A certificate signing request that cannot be used; the text says why, for the person at the other machine."""


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as unencrypted PKCS#8 PEM; seal it before it is stored."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_from_pem(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """The key in `pem`. ValueError when it is no elliptic-curve key."""
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the stored key is not an elliptic-curve key")
    return key


def spki_of(key: ec.EllipticCurvePublicKey) -> str:
    """SHA-256 over the key's SubjectPublicKeyInfo, lower hex: what a pin holds."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def csr_public_key(pem: str) -> ec.EllipticCurvePublicKey:
    """The public key of a signing request, and nothing else of it: names and extensions in it are never read.

    Its signature is verified (the sender holds the key) and only P-256 is taken. Raises BadRequestToSign.
    """
    try:
        request = x509.load_pem_x509_csr(pem.encode("ascii"))
        key = request.public_key()
        algorithm = request.signature_hash_algorithm
        signed = isinstance(algorithm, _CSR_HASHES) and request.is_signature_valid
    except (
        ValueError,
        TypeError,
        UnsupportedAlgorithm,
        InvalidVersion,
        DuplicateExtension,
        UnsupportedGeneralNameType,
    ) as error:
        raise BadRequestToSign("The certificate signing request cannot be read.") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadRequestToSign("The key of the certificate signing request must be P-256.")
    if not signed:
        raise BadRequestToSign("The certificate signing request is not signed by its own key with SHA-256 or better.")
    return key
