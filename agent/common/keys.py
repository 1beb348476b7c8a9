"""Private keys and their fingerprints: P-256 only, on both sides."""

import hashlib

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)


class BadKey(ValueError):
    """A private key that cannot be used. The text is a clause that says why and repeats nothing of the key."""


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return `key` as unencrypted PKCS#8 PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_from_pem(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Return the P-256 key in `pem`. Raises BadKey."""
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadKey("the private key cannot be read as PEM without a password") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadKey("the private key must be P-256, not of another algorithm")
    if not is_p256(key):
        raise BadKey(f"the private key must be P-256, not {key.curve.name}")
    return key


def is_p256(key: object) -> bool:
    """Return whether `key`, public or private, is of the curve P-256."""
    if not isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        return False
    return isinstance(key.curve, ec.SECP256R1)


def verifies(key: str, signature: str, text: str) -> bool:
    """Return whether `signature` of `text` is by the Ed25519 `key`, both in hex."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def spki_of(key: ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey) -> str:
    """Return the key's fingerprint: SHA-256 of its SubjectPublicKeyInfo in lower hex, the value of a pin."""
    public = key.public_key() if isinstance(key, ec.EllipticCurvePrivateKey) else key
    return hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
