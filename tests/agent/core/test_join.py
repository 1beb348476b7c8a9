"""Joining: what is sent to whom, what each failure says, and what survives it."""

import dataclasses
import socket
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from agent.common.keys import new_key, spki_of
from agent.enroll import (
    CannotReach,
    EnrollRateLimited,
    EnrollRefused,
    HashDiffers,
    JoinFailed,
    existing,
    join,
    read_endpoint,
    read_hashes,
)
from agent.identity import IdentityStore, fleet_id
from agent.wire.enroll import GpuSummary, MachineSummary
from tests.agent.core.fleet import UID, Fleet
from tests.agent.core.joining import TOKEN, order_for, quick
from tests.agent.core.listener import EnrollServer

pytestmark = pytest.mark.unit


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
    """A listener with the right CA certificate but without its key receives nothing."""
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
        (403, "enrollment_refused", {}, EnrollRefused, "wrong, used, expired"),
        (429, "rate_limited", {"Retry-After": "17"}, EnrollRateLimited, "again in 17 s"),
        (429, "rate_limited", {"Retry-After": "soon"}, EnrollRateLimited, "again in a minute"),
        (400, "invalid_request", {}, EnrollRefused, "no such thing"),
        (404, "not_found", {}, EnrollRefused, "not_found"),
        (413, "payload_too_large", {}, EnrollRefused, "payload_too_large"),
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
        with pytest.raises(CannotReach, match="is not an enroll listener"):
            quick(order_for(listener, enroll_url=f"https://127.0.0.1:{plain.getsockname()[1]}"), state)
        thread.join()


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
    assert str(read_endpoint(url)) == where


@pytest.mark.parametrize("url", ["", "http://x:1", "master:8443", "https://", "https://x:port", "https://[::1"])
def test_what_is_no_enroll_url_is_refused(url: str) -> None:
    with pytest.raises(JoinFailed, match="--enroll-url"):
        read_endpoint(url)


@pytest.mark.parametrize("text", ["", ",", "sha256:", "0" * 64, f"sha256:{'g' * 64}", f"sha256:{'0' * 64},x"])
def test_what_is_no_ca_hash_is_refused(text: str) -> None:
    with pytest.raises(JoinFailed, match="--ca-hash"):
        read_hashes(text)
