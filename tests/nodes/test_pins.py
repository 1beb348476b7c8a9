"""Pins inside the handshake, by real sockets: asyncio and blocking callers alike."""

import asyncio
import socket
import ssl

import aiohttp
import pytest
from aiohttp import web

from agent.common import keys
from agent.common.tls_pins import pin, spki_sha256
from nodes.link.transport import client_context
from nodes.pki import certs
from nodes.pki.tls import TlsIdentity, load_identity, trusting_context
from tests.nodes.parts import agent_context, fresh_issuer, node_identity, tls_peer
from tests.nodes.test_certificates import NODE_NAME, UID, master_identity

pytestmark = pytest.mark.unit

ISSUER = fresh_issuer()
BUNDLE = (certs.to_pem(ISSUER.cert),)
KEY = keys.new_key()
SPKI = keys.spki_of(KEY.public_key())
NODE = node_identity(ISSUER, UID, KEY)
MASTER = master_identity(ISSUER)
WRONG = keys.spki_of(keys.new_key().public_key())


async def hello(request):
    return web.Response(text="hello")


@pytest.fixture
def node():
    with tls_peer(hello, agent_context(NODE, BUNDLE)) as peer:
        yield peer


def blocking_get(context, port):
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=NODE_NAME) as tls,
    ):
        tls.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return tls.recv(15)


async def async_get(context, port):
    url = f"https://127.0.0.1:{port}/"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, ssl=context, server_hostname=NODE_NAME) as response,
    ):
        return await response.text()


async def test_the_pinned_node_is_reached_by_both_kinds_of_caller(node):
    context = client_context(MASTER, BUNDLE, frozenset({SPKI}))
    assert (await asyncio.to_thread(blocking_get, context, node.port)).startswith(b"HTTP/1.1 200")
    assert await async_get(context, node.port) == "hello"


async def test_the_next_key_is_accepted_beside_the_current_one(node):
    assert await async_get(client_context(MASTER, BUNDLE, frozenset({WRONG, SPKI})), node.port) == "hello"


async def test_a_wrong_key_fails_inside_the_handshake_and_sees_no_request(node):
    context = client_context(MASTER, BUNDLE, frozenset({WRONG}))
    with pytest.raises(ssl.SSLError, match="not the pinned one"):
        await asyncio.to_thread(blocking_get, context, node.port)
    with pytest.raises(aiohttp.ClientConnectorError) as caught:
        await async_get(context, node.port)
    assert "not the pinned one" in str(caught.value.os_error.args)
    assert node.asked == []


@pytest.mark.parametrize("missing", ["sslobject_class", "sslsocket_class"])
async def test_a_context_with_one_of_the_two_classes_fails_open_for_the_other_caller(node, missing):
    context = trusting_context(BUNDLE)
    load_identity(context, MASTER)
    pin(context, {WRONG}.__contains__)
    setattr(context, missing, getattr(ssl, {"sslobject_class": "SSLObject", "sslsocket_class": "SSLSocket"}[missing]))
    if missing == "sslobject_class":
        assert await async_get(context, node.port) == "hello"
        with pytest.raises(ssl.SSLError):
            await asyncio.to_thread(blocking_get, context, node.port)
    else:
        assert await asyncio.to_thread(blocking_get, context, node.port)
        with pytest.raises(aiohttp.ClientConnectorError):
            await async_get(context, node.port)


async def test_the_right_key_under_another_authority_is_refused(node):
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await async_get(client_context(MASTER, (certs.to_pem(fresh_issuer().cert),), frozenset({SPKI})), node.port)


def test_a_handshake_alone_proves_nothing_about_the_client_s_certificate(node):
    """TLS 1.3: the client has finished before the server looks at its certificate."""
    context = trusting_context(BUNDLE)
    with (
        socket.create_connection(("127.0.0.1", node.port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=NODE_NAME) as tls,
    ):
        assert tls.version() == "TLSv1.3"
        try:
            answer = tls.recv(1)
        except (ssl.SSLError, ConnectionError):
            answer = b""
        assert answer == b""


def test_different_pins_never_share_a_context_and_equal_ones_do():
    one = client_context(MASTER, BUNDLE, frozenset({SPKI}))
    assert client_context(MASTER, BUNDLE, frozenset({SPKI})) is one
    assert client_context(MASTER, BUNDLE, frozenset({WRONG})) is not one
    assert client_context(MASTER, BUNDLE, frozenset({SPKI, WRONG})) is not one


def test_a_context_without_a_pin_cannot_be_made():
    with pytest.raises(ValueError, match="without a pin"):
        client_context(MASTER, BUNDLE, frozenset())


def test_the_system_s_authorities_are_never_trusted():
    context = client_context(MASTER, BUNDLE, frozenset({SPKI}))
    assert len(context.get_ca_certs()) == 1
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED


def test_the_spki_of_a_certificate_is_that_of_its_key():
    assert spki_sha256(certs.from_pem(NODE.chain[0]).public_bytes(certs.Encoding.DER)) == SPKI
    assert TlsIdentity(NODE.chain, NODE.key_pem) == NODE
