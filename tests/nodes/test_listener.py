"""The enroll listener over real sockets."""

import asyncio
import contextlib
import gzip
import json
import logging
import socket
import ssl

import pytest
from cryptography import x509

from agent.common import keys
from agent.enroll import peer_chain
from agent.wire.base import ENROLL_SERVER_NAME
from agent.wire.enroll import EnrollResponse
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from nodes import fencing
from nodes.enrollment import listener as listener_module
from nodes.enrollment import tokens
from nodes.enrollment.listener import BODY_LIMIT, EnrollListener
from nodes.link import client
from nodes.models import JoinToken, MasterIdentity, Node
from nodes.pki import authority, certs, store
from nodes.pki.tls import trusting_context
from tests.nodes.parts import OPERATOR, fresh_issuer, request_for
from tests.waiting import stays_async

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("live_master")]

TIME_OUT = 10.0


@pytest.fixture
def limits():
    return {"enroll_rate_per_minute": 1000, "enroll_global_rate_per_minute": 10_000}


@pytest.fixture
async def serving(live_master, limits):
    one = EnrollListener(settings().model_copy(update={"bind": "127.0.0.1", "enroll_port": 1, **limits}))
    one._port = 0
    await one.start()
    yield one
    await one.stop()


def client_context():
    return trusting_context(store.trust().bundle)


async def bundle_context():
    return await client.in_thread(client_context)


async def raw(serving, data: bytes, *, source: str = "127.0.0.1", context=None) -> bytes:
    """Send `data`, read until the other side closes."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1",
        serving.port,
        ssl=context or await bundle_context(),
        server_hostname=ENROLL_SERVER_NAME,
        local_addr=(source, 0),
    )
    try:
        writer.write(data)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), TIME_OUT)
    except (ConnectionError, ssl.SSLError):
        return b""
    finally:
        writer.transport.abort()


async def ask(serving, body: bytes, path: str = "/enroll", method: str = "POST", *, source="127.0.0.1", headers=""):
    """Status, headers as text, and the JSON of the answer."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    data = f"{head}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body
    answer = await raw(serving, data, source=source)
    top, _, rest = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), top.decode(), json.loads(rest) if rest else None


async def made_request(node_id="pc-1", **also):
    made = await client.in_thread(lambda: tokens.create(node_id, actor=OPERATOR))
    request = request_for(made.token, node_id, keys.new_key(), address="192.0.2.4", **also)
    return made.token, request.model_dump_json(by_alias=True).encode()


async def test_a_machine_enrolls(serving):
    _, body = await made_request()
    status, head, answer = await ask(serving, body)
    assert status == 200
    assert "no-store" in head
    assert EnrollResponse.model_validate(answer).chain[0].startswith("-----BEGIN CERTIFICATE-----")
    assert await client.in_thread(Node.objects.count) == 1
    assert (await ask(serving, body))[2] == answer


async def test_the_chain_carries_the_root_whose_hash_is_in_the_join_command(serving):
    def fetch():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", serving.port), timeout=5) as plain,
            context.wrap_socket(plain) as tls,
        ):
            return peer_chain(tls)

    chain = await client.in_thread(fetch)
    hashes = await client.in_thread(authority.ca_hashes)
    assert f"sha256:{certs.fingerprint(x509.load_der_x509_certificate(chain[-1]))}" in hashes


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/enroll"),
        ("PUT", "/enroll"),
        ("DELETE", "/enroll"),
        ("HEAD", "/enroll"),
        ("OPTIONS", "/enroll"),
        ("POST", "/"),
        ("POST", "/enroll/"),
        ("POST", "/enroll/rekey/"),
        ("POST", "/Enroll"),
        ("POST", "//enroll"),
        ("POST", "/enroll/../api/nodes"),
        ("GET", "/api/status"),
        ("GET", "/agent/bundles"),
        ("GET", "/healthz"),
    ],
)
async def test_everything_else_is_404(serving, method, path):
    status, _, answer = await ask(serving, b"", path, method)
    assert status == 404
    assert (answer or {}).get("code") == (None if method == "HEAD" else "not_found")


async def test_a_wrong_token_gets_the_one_generic_refusal(serving):
    token, body = await made_request()
    wrong = body.replace(token.split(".")[1].encode(), b"A" * 43)
    status, _, answer = await ask(serving, wrong)
    assert (status, answer["code"]) == (403, "enrollment_refused")
    unknown = body.replace(token.split(".")[0].encode(), b"0" * 16)
    assert (await ask(serving, unknown))[2] == answer
    assert (await ask(serving, body, "/enroll/rekey"))[2] == answer
    assert (await ask(serving, body))[0] == 200


async def test_bad_requests_are_400_and_burn_no_token(serving):
    token, body = await made_request()
    bad = [
        b"",
        b"{}",
        b"nonsense",
        b"[" * 60_000,
        body[:-1],
        body.replace(b"BEGIN CERTIFICATE", b"BEGIN NONSENSE"),
        body.replace(b"192.0.2.4", b"127.0.0.1"),
        body.replace(b'"pc-1"', b'"pc-\\u0000"', 1),
        body.replace(b"9443", b"9" * 400, 1),
    ]
    answers = [await ask(serving, item) for item in bad]
    assert [(status, answer["code"]) for status, _, answer in answers] == [(400, "invalid_request")] * len(bad)
    secret = token.split(".")[1]
    assert all(secret not in json.dumps(answer) for _, _, answer in answers)
    used = await client.in_thread(lambda: JoinToken.objects.get().used_at)
    assert used is None


async def test_a_body_has_at_most_64_kib_whether_it_says_so_or_not(serving):
    status, _, answer = await ask(serving, b"x" * (BODY_LIMIT + 1))
    assert (status, answer["code"]) == (413, "payload_too_large")
    head = b"POST /enroll HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    assert b" 413 " in await raw(serving, head + chunk * 5)
    announced = b"POST /enroll HTTP/1.1\r\nHost: x\r\nContent-Length: 209715200\r\n\r\n"
    assert b" 413 " in await raw(serving, announced)
    padded = b" " * (BODY_LIMIT - 2) + b"{}"
    assert (await ask(serving, padded))[0] == 400


async def test_a_compressed_body_is_not_unpacked(serving):
    body = gzip.compress(b" " * 50_000_000)
    assert len(body) < BODY_LIMIT
    status, _, _ = await ask(serving, body, headers="Content-Encoding: gzip\r\n")
    assert status == 400


@pytest.mark.parametrize("limits", [{"enroll_rate_per_minute": 3, "enroll_global_rate_per_minute": 1000}])
async def test_one_peer_is_slowed_down_by_its_socket_address_and_others_are_not(serving):
    for n in range(3):
        status, _, _ = await ask(serving, b"{}", headers=f"X-Forwarded-For: 192.0.2.{n}\r\n")
        assert status == 400
    status, head, answer = await ask(serving, b"{}", headers="X-Forwarded-For: 203.0.113.9\r\n")
    assert (status, answer["code"]) == (429, "rate_limited")
    assert "Retry-After: " in head
    _, body = await made_request()
    assert (await ask(serving, body, source="127.0.0.2"))[0] == 200
    assert (await ask(serving, b"", "/elsewhere"))[0] == 404


@pytest.mark.parametrize("limits", [{"enroll_rate_per_minute": 5, "enroll_global_rate_per_minute": 20}])
async def test_all_peers_together_are_slowed_down_too(serving):
    statuses = [(await ask(serving, b"{}", source=f"127.0.3.{n}"))[0] for n in range(1, 25)]
    assert statuses == [400] * 20 + [429] * 4


async def test_a_good_machine_joins_while_64_connections_say_nothing(serving):
    silent = [await asyncio.open_connection("127.0.0.1", serving.port) for _ in range(64)]
    context = await bundle_context()
    idle = [
        await asyncio.open_connection("127.0.0.1", serving.port, ssl=context, server_hostname=ENROLL_SERVER_NAME)
        for _ in range(16)
    ]
    try:
        _, body = await made_request()
        async with asyncio.timeout(3):
            assert (await ask(serving, body))[0] == 200
    finally:
        for _, writer in [*silent, *idle]:
            writer.transport.abort()


async def test_connections_that_do_not_shake_hands_or_do_not_ask_are_ended(live_master, monkeypatch):
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 0.3)
    monkeypatch.setattr(listener_module, "CONNECTION_SECONDS", 0.6)
    one = EnrollListener(settings().model_copy(update={"enroll_port": 1}))
    one._port = 0
    await one.start()
    try:
        silent, first = await asyncio.open_connection("127.0.0.1", one.port)
        idle, second = await asyncio.open_connection(
            "127.0.0.1", one.port, ssl=await bundle_context(), server_hostname=ENROLL_SERVER_NAME
        )
        for reader, writer in ((silent, first), (idle, second)):
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.transport.abort()
    finally:
        await one.stop()


async def test_a_body_that_does_not_come_is_not_waited_for(serving, monkeypatch):
    monkeypatch.setattr(listener_module, "BODY_SECONDS", 0.2)
    answer = await raw(serving, b"POST /enroll HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{")
    assert b" 400 " in answer


async def test_a_fenced_master_says_try_again_and_not_why(serving):
    _, body = await made_request()
    await client.in_thread(lambda: fencing.fence("Node pc-7 obeys another master."))
    status, head, answer = await ask(serving, body)
    assert (status, answer["code"]) == (503, "unavailable")
    assert "Retry-After" in head
    assert "pc-7" not in answer["detail"]


async def test_an_unexpected_error_shows_nothing_of_itself(serving, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(listener_module.join, "enroll", broken)
    _, body = await made_request()
    status, _, answer = await ask(serving, body)
    assert status == 503
    assert "secret" not in json.dumps(answer)


async def shown_certificate(serving):
    _, writer = await asyncio.open_connection(
        "127.0.0.1", serving.port, ssl=await bundle_context(), server_hostname=ENROLL_SERVER_NAME
    )
    try:
        return writer.get_extra_info("ssl_object").getpeercert(True)
    finally:
        writer.transport.abort()


def reissue(issuer=None, key=None):
    row = MasterIdentity.objects.get()
    issuer = issuer or store.issuer()
    key = key or keys.key_from_pem(store.enroll_identity(row, ()).key_pem)
    hosts = sorted(certs.hosts_of(certs.from_pem(row.enroll_cert_pem)))
    pem = certs.to_pem(certs.issue_enroll(issuer, key.public_key(), hosts, clock.now()))
    MasterIdentity.objects.update(enroll_cert_pem=pem)


async def test_a_new_certificate_is_shown_without_a_restart_and_without_a_refused_handshake(serving):
    before = await shown_certificate(serving)
    assert not await serving.refresh_identity()
    await client.in_thread(reissue)
    shaking = asyncio.create_task(keep_shaking(serving))
    assert await serving.refresh_identity()
    await stays_async(lambda: not shaking.done(), "no handshake is refused", 0.1)
    shaking.cancel()
    [ended] = await asyncio.gather(shaking, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError)
    assert await shown_certificate(serving) != before


async def keep_shaking(serving):
    while True:
        await shown_certificate(serving)


async def test_a_certificate_that_does_not_serve_is_never_shown(serving):
    before = await shown_certificate(serving)
    await client.in_thread(lambda: reissue(issuer=fresh_issuer()))
    assert not await serving.refresh_identity()
    assert await shown_certificate(serving) == before
    await client.in_thread(lambda: reissue(key=keys.new_key()))
    assert not await serving.refresh_identity()
    assert await shown_certificate(serving) == before


async def test_a_taken_port_is_an_os_error(serving):
    second = EnrollListener(settings().model_copy(update={"enroll_port": serving.port}))
    with pytest.raises(OSError, match="in use"):
        await second.start()
    await second.stop()


async def test_older_protocols_are_not_spoken(serving):
    context = await bundle_context()
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", serving.port, ssl=context, server_hostname=ENROLL_SERVER_NAME)


@pytest.mark.parametrize(
    "data",
    [
        b"POST /enroll HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /enroll HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 20_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00 nonsense\r\n\r\n",
    ],
)
async def test_what_is_no_http_gets_a_400_and_leaves_no_line_in_the_log(serving, caplog, data):
    with caplog.at_level(logging.INFO):
        assert b" 400 " in (await raw(serving, data)).partition(b"\r\n")[0]
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
