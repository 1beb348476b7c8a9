"""Joining: an answer that is not a proper one is no enrollment, whatever it looks like."""

import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.enroll import (
    BadEnrollResponse,
    JoinFailed,
    JoinRequest,
    _check,
    _read_answer,
    read_hashes,
)
from agent.identity import IdentityStore, make_csr
from tests.agent.core.fleet import UID, Fleet
from tests.agent.core.joining import KEY, TOKEN, order_for, quick
from tests.agent.core.listener import EnrollServer

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "answer",
    [b"", b"{}", b"<html>", b"[" * 100_000, b"x" * 300_000, b'{"nodeUid":1}'],
    ids=["empty", "bare", "html", "deep", "large", "half"],
)
@pytest.mark.parametrize("status", [200, 302, 403])
def test_an_answer_that_makes_no_sense_is_no_enrollment(
    listener: EnrollServer, state: Path, answer: bytes, status: int
) -> None:
    listener.answers = [(status, answer, {})]
    with pytest.raises(BadEnrollResponse):
        quick(order_for(listener), state)
    assert IdentityStore(state).load_if_any() is None


def _forged(listener: EnrollServer, **changes: Any) -> None:
    """Every answer is a proper one with these fields changed."""
    honest = listener.enroll

    def enroll(body: dict[str, Any]) -> Any:
        status, value, headers = honest(body)
        assert isinstance(value, dict)
        return status, {**value, **changes}, headers

    listener.enroll = enroll  # type: ignore[method-assign]


def test_a_certificate_for_another_key_is_refused(listener: EnrollServer, state: Path) -> None:
    _forged(listener, chain=[listener.fleet.node_leaf().pem])
    with pytest.raises(BadEnrollResponse, match="another key"):
        quick(order_for(listener), state)


def test_a_uid_that_the_certificate_does_not_name_is_refused(listener: EnrollServer, state: Path) -> None:
    _forged(listener, nodeUid="99999999-0000-0000-0000-000000000000")
    with pytest.raises(BadEnrollResponse, match="another node"):
        quick(order_for(listener), state)


def test_a_certificate_that_the_bundle_did_not_sign_is_refused(listener: EnrollServer, state: Path) -> None:
    honest, other = listener.fleet, Fleet()
    listener.enroll_issuer = other.issuer
    with pytest.raises(BadEnrollResponse, match="not signed"):
        quick(order_for(listener), state)
    assert honest.issuer != other.issuer


def test_a_bundle_without_the_pinned_ca_is_refused(listener: EnrollServer, state: Path) -> None:
    other = Fleet()
    listener.enroll_issuer = other.issuer
    _forged(listener, caBundle=[other.ca_pem])
    with pytest.raises(BadEnrollResponse, match="lacks the CA"):
        quick(order_for(listener), state)


def test_a_master_key_that_is_no_fingerprint_is_refused(listener: EnrollServer, state: Path) -> None:
    _forged(listener, masterSpki={"current": "", "next": None})
    with pytest.raises(BadEnrollResponse, match="fingerprint"):
        quick(order_for(listener), state)


PIECES = st.sampled_from(["", "x", "\ud800", "\x00", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
ANSWERS = st.fixed_dictionaries(
    {},
    optional={
        "nodeUid": PIECES | st.just(UID) | st.none(),
        "chain": st.lists(PIECES, max_size=2) | st.none() | st.just("chain"),
        "caBundle": st.lists(PIECES, max_size=2) | st.integers(),
        "masterSpki": st.fixed_dictionaries({"current": PIECES | st.just("0" * 64)}) | st.none(),
        "code": PIECES | st.sampled_from(["rate_limited", "enrollment_refused", "new_code"]),
        "detail": PIECES | st.integers(),
    },
)


@settings(max_examples=300, deadline=None)
@given(ANSWERS.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60), st.integers(200, 599), PIECES)
def test_whatever_a_master_answers_is_an_enrollment_or_a_named_failure(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory, body: bytes, status: int, retry_after: str
) -> None:
    order = JoinRequest(enroll_url="https://m", ca_hash=fleet.ca_hash, node_id="pc-1", token=TOKEN)
    expected = read_hashes(fleet.ca_hash)
    store = IdentityStore(tmp_path_factory.getbasetemp() / "nothing")
    with pytest.raises(JoinFailed):
        _check(_read_answer(status, body, retry_after), order, KEY, fleet.ca, expected, store, None)


def test_an_honest_answer_with_one_byte_changed_is_refused(
    fleet: Fleet, tmp_path: Path, listener: EnrollServer
) -> None:
    """Certificates with damaged insides, as no honest master sends them."""
    order = order_for(listener)
    status, value, _ = listener.enroll({"csrPem": make_csr(KEY, "pc-1")})
    assert isinstance(value, dict)
    cert = x509.load_pem_x509_certificate(value["chain"][0].encode()).public_bytes(Encoding.DER)
    store = IdentityStore(tmp_path / "nothing")
    for place in range(0, len(cert), 3):
        damaged = cert[:place] + bytes([cert[place] ^ 0x15]) + cert[place + 1 :]
        body = json.dumps({**value, "chain": [ssl.DER_cert_to_PEM_cert(damaged)]}).encode()
        with pytest.raises(BadEnrollResponse):
            _check(_read_answer(status, body, None), order, KEY, fleet.ca, read_hashes(fleet.ca_hash), store, None)
