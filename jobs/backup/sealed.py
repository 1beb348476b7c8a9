"""A stream that is sealed by a passphrase.

Layout: `_MAGIC`, a salt of 16 bytes, then chunks of 64 KiB of AES-256-GCM. The key is Argon2id of the passphrase; the
nonce of a chunk is its number and whether it is the last one (the STREAM construction of Hoang, Reyhanitabar, Rogaway
and Vizár, 2015, as in age), so that chunks can be neither moved, repeated nor cut off. The cost of the key is fixed: a
file cannot make its reader work harder.
"""

import os
import unicodedata
from collections.abc import Iterator
from typing import BinaryIO

from argon2.low_level import Type, hash_secret_raw
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from jobs.errors import BackupUnsuitable

_MAGIC = b"mirbad-sealed-1\n"
_SALT_BYTES = 16
_CHUNK_BYTES = 64 * 1024
_TAG_BYTES = 16
_MEMORY_KIB, _PASSES, _LANES = 64 * 1024, 3, 4


def _cipher(passphrase: str, salt: bytes) -> AESGCM:
    """Return the cipher of one file. Takes a tenth of a second and 64 MiB."""
    # A keyboard may send é as one character or as two.
    secret = unicodedata.normalize("NFC", passphrase).encode()
    key = hash_secret_raw(
        secret, salt, time_cost=_PASSES, memory_cost=_MEMORY_KIB, parallelism=_LANES, hash_len=32, type=Type.ID
    )
    return AESGCM(key)


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


class SealingWriter:
    """Seals all bytes that are written and writes them to `target`. Call `finish` at the end."""

    def __init__(self, target: BinaryIO, passphrase: str) -> None:
        salt = os.urandom(_SALT_BYTES)
        self._target, self._header = target, _MAGIC + salt
        self._cipher = _cipher(passphrase, salt)
        self._pending = bytearray()
        self._number = 0
        target.write(self._header)

    def write(self, data: bytes) -> None:
        """Take more bytes."""
        self._pending += data
        while len(self._pending) > _CHUNK_BYTES:
            self._emit(bytes(self._pending[:_CHUNK_BYTES]), is_last=False)
            del self._pending[:_CHUNK_BYTES]

    def finish(self) -> None:
        """Write the last chunk."""
        self._emit(bytes(self._pending), is_last=True)

    def _emit(self, plain: bytes, *, is_last: bool) -> None:
        self._target.write(self._cipher.encrypt(_nonce(self._number, is_last=is_last), plain, self._header))
        self._number += 1


def unsealed(source: BinaryIO, passphrase: str) -> Iterator[bytes]:
    """Yield the sealed bytes in pieces. Raises BackupUnsuitable for another passphrase and for a damaged stream."""
    header = source.read(len(_MAGIC) + _SALT_BYTES)
    if not header.startswith(_MAGIC) or len(header) != len(_MAGIC) + _SALT_BYTES:
        raise BackupUnsuitable("The secrets of this backup are damaged: they do not begin as sealed secrets do.")
    cipher = _cipher(passphrase, header[len(_MAGIC) :])
    chunk, number = source.read(_CHUNK_BYTES + _TAG_BYTES), 0
    while True:
        following = source.read(_CHUNK_BYTES + _TAG_BYTES)
        try:
            yield cipher.decrypt(_nonce(number, is_last=not following), chunk, header)
        except InvalidTag:
            if number == 0:
                text = "The secrets cannot be opened: the passphrase is another one, or the file is damaged."
            else:
                text = f"The secrets of this backup are damaged after {number * _CHUNK_BYTES} bytes."
            raise BackupUnsuitable(text) from None
        if not following:
            return
        chunk, number = following, number + 1
