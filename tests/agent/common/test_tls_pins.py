"""Pins in a handshake in memory, step by step: who is refused, at which step, with which words."""

import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from agent.common.tls_pins import EXPIRED, NOT_YET_VALID, peer_chain, peer_spki, pin
from nodes.pki import certs
from tests.agent.core.fleet import UID, Fleet, Leaf, now, server_name

pytestmark = pytest.mark.unit

FLEET = Fleet()
NODE = FLEET.node_leaf()
NO_CERTIFICATE = None
OTHER_CA = 20  # X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY


def everybody(_: str) -> bool:
    return True


def server_context(folder: Path, chain: str = "", verify: ssl.VerifyMode = ssl.CERT_REQUIRED) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = NODE.write(folder)
    if chain:
        path.write_bytes(chain.encode() + path.read_bytes().partition(NODE.pem.encode())[2])
    context.load_cert_chain(path)
    context.load_verify_locations(cadata=FLEET.ca_pem)
    context.verify_mode = verify
    return context


def careless_client() -> ssl.SSLContext:
    """A client that accepts every certificate, so that only a pin can refuse it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Handshake:
    """Both ends of one handshake, whose bytes go through memory."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(up, down, server_side=True)
        self.client = client.wrap_bio(down, up, server_hostname=server_name())

    def until_the_server_has_the_certificate(self) -> None:
        """Go on until the next step of the server judges the client."""
        with pytest.raises(ssl.SSLWantReadError):
            self.client.do_handshake()
        with pytest.raises(ssl.SSLWantReadError):
            self.server.do_handshake()
        self.client.do_handshake()

    def complete(self) -> None:
        self.until_the_server_has_the_certificate()
        self.server.do_handshake()


@pytest.fixture
def refusals() -> list[ssl.SSLCertVerificationError]:
    return []


@pytest.fixture
def judged(tmp_path: Path, refusals: list[ssl.SSLCertVerificationError]) -> Callable[[Leaf | None], Handshake]:
    """A function: a handshake just before the pinned server judges that client."""

    def start(shown: Leaf | None) -> Handshake:
        server = server_context(tmp_path, verify=ssl.CERT_OPTIONAL)
        pin(server, FLEET.master.spki.__eq__, refusals.append)
        handshake = Handshake(server, FLEET.client_context(tmp_path, shown))
        handshake.until_the_server_has_the_certificate()
        return handshake

    return start


def made_at(ahead: timedelta) -> Leaf:
    """The master's key in a certificate of another time."""
    key = FLEET.master.key
    return Leaf(key, certs.issue_master_client(FLEET.issuer, key.public_key(), now() + ahead))


def test_the_pinned_client_is_let_in(
    judged: Callable[[Leaf | None], Handshake], refusals: list[ssl.SSLCertVerificationError]
) -> None:
    handshake = judged(FLEET.master)
    handshake.server.do_handshake()
    assert peer_spki(handshake.server) == FLEET.master.spki
    assert refusals == []


def test_a_client_without_a_certificate_is_told_so(judged: Callable[[Leaf | None], Handshake]) -> None:
    with pytest.raises(ssl.SSLError, match="the peer showed no certificate"):
        judged(NO_CERTIFICATE).server.do_handshake()


@pytest.mark.parametrize(
    ("ahead", "code"), [(timedelta(hours=2), NOT_YET_VALID), (timedelta(days=-4000), EXPIRED)], ids=["early", "late"]
)
def test_a_server_sends_the_alert_before_it_fails_for_the_client_s_time(
    judged: Callable[[Leaf | None], Handshake],
    refusals: list[ssl.SSLCertVerificationError],
    ahead: timedelta,
    code: int,
) -> None:
    server = judged(made_at(ahead)).server
    with pytest.raises(ssl.SSLWantReadError):
        server.do_handshake()
    assert [error.verify_code for error in refusals] == [code]
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        server.do_handshake()
    assert caught.value is refusals[0]
    assert len(refusals) == 1, "one refusal is noted once"


def test_a_server_fails_at_once_for_a_client_of_another_authority(
    judged: Callable[[Leaf | None], Handshake], refusals: list[ssl.SSLCertVerificationError]
) -> None:
    handshake = judged(Fleet().master)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake.server.do_handshake()
    assert [error.verify_code for error in refusals] == [OTHER_CA]


def test_a_client_fails_at_once_for_the_server_s_time(
    tmp_path: Path, refusals: list[ssl.SSLCertVerificationError]
) -> None:
    expired = certs.issue_node(FLEET.issuer, NODE.key.public_key(), UID, now() - timedelta(days=4000))
    client = FLEET.client_context(tmp_path, FLEET.master)
    pin(client, everybody, refusals.append)
    handshake = Handshake(server_context(tmp_path, certs.to_pem(expired)), client)
    with pytest.raises(ssl.SSLWantReadError):
        handshake.client.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        handshake.server.do_handshake()
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake.client.do_handshake()
    assert [error.verify_code for error in refusals] == [EXPIRED]


def test_a_socket_that_does_not_wait_waits_only_when_it_is_told_to(tmp_path: Path) -> None:
    """As every other TLS socket does."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.settimeout(5)
    client, server = FLEET.client_context(tmp_path, None), server_context(tmp_path, verify=ssl.CERT_NONE)
    pin(client, NODE.spki.__eq__)
    tls = client.wrap_socket(near, server_hostname=server_name(), do_handshake_on_connect=False)
    with tls, far, ThreadPoolExecutor(1) as other_end:
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        served = other_end.submit(server.wrap_socket, far, server_side=True)
        tls.do_handshake(block=True)
        assert peer_spki(tls) == NODE.spki
        served.result(5).close()


def test_a_certificate_that_only_openssl_can_read_is_refused(tmp_path: Path) -> None:
    """DER has one way to write "true"; OpenSSL accepts others."""
    der = NODE.cert.public_bytes(Encoding.DER).replace(b"\x01\x01\xff", b"\x01\x01\x01")
    client = careless_client()
    pin(client, everybody)
    handshake = Handshake(server_context(tmp_path, ssl.DER_cert_to_PEM_cert(der)), client)
    with pytest.raises(ssl.SSLError, match="the peer's certificate cannot be read"):
        handshake.complete()


def test_the_chain_is_what_the_server_sent_in_its_order(tmp_path: Path) -> None:
    handshake = Handshake(
        server_context(tmp_path, NODE.pem + FLEET.ca_pem, ssl.CERT_NONE), FLEET.client_context(tmp_path, None)
    )
    handshake.complete()
    sent = tuple(certificate.public_bytes(Encoding.DER) for certificate in (NODE.cert, FLEET.ca))
    assert peer_chain(handshake.client) == sent
    assert peer_chain(handshake.server) == (), "the client sent none"


def test_the_chain_is_found_where_either_python_has_it() -> None:
    """Since 3.13 by a method of its own, in DER; before that by an inner one, as certificates or None."""
    assert peer_chain(SimpleNamespace(get_unverified_chain=lambda: [b"leaf", b"ca"])) == (b"leaf", b"ca")
    certificate = SimpleNamespace(public_bytes={2: b"der"}.__getitem__)
    inner = SimpleNamespace(get_unverified_chain=lambda: [certificate])
    assert peer_chain(SimpleNamespace(_sslobj=inner)) == (b"der",)
    assert peer_chain(SimpleNamespace(_sslobj=SimpleNamespace(get_unverified_chain=lambda: None))) == ()


def test_a_connection_without_tls_or_without_a_certificate_has_no_key(tmp_path: Path) -> None:
    handshake = Handshake(server_context(tmp_path, verify=ssl.CERT_NONE), FLEET.client_context(tmp_path, None))
    handshake.complete()
    assert peer_spki(handshake.client) == NODE.spki
    assert peer_spki(handshake.server) is None
    assert peer_spki(None) is None
