"""A node's key is changed while it serves: staged, shown on trial, put into use by the first request over it."""

import ssl
from collections.abc import Awaitable, Callable
from datetime import timedelta

import aiohttp
import pytest

from agent.identity import IdentityStore
from agent.server import tls
from agent.wire.enroll import MasterSpki
from agent.wire.pki import CsrResponse, PkiView
from nodes.pki import certs
from nodes.pki.signing_requests import csr_public_key
from tests.agent.core.conftest import FIRST_CLAIM, Agent, Master
from tests.agent.core.fleet import UID, Fleet, now, server_name
from tests.waiting import pause_async

pytestmark = pytest.mark.unit

StartAgent = Callable[[], Awaitable[Agent]]


async def _csr(master: Master, rotation: str = "op-rotate", **more: str) -> CsrResponse:
    reply = await master.change("POST", "/pki/csr", {"rotationId": rotation}, **more)
    assert reply.status == 200, reply.body
    return CsrResponse.model_validate(reply.body)


def _order(agent: Agent, csr: CsrResponse, *, fleet: Fleet | None = None, uid: str = UID, at: timedelta = timedelta()):
    issuer = (fleet or agent.fleet).issuer
    leaf = certs.issue_node(issuer, csr_public_key(csr.csr_pem), uid, now() + at)
    return {
        "rotationId": csr.rotation_id,
        "chain": [certs.to_pem(leaf)],
        "caBundle": [(fleet or agent.fleet).ca_pem],
    }


async def _view(master: Master) -> PkiView:
    return PkiView.model_validate((await master.get("/pki")).body)


async def _install(agent: Agent, master: Master, rotation: str = "op-rotate") -> CsrResponse:
    csr = await _csr(master, rotation)
    reply = await master.change("PUT", "/pki/certificate", _order(agent, csr))
    assert reply.status == 200, reply.body
    return csr


async def test_the_first_request_over_the_new_certificate_puts_it_into_use(agent: Agent, master: Master) -> None:
    before = agent.store.load()
    csr = await _install(agent, master)
    assert (await _view(master)).spki_sha256 == before.spki  # an old connection changes nothing
    assert (await _view(master)).next_spki_sha256 == csr.spki_sha256
    assert agent.store.load() == before
    fresh = agent.new_master(agent.fleet.master)
    info = (await fresh.get("/info")).body
    assert (info["spkiSha256"], info["nextSpkiSha256"]) == (csr.spki_sha256, None)
    after = agent.store.load()
    assert (after.spki, after.node_uid, after.fleet) == (csr.spki_sha256, before.node_uid, before.fleet)
    assert agent.store.load_next() is None
    assert not (agent.config.state_dir / "identity" / "rotation-key.json").exists()
    # The old connection goes on: this agent did not lose its key, it got another one.
    assert (await master.get("/status")).status == 200


async def test_the_same_rotation_gets_the_same_key_over_a_restart(start_agent: StartAgent) -> None:
    agent = await start_agent()
    master = agent.new_master(agent.fleet.master)
    await master.claim()
    csr = await _csr(master)
    agent = await start_agent()
    master = agent.new_master(agent.fleet.master)
    again = await _csr(master, operation_id="another-operation-id")
    assert again.spki_sha256 == csr.spki_sha256
    assert (await _csr(master, "op-other")).spki_sha256 != csr.spki_sha256


async def test_after_a_restart_the_old_key_is_shown_until_the_certificate_comes_again(start_agent: StartAgent) -> None:
    agent = await start_agent()
    master = agent.new_master(agent.fleet.master)
    await master.claim()
    csr = await _csr(master)
    order = _order(agent, csr)
    assert (await master.change("PUT", "/pki/certificate", order)).status == 200
    before = agent.store.load()
    agent = await start_agent()
    master = agent.new_master(agent.fleet.master)
    info = (await master.get("/info")).body
    assert (info["spkiSha256"], info["nextSpkiSha256"]) == (before.spki, csr.spki_sha256)
    assert (await master.change("PUT", "/pki/certificate", order, operation_id="again")).status == 200
    assert (await agent.new_master(agent.fleet.master).get("/info")).body["spkiSha256"] == csr.spki_sha256
    # Once more, after the rotation: done already.
    late = agent.new_master(agent.fleet.master)
    done = await late.change("PUT", "/pki/certificate", order, operation_id="once-more")
    assert (done.status, done.body["spkiSha256"]) == (200, csr.spki_sha256)


async def test_a_certificate_that_nobody_takes_is_not_shown_for_ever(
    agent: Agent, master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls.TlsTerminator.offer, "__defaults__", (0.3,))
    before = agent.store.load()
    await _install(agent, master)
    await pause_async(0.4)  # a connection that sees the new certificate would take it
    assert (await agent.new_master(agent.fleet.master).get("/info")).body["spkiSha256"] == before.spki


async def test_an_aborted_rotation_leaves_the_old_key_and_nothing_else(agent: Agent, master: Master) -> None:
    before = agent.store.load()
    await _install(agent, master)
    kept = await master.change("DELETE", "/pki/next", {"rotationId": "op-other"})
    assert kept.body["nextSpkiSha256"] is not None
    gone = await master.change("DELETE", "/pki/next", {"rotationId": "op-rotate"})
    assert (gone.status, gone.body["nextSpkiSha256"]) == (200, None)
    assert (await agent.new_master(agent.fleet.master).get("/info")).body["spkiSha256"] == before.spki
    assert len(list((agent.config.state_dir / "identity").glob("id-*"))) == 1
    assert (await master.change("PUT", "/pki/certificate", _order(agent, await _csr(master, "op-new")))).status == 200


async def test_a_certificate_without_its_key_here_says_so(agent: Agent, master: Master) -> None:
    csr = await _csr(master)
    order = _order(agent, csr) | {"rotationId": "op-lost"}
    reply = await master.change("PUT", "/pki/certificate", order)
    assert (reply.status, reply.body["code"]) == (409, "not_staged")


@pytest.mark.parametrize("what", ["another CA", "another node", "another key", "torn", "clock"])
async def test_a_certificate_that_would_not_serve_is_refused_and_changes_nothing(
    agent: Agent, master: Master, what: str
) -> None:
    before = agent.store.load()
    csr = await _csr(master)
    order = _order(agent, csr)
    if what == "another CA":
        order |= {"chain": _order(agent, csr, fleet=Fleet())["chain"]}
    elif what == "another node":
        order = _order(agent, csr, uid="00000000-0000-0000-0000-00000000dead")
    elif what == "another key":
        order |= {"chain": [agent.fleet.node_leaf().pem]}
    elif what == "torn":
        order |= {"chain": [order["chain"][0][:300]]}
    else:
        order = _order(agent, csr, at=timedelta(hours=2))
    reply = await master.change("PUT", "/pki/certificate", order)
    assert (reply.status, reply.body["code"]) == (400, "invalid_request")
    if what == "clock":
        assert "valid from" in reply.body["detail"]
        assert "clock says" in reply.body["detail"]
    assert agent.store.load() == before
    assert agent.store.load_next() is None
    assert (await agent.new_master(agent.fleet.master).get("/info")).body["spkiSha256"] == before.spki


async def test_trust_is_replaced_at_once_and_kept(start_agent: StartAgent, fleet: Fleet) -> None:
    agent = await start_agent()
    master = agent.new_master(fleet.master)
    await master.claim()
    other = Fleet()
    both = {
        "caBundle": [fleet.ca_pem, other.ca_pem],
        "masterSpki": {"current": fleet.master.spki, "next": other.master.spki},
    }
    reply = await master.change("PUT", "/pki/trust", both)
    assert reply.status == 200
    newcomer = Master(agent.server.port, _context(fleet, other, agent))
    try:
        info = (await newcomer.get("/info")).body
        assert info["trustBundleHash"] == reply.body["trustBundleHash"] == agent.store.load().trust_bundle_hash
    finally:
        await newcomer.session.close()
    agent = await start_agent()
    assert agent.store.load().master == MasterSpki(current=fleet.master.spki, next=other.master.spki)


def _context(trusted: Fleet, shown: Fleet, agent: Agent) -> ssl.SSLContext:
    context = trusted.client_context(agent.folder, None)
    context.load_cert_chain(shown.master.write(agent.folder))
    return context


async def test_a_trust_change_keeps_the_certificate_that_waits(agent: Agent, master: Master) -> None:
    csr = await _install(agent, master)
    other = Fleet()
    trust = {"caBundle": [agent.fleet.ca_pem, other.ca_pem], "masterSpki": {"current": agent.fleet.master.spki}}
    assert (await master.change("PUT", "/pki/trust", trust)).body["nextSpkiSha256"] == csr.spki_sha256
    staged = agent.store.load_next()
    assert staged is not None
    assert len(staged[1].ca_bundle) == 2
    reply = await master.change("PUT", "/pki/certificate", _order(agent, csr) | {"caBundle": trust["caBundle"]})
    assert reply.status == 200
    after = (await agent.new_master(agent.fleet.master).get("/info")).body
    assert after["spkiSha256"] == csr.spki_sha256
    assert after["trustBundleHash"] == staged[1].trust_bundle_hash


@pytest.mark.parametrize("what", ["its own CA", "its own key", "the node's CA"])
async def test_a_master_cannot_lock_itself_out(agent: Agent, master: Master, what: str) -> None:
    other = Fleet()
    trust = {"caBundle": [agent.fleet.ca_pem], "masterSpki": {"current": agent.fleet.master.spki}}
    if what == "its own key":
        trust["masterSpki"] = {"current": other.master.spki}
    else:
        trust["caBundle"] = [other.ca_pem]
    before = agent.store.load()
    reply = await master.change("PUT", "/pki/trust", trust)
    assert (reply.status, reply.body["code"]) == (400, "invalid_request")
    assert agent.store.load() == before
    assert (await agent.new_master(agent.fleet.master).get("/info")).status == 200


async def test_a_connection_of_a_ca_that_is_trusted_no_more_ends(agent: Agent, master: Master) -> None:
    other = Fleet()
    both = {
        "caBundle": [agent.fleet.ca_pem, other.ca_pem],
        "masterSpki": {"current": agent.fleet.master.spki, "next": other.master.spki},
    }
    assert (await master.change("PUT", "/pki/trust", both)).status == 200
    newcomer = Master(agent.server.port, _context(agent.fleet, other, agent))
    try:
        # The node's own certificate must be of a CA that stays.
        csr = await _csr(newcomer)
        order = _order(agent, csr, fleet=other) | {"caBundle": both["caBundle"]}
        assert (await newcomer.change("PUT", "/pki/certificate", order)).status == 200
        reborn = Master(agent.server.port, _context(other, other, agent))
        try:
            assert (await reborn.get("/info")).body["spkiSha256"] == csr.spki_sha256
            only = {"caBundle": [other.ca_pem], "masterSpki": {"current": other.master.spki, "next": None}}
            assert (await reborn.change("PUT", "/pki/trust", only)).status == 200
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await agent.new_master(agent.fleet.master).get("/info")
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await master.get("/info")
        finally:
            await reborn.session.close()
    finally:
        await newcomer.session.close()


async def test_a_rekey_on_the_machine_ends_an_open_rotation(agent: Agent, master: Master) -> None:
    await _install(agent, master)
    rekeyed = agent.fleet.identity()
    IdentityStore(agent.config.state_dir).install(rekeyed)
    assert agent.server.take_identity()
    info = (await agent.new_master(agent.fleet.master).get("/info")).body
    assert (info["spkiSha256"], info["nextSpkiSha256"]) == (rekeyed.spki, None)


async def test_rotation_is_for_the_master_that_holds_the_claim(agent: Agent, master: Master) -> None:
    higher = FIRST_CLAIM.model_copy(update={"epoch": 2})
    await master.claim(higher)
    reply = await master.change("POST", "/pki/csr", {"rotationId": "op"})
    assert (reply.status, reply.body["code"]) == (409, "stale_master")


async def test_the_private_key_is_in_no_answer_and_no_journal(agent: Agent, master: Master) -> None:
    await _install(agent, master)
    await agent.new_master(agent.fleet.master).get("/info")
    for path in (agent.config.state_dir / "journal").iterdir():
        assert "PRIVATE" not in path.read_text()
    assert server_name() == f"{UID}.node.mirbad.internal"
