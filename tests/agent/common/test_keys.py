"""Private keys are P-256 wherever they are read: in the agent, in the master, and from outside."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from agent.common import keys
from agent.common.keys import BadKey, key_from_pem, key_to_pem, new_key, spki_of
from agent.identity import AgentIdentityBroken
from mirbad.kernel.errors import Unavailable
from nodes.pki import outside
from tests.agent.core.fleet import Fleet

pytestmark = pytest.mark.unit


def _pem(key: Any, encryption: Any = None) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()))


OTHERS: dict[str, Callable[[], bytes]] = {
    "P-384": lambda: _pem(ec.generate_private_key(ec.SECP384R1())),
    "P-521": lambda: _pem(ec.generate_private_key(ec.SECP521R1())),
    "secp256k1": lambda: _pem(ec.generate_private_key(ec.SECP256K1())),
    "RSA": lambda: _pem(rsa.generate_private_key(65537, 2048)),
    "DSA": lambda: _pem(dsa.generate_private_key(2048)),
    "Ed25519": lambda: _pem(ed25519.Ed25519PrivateKey.generate()),
    "with a password": lambda: _pem(new_key(), BestAvailableEncryption(b"password")),
    "a public key": lambda: new_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    "nothing": lambda: b"",
    "cut short": lambda: _pem(new_key())[:-60],
    "not PEM": lambda: b"\xff\xfe",
}


@pytest.fixture(scope="module", params=OTHERS)
def other(request: pytest.FixtureRequest) -> bytes:
    """A key that no side may use."""
    return OTHERS[request.param]()


def test_a_key_of_ours_is_read_back() -> None:
    key = new_key()
    assert spki_of(key_from_pem(key_to_pem(key))) == spki_of(key) == spki_of(key.public_key())
    assert len(spki_of(key)) == hashlib.sha256().digest_size * 2


def test_the_shared_reader_refuses_any_other(other: bytes) -> None:
    with pytest.raises(BadKey, match="private key"):
        key_from_pem(other)


def test_an_identity_of_the_agent_with_another_key_is_broken(other: bytes) -> None:
    with pytest.raises(AgentIdentityBroken, match="private key"):
        replace(Fleet().identity(), key_pem=other)


def test_a_ca_from_outside_with_another_key_is_refused(
    other: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ca.key"
    path.write_bytes(other)
    monkeypatch.setattr(outside, "certificate", lambda: None)
    monkeypatch.setattr(outside, "settings", lambda: type("S", (), {"pki_ca_key_file": path}))
    with pytest.raises(Unavailable, match="P-256"):
        outside.issuer()


def test_the_curve_is_named() -> None:
    with pytest.raises(BadKey, match="secp384r1"):
        key_from_pem(OTHERS["P-384"]())
    assert keys.is_p256(new_key().public_key())
    assert not keys.is_p256(object())
