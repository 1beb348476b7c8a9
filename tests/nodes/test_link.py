"""The line to agents: calls, refusals, and connections that end when a key or an address changes."""

import asyncio
import json
import time

import pytest
from aiohttp import web
from django.db import connection

from agent.common import keys
from agent.wire.capability import AgentInfo
from agent.wire.errors import AgentCode
from agent.wire.fence import Claim, FenceView
from agent.wire.operations import OperationView
from mirbad.kernel.errors import Conflict, NotFound
from nodes import fencing, registry
from nodes.enrollment import join, tokens
from nodes.errors import AgentRefused, MasterFenced, NodeIncompatible, NodeOffline, NodePendingTakeover, NodeRevoked
from nodes.link import client, transport
from nodes.models import MasterIdentity, Node, NodePin
from nodes.pki import certs
from tests.nodes.parts import (
    OPERATOR,
    agent_context,
    approved,
    enrolled,
    fresh_issuer,
    local_machine,
    request_for,
    tls_peer,
)
from tests.standins.answering import CLAIM_PATH, hang_up

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("live_master")]


def test_a_read_needs_no_operation_and_carries_no_claim(agent):
    told = client.call("local", "GET", "info", answer=AgentInfo)
    assert told.node_id == "local"
    _, path, headers, _ = agent.peer.asked[0]
    assert path == "/agent/v1/info"
    assert "Mirbad-Epoch" not in headers


def test_a_change_carries_claim_operation_and_body(agent, live_master):
    body = Claim(epoch=1, instance_id="0123456789")
    client.call("local", "PUT", "fence", body, answer=FenceView, operation_id="op-1")
    method, path, headers, sent = agent.peer.asked[0]
    assert (method, path) == ("PUT", CLAIM_PATH)
    assert headers["Mirbad-Epoch"] == "1"
    assert headers["Mirbad-Instance"] == live_master.instance_id
    assert headers["Mirbad-Operation"] == "op-1"
    assert json.loads(sent) == {"epoch": 1, "instanceId": "0123456789"}


def test_a_change_without_an_operation_id_is_a_mistake_of_the_caller(agent):
    with pytest.raises(ValueError, match="operation id"):
        client.call("local", "POST", "instances/x/stop", answer=FenceView)
    assert agent.peer.asked == []


def test_connections_are_used_again(agent):
    for _ in range(5):
        client.call("local", "GET", "info", answer=AgentInfo)
    assert agent.peer.connections == 1


def test_a_refusal_carries_the_agent_s_code_status_and_sentence(agent):
    agent.refuse("GET", "operations/op-9", AgentCode.NOT_FOUND, 404)
    with pytest.raises(AgentRefused) as caught:
        client.call("local", "GET", "operations/op-9", answer=OperationView)
    assert (caught.value.agent_code, caught.value.agent_status) == ("not_found", 404)
    assert caught.value.detail == "said not_found"
    assert not fencing.is_fenced()


def test_a_refusal_that_is_none_of_the_protocol_is_told_as_such(agent):
    agent.answers["GET", "/agent/v1/info"] = lambda request: web.Response(status=500, text="<html>secret</html>")
    with pytest.raises(AgentRefused, match="answered 500") as caught:
        client.call("local", "GET", "info", answer=AgentInfo)
    assert "secret" not in caught.value.detail


def test_an_answer_that_is_none_of_the_protocol_makes_the_node_incompatible(agent):
    agent.answers["GET", "/agent/v1/info"] = lambda request: web.json_response({"nodeId": 7})
    with pytest.raises(NodeIncompatible, match="not a AgentInfo"):
        client.call("local", "GET", "info", answer=AgentInfo)


def test_a_redirect_is_not_followed(agent):
    agent.answers["GET", "/agent/v1/info"] = lambda request: web.Response(
        status=302, headers={"Location": "https://127.0.0.1:1/"}
    )
    with pytest.raises(AgentRefused, match="302"):
        client.call("local", "GET", "info", answer=AgentInfo)


ANOTHER = {"epoch": 2, "instanceId": "another-master"}


@pytest.mark.parametrize("code", [AgentCode.STALE_MASTER, AgentCode.COMPETING_MASTER])
def test_a_claim_refused_by_the_own_machine_fences_the_master_and_marks_the_node(agent, code):
    agent.refuse("PUT", "fence", code, held=ANOTHER)
    with pytest.raises(NodePendingTakeover):
        client.call("local", "PUT", "fence", answer=FenceView, operation_id="op-1")
    assert "local" in fencing.fenced_reason()
    assert Node.objects.get().reachability == "fenced"
    asked = len(agent.peer.asked)
    with pytest.raises(MasterFenced):
        client.call("local", "PUT", "fence", answer=FenceView, operation_id="op-2")
    assert len(agent.peer.asked) == asked
    assert client.call("local", "GET", "info", answer=AgentInfo)


def test_an_answer_is_dropped_when_the_claim_changed_while_it_was_on_its_way(agent):
    def overtake():
        MasterIdentity.objects.update(epoch=2)
        connection.close()

    async def in_between(request):
        await asyncio.to_thread(overtake)
        return FenceView(held=None)

    agent.answers["PUT", CLAIM_PATH] = in_between
    with pytest.raises(MasterFenced, match="changed"):
        client.call("local", "PUT", "fence", answer=FenceView, operation_id="op-1")


def test_nobody_there_is_offline_with_the_reason(live_master):
    local_machine(1)
    with pytest.raises(NodeOffline, match=r"127\.0\.0\.1 port 1: .*refused") as caught:
        client.call("local", "GET", "info", answer=AgentInfo)
    assert caught.value.retryable


def test_no_answer_in_time_is_offline(agent):
    async def slow(request):
        await asyncio.Event().wait()

    agent.answers["GET", "/agent/v1/info"] = slow
    started = time.monotonic()
    with pytest.raises(NodeOffline, match="timed out"):
        client.call("local", "GET", "info", answer=AgentInfo, timeout_seconds=0.3)
    assert time.monotonic() - started < 5


def test_another_key_at_the_address_never_hears_a_request(agent):
    NodePin.objects.update(spki_sha256="a" * 64)
    with pytest.raises(NodeOffline, match="not the pinned one"):
        client.call("local", "GET", "info", answer=AgentInfo)
    assert agent.peer.asked == []


def test_an_agent_that_does_not_know_the_master_is_offline_in_words(agent):
    stranger = (certs.to_pem(fresh_issuer().cert),)
    with tls_peer(agent, agent_context(agent.machine.identity, stranger)) as peer:
        Node.objects.update(port=peer.port)
        with pytest.raises(NodeOffline, match=r"may not know this master|no trusted connection"):
            client.call("local", "GET", "info", answer=AgentInfo)


def test_a_new_key_ends_the_connections_made_with_the_old_one(agent):
    client.call("local", "GET", "info", answer=AgentInfo)
    made = tokens.create("local", actor=OPERATOR, purpose="rekey")
    key = keys.new_key()
    request = request_for(
        made.token, "local", key, node_uid=str(agent.machine.node.uid), address="127.0.0.1", port=agent.peer.port
    )
    join.enroll(request, "127.0.0.1", rekey=True)
    with pytest.raises(NodeOffline, match="not the pinned one"):
        client.call("local", "GET", "info", answer=AgentInfo)
    assert len(agent.peer.asked) == 1


def test_a_revoked_node_is_not_called_any_more(agent):
    client.call("local", "GET", "info", answer=AgentInfo)
    registry.revoke("local", OPERATOR)
    with pytest.raises(NodeRevoked):
        client.call("local", "GET", "info", answer=AgentInfo)
    assert len(agent.peer.asked) == 1


def test_a_name_that_resolves_to_loopback_is_not_dialled_for_another_node(agent):
    approved("pc-1")
    Node.objects.filter(pk="pc-1").update(address="localhost", port=agent.peer.port)
    with pytest.raises(NodeOffline, match="does not resolve to an allowed address"):
        client.call("pc-1", "GET", "info", answer=AgentInfo)
    Node.objects.filter(pk="local").update(address="localhost")
    assert client.call("local", "GET", "info", answer=AgentInfo)


def test_endpoints_come_in_bulk_and_only_for_approved_nodes(django_assert_num_queries, live_master):
    assert transport.endpoints() == {}
    one, two = approved("pc-1"), approved("pc-2")
    enrolled("pc-3")
    registry.revoke(approved("pc-4").node_id, OPERATOR)
    with django_assert_num_queries(4):
        found = transport.endpoints()
    assert set(found) == {"pc-1", "pc-2"}
    assert found["pc-1"].pins == {one.spki}
    assert found["pc-1"].server_name == f"{one.node.uid}.node.mirbad.internal"
    assert found["pc-1"].ssl_context is not found["pc-2"].ssl_context
    assert transport.endpoints() == found
    assert two.node_id in found
    assert "PRIVATE" not in repr(found)


def test_a_waiting_node_is_dialled_by_its_pending_key_and_an_unknown_one_not_at_all(live_master):
    waiting = enrolled("pc-1")
    assert transport.endpoint("pc-1").pins == {waiting.spki}
    with pytest.raises(NotFound):
        transport.endpoint("pc-9")
    NodePin.objects.all().delete()
    with pytest.raises(Conflict, match="no known key"):
        transport.endpoint("pc-1")


async def test_the_asynchronous_face_does_the_same(agent):
    told = await client.acall("local", "GET", "info", answer=AgentInfo)
    assert told.node_id == "local"
    agent.refuse("PUT", "fence", AgentCode.STALE_MASTER, held=ANOTHER)
    with pytest.raises(NodePendingTakeover):
        await client.acall("local", "PUT", "fence", answer=FenceView, operation_id="op-1")
    await hang_up()
