"""TLS of port 9443: the peers that it admits, and the change of its certificate while it is open."""

import asyncio
import dataclasses
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from agent.common.keys import key_to_pem, new_key
from agent.identity import AgentIdentityBroken, Identity
from agent.server import serve
from agent.server.tls import NO_CHECK_TIME, inner_context
from agent.wire.enroll import MasterSpki
from tests.agent.core.conftest import Agent, Master
from tests.agent.core.fleet import UID, Fleet, Leaf, server_name
from tests.waiting import until_async

pytestmark = pytest.mark.unit


async def _is_let_in(master: Master) -> bool:
    try:
        return (await master.get("/info")).status == 200
    except (aiohttp.ClientError, ssl.SSLError, ConnectionError):
        return False


async def test_the_pinned_master_is_let_in(agent: Agent) -> None:
    assert await _is_let_in(agent.new_master(agent.fleet.master))


async def test_a_master_of_the_same_ca_with_another_key_is_stopped_in_the_handshake(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    """A stolen CA key alone commands nothing, and its use is seen."""
    thief = agent.fleet.new_master()
    assert not await _is_let_in(agent.new_master(thief))
    assert thief.spki in caplog.text


async def test_nobody_is_let_in_without_a_certificate(agent: Agent) -> None:
    assert not await _is_let_in(agent.new_master(None))


async def test_a_master_of_another_ca_is_stopped(agent: Agent) -> None:
    assert not await _is_let_in(agent.new_master(Fleet().master))


async def test_a_certificate_of_another_ca_with_the_pinned_key_is_stopped(agent: Agent) -> None:
    from nodes.pki import certs
    from tests.agent.core.fleet import now

    key = agent.fleet.master.key
    forged = certs.issue_master_client(Fleet().issuer, key.public_key(), now())
    assert not await _is_let_in(agent.new_master(Leaf(key, forged)))


async def test_a_node_cannot_command_another_node(agent: Agent) -> None:
    """A node's certificate is of the same CA, but good for serving alone, even with the pinned key in it."""
    assert not await _is_let_in(agent.new_master(agent.fleet.node_leaf(key=agent.fleet.master.key)))


async def test_the_agent_shows_the_name_of_its_uid_and_no_address(agent: Agent) -> None:
    context = agent.fleet.client_context(agent.folder, agent.fleet.master)
    for name in ("127.0.0.1", server_name("0" * 32)):
        master = Master(agent.server.port, context, name)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await master.get("/info")
        await master.session.close()


async def test_tls_older_than_1_3_is_refused(agent: Agent) -> None:
    context = agent.fleet.client_context(agent.folder, agent.fleet.master)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    master = Master(agent.server.port, context)
    assert not await _is_let_in(master)
    await master.session.close()


async def test_a_session_cannot_be_resumed(agent: Agent) -> None:
    def resumable() -> bool:
        context = agent.fleet.client_context(agent.folder, agent.fleet.master)
        with (
            socket.create_connection(("127.0.0.1", agent.server.port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=server_name()) as tls,
        ):
            tls.sendall(b"GET /agent/v1/info HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            while tls.recv(4096):
                pass
            return bool(tls.session and tls.session.has_ticket)

    assert not await asyncio.to_thread(resumable)


async def test_a_silent_connection_is_cut(agent: Agent) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.server.port)
    assert await asyncio.wait_for(reader.read(), serve.HANDSHAKE_SECONDS + 3) == b""
    writer.close()


async def test_silent_connections_keep_nobody_else_out(agent: Agent) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", agent.server.port) for _ in range(64)]
    assert await asyncio.wait_for(_is_let_in(agent.new_master(agent.fleet.master)), 2)
    for _, writer in silent:
        writer.close()


async def test_a_rekey_shows_the_new_key_and_ends_old_connections(agent: Agent) -> None:
    master = agent.new_master(agent.fleet.master)
    before = (await master.get("/info")).body["spkiSha256"]
    fresh = agent.fleet.identity()
    agent.store.install(fresh)
    async with master.events() as stream:
        assert stream.status == 403
    open_before = agent.server.connections
    assert open_before
    assert agent.server.take_identity()
    assert not agent.server.take_identity()
    await until_async(lambda: agent.server.connections == 0, "the old connections to end")
    after = (await master.get("/info")).body["spkiSha256"]
    assert before != after == fresh.spki


async def test_a_master_key_that_is_pinned_no_more_is_shut_out(agent: Agent) -> None:
    old, new = agent.new_master(agent.fleet.master), agent.fleet.new_master()
    assert await _is_let_in(old)
    agent.store.install(agent.fleet.identity(master=new))
    agent.server.take_identity()
    assert not await _is_let_in(old)
    assert await _is_let_in(agent.new_master(new))


async def test_both_pinned_keys_are_let_in_while_the_master_changes_its_key(agent: Agent) -> None:
    new = agent.fleet.new_master()
    both = MasterSpki(current=agent.fleet.master.spki, next=new.spki)
    agent.store.install(dataclasses.replace(agent.fleet.identity(), master=both))
    agent.server.take_identity()
    assert await _is_let_in(agent.new_master(agent.fleet.master))
    assert await _is_let_in(agent.new_master(new))


async def test_a_connection_from_before_is_refused_on_its_next_request(agent: Agent) -> None:
    """Without the check per request it would outlive the pins that let it in."""
    master = agent.new_master(agent.fleet.master)
    assert await _is_let_in(master)
    agent.server.tls.swap(agent.fleet.identity(master=agent.fleet.new_master()))
    reply = await master.get("/info")
    assert (reply.status, reply.body["code"], reply.headers["Connection"]) == (403, "not_approved", "close")


async def test_an_identity_of_another_node_is_not_taken_up(agent: Agent) -> None:
    agent.store.install(agent.fleet.identity("11111111-2222-3333-4444-555555555555"))
    with pytest.raises(AgentIdentityBroken, match="restart"):
        agent.server.take_identity()
    assert not agent.server.take_identity()
    assert await _is_let_in(agent.new_master(agent.fleet.master))


async def test_fifty_swaps_of_which_some_are_broken_fail_no_handshake(agent: Agent) -> None:
    other = Fleet()
    failures = refused = 0
    for number in range(50):
        fresh = agent.fleet.identity()
        if number % 10 == 9:
            # a certificate that the bundle does not lead to: only a handshake shows it
            fresh = dataclasses.replace(other.identity(), ca_bundle=(agent.fleet.ca_pem,))
        agent.store.install(fresh)
        try:
            agent.server.take_identity()
        except AgentIdentityBroken:
            refused += 1
        master = agent.new_master(agent.fleet.master)
        failures += not await _is_let_in(master)
        await master.session.close()
    assert (failures, refused) == (0, 5)


def test_a_torn_pair_is_no_identity(identity: Identity) -> None:
    with pytest.raises(AgentIdentityBroken, match="another key"):
        dataclasses.replace(identity, key_pem=key_to_pem(new_key()))


async def test_an_expired_certificate_is_served_for_a_return_by_pin_alone(agent: Agent) -> None:
    from datetime import timedelta

    from nodes.pki import certs
    from tests.agent.core.fleet import now

    key = new_key()
    fleet = agent.fleet
    old = certs.issue_node(fleet.issuer, key.public_key(), UID, now() - timedelta(days=200))
    identity = dataclasses.replace(fleet.identity(), key_pem=key_to_pem(key), chain=(certs.to_pem(old),))
    agent.store.install(identity)
    assert agent.server.take_identity()
    assert not await _is_let_in(agent.new_master(fleet.master))
    context = fleet.client_context(agent.folder, fleet.master)
    context.verify_flags |= NO_CHECK_TIME
    returning = Master(agent.server.port, context)
    assert (await returning.get("/info")).body["certNotAfter"] < now().isoformat()
    await returning.session.close()


def test_the_key_never_meets_the_disk_when_a_context_is_made(
    identity: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []
    load: Callable[..., None] = ssl.SSLContext.load_cert_chain
    monkeypatch.setattr(
        ssl.SSLContext, "load_cert_chain", lambda self, path, *rest: (paths.append(path), load(self, path, *rest))[0]
    )
    inner_context(identity)
    assert all(path.startswith("/proc/self/fd/") for path in paths)
    assert len(paths) == 1
