"""Sealed streams: opened by their passphrase alone, and only whole."""

import io
import random

import pytest

from jobs.backup import sealed
from jobs.errors import BackupUnsuitable

pytestmark = pytest.mark.unit
CHUNK = sealed._CHUNK_BYTES
HEADER = 16 + 16
SECRET = "correct horse battery staple"


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)


def seal(plain: bytes, passphrase: str = SECRET) -> bytes:
    target = io.BytesIO()
    writer = sealed.SealingWriter(target, passphrase)
    for start in range(0, len(plain), 1000):
        writer.write(plain[start : start + 1000])
    writer.finish()
    return target.getvalue()


def unseal(text: bytes, passphrase: str = SECRET) -> bytes:
    return b"".join(sealed.unsealed(io.BytesIO(text), passphrase))


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 7])
def test_what_was_sealed_is_opened(size):
    plain = random.Random(size).randbytes(size)
    text = seal(plain)
    assert unseal(text) == plain
    assert text.count(plain[:64] if size > 8 else b"not there") == 0
    assert seal(plain) != text, "never twice alike"


@pytest.mark.parametrize("other", ["", "Correct horse battery staple", SECRET + " ", "x" * 10_000])
def test_another_passphrase_opens_nothing(other):
    with pytest.raises(BackupUnsuitable, match="the passphrase is another one"):
        unseal(seal(b"secret"), other)


def test_one_character_written_in_two_ways_is_one_passphrase():
    assert unseal(seal(b"secret", "caf\u00e9 au lait"), "cafe\u0301 au lait") == b"secret"


def test_chunks_are_neither_cut_nor_moved_nor_repeated_nor_mixed():
    plain = random.Random(1).randbytes(3 * CHUNK)
    text, other = seal(plain), seal(plain)
    size = CHUNK + 16
    chunks = [text[HEADER + number * size : HEADER + (number + 1) * size] for number in range(3)]
    foreign = other[HEADER + size : HEADER + 2 * size]
    head = text[:HEADER]
    for wrong in (
        [chunks[0], chunks[1]],
        [chunks[0]],
        [],
        [chunks[1], chunks[0], chunks[2]],
        [chunks[0], chunks[0], chunks[1], chunks[2]],
        [chunks[0], chunks[2]],
        [*chunks, chunks[2]],
        [chunks[0], foreign, chunks[2]],
        [*chunks, b"x"],
    ):
        with pytest.raises(BackupUnsuitable):
            unseal(head + b"".join(wrong))
    assert unseal(head + b"".join(chunks)) == plain


def test_every_bit_counts():
    text = seal(b"a secret of some length")
    for place in range(len(text)):
        wrong = bytearray(text)
        wrong[place] ^= 1 << (place % 8)
        with pytest.raises(BackupUnsuitable):
            unseal(bytes(wrong))


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31, 32, 40, 47])
def test_a_stream_that_ends_too_early_is_damaged(size):
    with pytest.raises(BackupUnsuitable):
        unseal(seal(b"secret")[:size])
