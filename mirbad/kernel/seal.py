"""Sealing of secrets at rest: AES-256-GCM under a key derived from the master's secret key."""

import os
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError

_NONCE_BYTES = 12


class SealBroken(MirbadError):
    """A sealed value cannot be opened: the secret key is another one, or the row was changed."""

    code = "seal_broken"
    http_status = 500


@lru_cache(maxsize=8)
def _cipher(secret: str) -> AESGCM:
    derived = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=b"mirbad/seal/v1").derive(secret.encode())
    return AESGCM(derived)


def seal(plain: bytes, purpose: str) -> bytes:
    """Return `plain` encrypted for one `purpose` (bound in, so that a value cannot be moved to another column)."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + _cipher(settings().secret_key).encrypt(nonce, plain, purpose.encode())


def opens(sealed: bytes, purpose: str, secret_key: str) -> bool:
    """Return whether a value that was sealed for `purpose` opens with another secret key than this process's."""
    try:
        _cipher(secret_key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], purpose.encode())
    except InvalidTag:
        return False
    return True


def unseal(sealed: bytes, purpose: str) -> bytes:
    """Return the plain value. Raises SealBroken when it was sealed under another key or for another purpose."""
    data = bytes(sealed)
    try:
        return _cipher(settings().secret_key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], purpose.encode())
    except InvalidTag as error:
        raise SealBroken(
            "A stored secret cannot be decrypted. MIRBAD_SECRET_KEY (or secrets/secret-key in the data folder) must be "
            "the key that this data was written with."
        ) from error
