"""Joining: what is sent to whom, what each failure says, and what survives it."""

import dataclasses
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.enrol import (
    BadAnswer,
    CannotReach,
    HashDiffers,
    JoinFailed,
    JoinOrder,
    RateLimited,
    Refused,
    _check,
    _read_answer,
    existing,
    join,
    read_hashes,
    read_listener,
)
from agent.identity import IdentityStore, fleet_id, make_csr, new_key, spki_of
from agent.wire.enroll import GpuSummary, MachineSummary
from tests.agent.core.fleet import UID, Fleet
from tests.agent.core.listener import EnrollServer, enroll_server

pytestmark = pytest.mark.unit

KEY = new_key()
TOKEN = "aGVsbG8.c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldC1zZWNyZXQ"


@pytest.fixture
def listener(fleet: Fleet, tmp_path: Path) -> Iterator[EnrollServer]:
    with enroll_server(fleet, tmp_path) as server:
        yield server


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def order_for(listener: EnrollServer, **changes: Any) -> JoinOrder:
    values: dict[str, Any] = {
        "enroll_url": listener.url,
        "ca_hash": listener.fleet.ca_hash,
        "node_id": "pc-1",
        "token": TOKEN,
    }
    return JoinOrder(**{**values, **changes})


def quick(order: JoinOrder, state: Path) -> Any:
    return join(order, state, lambda _: None)


def test_a_join_sends_the_request_and_keeps_the_answer(listener: EnrollServer, state: Path) -> None:
    machine = MachineSummary(os="Debian", gpus=(GpuSummary(uuid="GPU-1", name="GB10"),))
    identity = quick(order_for(listener, address="192.0.2.7", port=9500, machine=machine), state)
    assert IdentityStore(state).load() == identity
    assert (identity.node_id, identity.node_uid, identity.fleet) == ("pc-1", UID, fleet_id(listener.fleet.ca))
    assert identity.master_pins == {listener.fleet.master.spki}
    (asked,) = listener.asked
    assert asked.path == "/enroll"
    assert (asked.body["nodeId"], asked.body["token"]) == ("pc-1", TOKEN)
    assert (asked.body["address"], asked.body["port"]) == ("192.0.2.7", 9500)
    assert asked.body["machine"]["gpus"][0]["memoryBytes"] is None
    assert not (state / "identity" / "pending-key.json").exists()


def test_the_first_connection_carries_nothing(listener: EnrollServer, state: Path) -> None:
    quick(order_for(listener), state)
    assert (listener.connections, len(listener.asked)) == (2, 1)


def test_one_of_several_hashes_is_enough(listener: EnrollServer, state: Path) -> None:
    other = f"sha256:{'0' * 64}"
    assert quick(order_for(listener, ca_hash=f"{other}, {listener.fleet.ca_hash.upper().replace('SHA', 'sha')}"), state)


def test_another_ca_than_expected_is_not_told_the_token(listener: EnrollServer, state: Path) -> None:
    with pytest.raises(HashDiffers, match="The token was not sent") as caught:
        quick(order_for(listener, ca_hash=Fleet().ca_hash), state)
    assert listener.fleet.ca_hash in str(caught.value)
    assert listener.asked == []
    assert not (state / "identity").exists()


def test_a_ca_that_changes_between_the_connections_is_not_told_the_token(
    listener: EnrollServer, state: Path, fleet: Fleet
) -> None:
    """Who shows the right CA certificate but does not hold its key gets nothing."""
    impostor = Fleet()

    def swap(server: EnrollServer) -> None:
        if server.connections == 2:
            server.leaf = impostor.enroll_leaf()

    listener.before_connection = swap
    with pytest.raises(HashDiffers, match="not the enroll listener"):
        quick(order_for(listener), state)
    assert listener.asked == []


def test_a_node_of_the_fleet_cannot_pose_as_the_enroll_listener(listener: EnrollServer, state: Path) -> None:
    listener.leaf = listener.fleet.node_leaf()
    with pytest.raises(HashDiffers, match="not the enroll listener"):
        quick(order_for(listener), state)
    assert listener.asked == []


def test_the_masters_client_certificate_cannot_pose_as_the_enroll_listener(listener: EnrollServer, state: Path) -> None:
    listener.leaf = listener.fleet.master
    with pytest.raises(HashDiffers):
        quick(order_for(listener), state)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"node_id": "PC 1"}, "--node-id"),
        ({"node_id": "-x"}, "--node-id"),
        ({"port": 70000}, "--port"),
        ({"port": 0}, "--port"),
        ({"address": "x" * 300}, "--address"),
        ({"token": "x" * 300}, "--token"),
        ({"rekey": True, "node_uid": "x" * 100}, "--node-uid"),
    ],
)
def test_an_option_that_cannot_be_right_is_told_before_anything_is_sent(
    listener: EnrollServer, state: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(JoinFailed, match=words) as caught:
        quick(order_for(listener, **changes), state)
    assert "xxx" not in str(caught.value)
    assert listener.connections == 0


def test_a_wrong_clock_is_told_as_one(listener: EnrollServer, state: Path, fleet: Fleet) -> None:
    from datetime import timedelta

    from agent.identity import new_key
    from nodes.pki import certs
    from tests.agent.core.fleet import Leaf, now

    key = new_key()
    past = now() - timedelta(days=800)
    ca = certs.make_ca(fleet.ca_key, past)
    listener.leaf = Leaf(key, certs.issue_enroll(certs.Issuer(ca, fleet.ca_key), key.public_key(), (), past))
    with pytest.raises(JoinFailed, match="check the clock"):
        quick(order_for(listener), state)
    assert listener.asked == []


def test_a_lost_reply_is_asked_for_again_with_the_same_key(listener: EnrollServer, state: Path) -> None:
    listener.answers = [None, None]
    identity = quick(order_for(listener), state)
    assert len(listener.asked) == 3
    keys = {spki_of(x509.load_pem_x509_csr(a.body["csrPem"].encode()).public_key()) for a in listener.asked}  # type: ignore[arg-type]
    assert keys == {identity.spki}


def test_a_master_that_fails_is_asked_again_with_growing_pauses(listener: EnrollServer, state: Path) -> None:
    listener.answers = [(503, {"code": "unavailable", "detail": "x"}, {})] * 4
    pauses: list[float] = []
    with pytest.raises(CannotReach, match="HTTP 503"):
        join(order_for(listener), state, pauses.append)
    assert pauses == [1.0, 2.0, 4.0]
    assert quick(order_for(listener), state).spki
    csrs = {spki_of(x509.load_pem_x509_csr(a.body["csrPem"].encode()).public_key()) for a in listener.asked}  # type: ignore[arg-type]
    assert len(csrs) == 1, "a later run takes up the key of the first"


@pytest.mark.parametrize(
    ("status", "code", "headers", "kind", "words"),
    [
        (403, "enrollment_refused", {}, Refused, "mistyped, used or expired"),
        (429, "rate_limited", {"Retry-After": "17"}, RateLimited, "again in 17 s"),
        (429, "rate_limited", {"Retry-After": "soon"}, RateLimited, "again in a minute"),
        (400, "invalid_request", {}, Refused, "no such thing"),
        (404, "not_found", {}, Refused, "not_found"),
        (413, "payload_too_large", {}, Refused, "payload_too_large"),
    ],
)
def test_each_refusal_is_told_in_words_and_not_tried_again(
    listener: EnrollServer, state: Path, status: int, code: str, headers: dict[str, str], kind: Any, words: str
) -> None:
    listener.answers = [(status, {"code": code, "detail": "no such thing"}, headers)]
    with pytest.raises(kind, match=words) as caught:
        quick(order_for(listener), state)
    assert TOKEN not in str(caught.value)
    assert len(listener.asked) == 1


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
    with pytest.raises(BadAnswer):
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
    with pytest.raises(BadAnswer, match="another key"):
        quick(order_for(listener), state)


def test_a_uid_that_the_certificate_does_not_name_is_refused(listener: EnrollServer, state: Path) -> None:
    _forged(listener, nodeUid="99999999-0000-0000-0000-000000000000")
    with pytest.raises(BadAnswer, match="another node"):
        quick(order_for(listener), state)


def test_a_certificate_that_the_bundle_did_not_sign_is_refused(listener: EnrollServer, state: Path) -> None:
    honest, other = listener.fleet, Fleet()
    listener.enroll_issuer = other.issuer
    with pytest.raises(BadAnswer, match="not signed"):
        quick(order_for(listener), state)
    assert honest.issuer != other.issuer


def test_a_bundle_without_the_pinned_ca_is_refused(listener: EnrollServer, state: Path) -> None:
    other = Fleet()
    listener.enroll_issuer = other.issuer
    _forged(listener, caBundle=[other.ca_pem])
    with pytest.raises(BadAnswer, match="lacks the CA"):
        quick(order_for(listener), state)


def test_a_master_key_that_is_no_fingerprint_is_refused(listener: EnrollServer, state: Path) -> None:
    _forged(listener, masterSpki={"current": "", "next": None})
    with pytest.raises(BadAnswer, match="fingerprint"):
        quick(order_for(listener), state)


def test_a_closed_port_says_what_to_check(state: Path, listener: EnrollServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(CannotReach, match="firewall"):
        quick(order_for(listener, enroll_url=f"https://127.0.0.1:{port}"), state)


def test_a_port_that_does_not_speak_tls_is_told(state: Path, listener: EnrollServer) -> None:
    import threading

    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer() -> None:
            peer, _ = plain.accept()
            peer.recv(100)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            peer.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(CannotReach, match="does not speak TLS"):
            quick(order_for(listener, enroll_url=f"https://127.0.0.1:{plain.getsockname()[1]}"), state)
        thread.join()


def test_a_rekey_keeps_uid_and_fleet_and_takes_a_new_key(listener: EnrollServer, state: Path) -> None:
    before = quick(order_for(listener), state)
    after = quick(order_for(listener, rekey=True, token="id.rekey-secret"), state)
    assert (after.node_uid, after.fleet) == (before.node_uid, before.fleet)
    assert after.spki != before.spki
    assert (listener.asked[-1].path, listener.asked[-1].body["nodeUid"]) == ("/enroll/rekey", UID)


def test_the_fleet_keeps_its_name_when_its_ca_was_rotated(listener: EnrollServer, state: Path, tmp_path: Path) -> None:
    """Engines that run carry it in their labels."""
    before = quick(order_for(listener), state)
    with enroll_server(Fleet(), tmp_path) as rotated:
        after = quick(order_for(rotated, rekey=True, token="id.rekey-secret"), state)
    assert after.fleet == before.fleet


def test_a_rekey_that_fails_leaves_the_old_identity(listener: EnrollServer, state: Path) -> None:
    before = quick(order_for(listener), state)
    listener.answers = [(403, {"code": "enrollment_refused", "detail": ""}, {})]
    with pytest.raises(Refused):
        quick(order_for(listener, rekey=True, token="id.wrong"), state)
    assert IdentityStore(state).load() == before


def test_a_rekey_without_state_needs_the_uid(listener: EnrollServer, state: Path) -> None:
    with pytest.raises(JoinFailed, match="--node-uid"):
        quick(order_for(listener, rekey=True), state)
    assert quick(order_for(listener, rekey=True, node_uid=UID), state).node_uid == UID


def test_a_rekey_answered_for_another_node_is_refused(listener: EnrollServer, state: Path) -> None:
    listener.uid = "99999999-0000-0000-0000-000000000000"
    with pytest.raises(BadAnswer, match="not 7a1f"):
        quick(order_for(listener, rekey=True, node_uid=UID), state)


def test_a_join_that_is_done_is_recognised(listener: EnrollServer, state: Path) -> None:
    identity, store = quick(order_for(listener), state), IdentityStore(state)
    assert existing(store, order_for(listener), claimed=False) == identity
    assert existing(store, order_for(listener, token=""), claimed=False) == identity
    assert existing(store, order_for(listener, token="id.new"), claimed=True) == identity
    assert existing(store, order_for(listener, rekey=True), claimed=True) is None


def test_a_node_that_was_rejected_may_join_with_a_new_token(listener: EnrollServer, state: Path) -> None:
    quick(order_for(listener), state)
    again = order_for(listener, token="id.new")
    assert existing(IdentityStore(state), again, claimed=False) is None
    assert quick(again, state).joined_by != ""


def test_a_machine_in_use_is_not_taken_into_another_fleet(listener: EnrollServer, state: Path) -> None:
    quick(order_for(listener), state)
    elsewhere = dataclasses.replace(order_for(listener), ca_hash=Fleet().ca_hash)
    with pytest.raises(JoinFailed, match="already node pc-1"):
        existing(IdentityStore(state), elsewhere, claimed=True)
    with pytest.raises(JoinFailed, match="is node pc-1"):
        existing(IdentityStore(state), order_for(listener, rekey=True, node_id="pc-2"), claimed=True)


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("https://192.0.2.1:8443", "192.0.2.1:8443"),
        ("https://master.lan", "master.lan:8443"),
        ("https://[2001:db8::1]:9000/enroll", "[2001:db8::1]:9000"),
    ],
)
def test_an_enroll_url_names_host_and_port(url: str, where: str) -> None:
    assert str(read_listener(url)) == where


@pytest.mark.parametrize("url", ["", "http://x:1", "master:8443", "https://", "https://x:port", "https://[::1"])
def test_what_is_no_enroll_url_is_refused(url: str) -> None:
    with pytest.raises(JoinFailed, match="--enroll-url"):
        read_listener(url)


@pytest.mark.parametrize("text", ["", ",", "sha256:", "0" * 64, f"sha256:{'g' * 64}", f"sha256:{'0' * 64},x"])
def test_what_is_no_ca_hash_is_refused(text: str) -> None:
    with pytest.raises(JoinFailed, match="--ca-hash"):
        read_hashes(text)


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
    order = JoinOrder(enroll_url="https://m", ca_hash=fleet.ca_hash, node_id="pc-1", token=TOKEN)
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
        with pytest.raises(BadAnswer):
            _check(_read_answer(status, body, None), order, KEY, fleet.ca, read_hashes(fleet.ca_hash), store, None)
