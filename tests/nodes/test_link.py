"""The line to agents: calls, refusals, events, connections that end when a key or an address changes."""

import asyncio
import json
import time

import pytest
from aiohttp import web
from django.db import connection

from agent.wire.capability import AgentInfo
from agent.wire.errors import AgentCode, Refusal
from agent.wire.fence import Claim, FenceView
from agent.wire.operations import OperationView
from agent.wire.status import Event
from mirbad.kernel.errors import Conflict, NotFound
from nodes import fencing, reachability, registry
from nodes.enrollment import join, tokens
from nodes.errors import AgentRefused, MasterFenced, NodeIncompatible, NodeOffline, NodePendingTakeover, NodeRevoked
from nodes.link import client, health, pools, streams, transport
from nodes.models import MasterIdentity, Node, NodePin
from nodes.pki import certs, keys
from tests.nodes.parts import (
    OPERATOR,
    Machine,
    agent_context,
    approved,
    ca_bundle,
    enrolled,
    fresh_issuer,
    local_machine,
    request_for,
    tls_peer,
)
from tests.nodes.test_seen import caps, info, status

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("live_master")]

CLAIM_PATH = "/agent/v1/fence"


class Agent:
    """Answers as told; by default as a healthy agent of protocol 1."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.info = info(machine)
        self.answers = {
            ("GET", "/agent/v1/info"): lambda request: self.info,
            ("GET", "/agent/v1/status"): lambda request: status(seq=3),
            ("GET", "/agent/v1/capabilities"): lambda request: caps(),
            ("PUT", CLAIM_PATH): lambda request: FenceView(held=Claim(epoch=1, instance_id="0123456789")),
        }

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        made = self.answers[request.method, request.path](request)
        if asyncio.iscoroutine(made):
            made = await made
        if isinstance(made, web.StreamResponse):
            return made
        return web.json_response(made.to_wire())

    def refuse(self, method: str, path: str, code: AgentCode, http_status: int = 409):
        body = Refusal(code=code, detail=f"said {code.value}").to_wire()
        self.answers[method, f"/agent/v1/{path}"] = lambda request: web.json_response(body, status=http_status)


@pytest.fixture
def agent():
    """The master's own node, approved, and an agent that answers for it."""
    made = local_machine(9443)
    answers = Agent(made)
    with tls_peer(answers, agent_context(made.identity, ca_bundle())) as peer:
        Node.objects.update(port=peer.port)
        answers.peer = peer
        yield answers
        pools.loop_thread().run(client.close())


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


@pytest.mark.parametrize("code", [AgentCode.STALE_MASTER, AgentCode.COMPETING_MASTER])
def test_a_refused_claim_fences_the_master_and_marks_the_node(agent, code):
    agent.refuse("PUT", "fence", code)
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
        await asyncio.sleep(30)

    agent.answers["GET", "/agent/v1/info"] = slow
    started = time.monotonic()
    with pytest.raises(NodeOffline, match="no answer in time"):
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
    with pytest.raises(NodeOffline, match="does not resolve to an address that may be dialled"):
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
    with pytest.raises(Conflict, match="no key"):
        transport.endpoint("pc-1")


async def test_the_asynchronous_face_does_the_same(agent):
    told = await client.acall("local", "GET", "info", answer=AgentInfo)
    assert told.node_id == "local"
    agent.refuse("PUT", "fence", AgentCode.STALE_MASTER)
    with pytest.raises(NodePendingTakeover):
        await client.acall("local", "PUT", "fence", answer=FenceView, operation_id="op-1")
    await hang_up()


def stream(*events, hold=0.0, raw=()):
    async def answer(request):
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        for event in events:
            line = event.model_dump_json(by_alias=True).encode() + b"\n"
            await response.write(line[:9])
            await response.write(line[9:])
        for data in raw:
            await response.write(data)
        await asyncio.sleep(hold)
        return response

    return answer


async def hang_up():
    """Close this loop's connections, and give a TLS line that was left in its middle the time to end."""
    await client.close()
    await asyncio.sleep(0.05)


async def collect(stream, found, at_first=lambda: None):
    """Put the events of `stream` into `found`; do `at_first` after the first."""
    async for event in stream:
        found.append(event)
        if len(found) == 1:
            await client.in_thread(at_first)


def ping(seq):
    return Event(kind="ping", boot_id="boot-1", seq=seq)


async def test_events_come_as_they_are_sent_until_the_line_ends(agent):
    big = Event(kind="status", boot_id="boot-1", seq=2, status=status(seq=2, warnings=("x" * 300_000,)))
    agent.answers["GET", "/agent/v1/events"] = stream(ping(1), big, ping(3))
    found = []
    with pytest.raises(NodeOffline, match="ended the event stream"):
        await collect(client.events("local", 7), found)
    assert [event.seq for event in found] == [1, 2, 3]
    assert len(found[1].status.warnings[0]) == 300_000
    await hang_up()


async def test_a_silent_line_is_offline(agent, monkeypatch):
    monkeypatch.setattr(client, "EVENT_SILENCE_SECONDS", 0.2)
    agent.answers["GET", "/agent/v1/events"] = stream(ping(1), hold=20)
    with pytest.raises(NodeOffline):
        await collect(client.events("local", 0), [])
    await hang_up()


async def test_a_line_that_is_no_event_makes_the_node_incompatible(agent):
    agent.answers["GET", "/agent/v1/events"] = stream(raw=(b'{"kind": "surprise"}\n',))
    with pytest.raises(NodeIncompatible):
        await collect(client.events("local", 0), [])
    await hang_up()


async def test_a_refused_event_stream_is_a_refusal(agent):
    agent.refuse("GET", "events", AgentCode.NOT_APPROVED, 403)
    with pytest.raises(AgentRefused):
        await collect(client.events("local", 0), [])
    await hang_up()


async def test_a_stream_ends_when_the_node_is_revoked(agent, monkeypatch):
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.05)
    agent.answers["GET", "/agent/v1/events"] = stream(*(ping(n) for n in range(1, 4)), hold=20)
    found = []
    with pytest.raises(NodeRevoked):
        await collect(client.events("local", 0), found, lambda: registry.revoke("local", OPERATOR))
    assert found[0].seq == 1
    await hang_up()


def test_connecting_checks_claims_and_reads_and_the_node_is_online(agent, live_master):
    made = health.connect("local")
    assert made.status.seq == 3
    assert [(method, path.rsplit("/", 1)[1]) for method, path, _, _ in agent.peer.asked] == [
        ("GET", "info"),
        ("PUT", "fence"),
        ("GET", "status"),
        ("GET", "capabilities"),
    ]
    claimed = json.loads(agent.peer.asked[1][3])
    assert claimed == {"epoch": 1, "instanceId": live_master.instance_id}
    node = Node.objects.get()
    assert (node.reachability, node.protocol, node.agent_version) == ("online", 1, "1.2.3")
    assert (node.seq, node.capabilities_seq, node.capabilities["hostname"]) == (3, 1, "pc")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"node_id": "pc-7"}, "says that it is pc-7"),
        ({"node_uid": "6f1c9a43-9df1-4d6b-8f43-0c2f3a7f9b11"}, "not local"),
        ({"protocol_versions": (7, 8)}, "speaks protocol 7, 8"),
        ({"protocol_versions": ()}, "speaks protocol none"),
    ],
)
def test_another_node_or_protocol_is_incompatible_and_never_claimed(agent, changes, words):
    agent.info = agent.info.model_copy(update=changes)
    with pytest.raises(NodeIncompatible, match=words):
        health.connect("local")
    node = Node.objects.get()
    assert (node.reachability, [path for _, path, _, _ in agent.peer.asked]) == ("incompatible", ["/agent/v1/info"])
    assert words in node.reachability_reason


def test_a_node_that_was_fenced_is_online_after_it_takes_the_claim(agent):
    reachability.refused("local", "fenced", "obeys another")
    health.connect("local")
    assert Node.objects.get().reachability == "online"


def test_a_fenced_master_claims_nothing(agent):
    fencing.fence("Another master commands.")
    with pytest.raises(MasterFenced):
        health.connect("local")
    assert [method for method, _, _, _ in agent.peer.asked] == ["GET"]


def test_a_node_that_refuses_the_claim_fences_the_master(agent):
    agent.refuse("PUT", "fence", AgentCode.COMPETING_MASTER)
    with pytest.raises(NodePendingTakeover):
        health.connect("local")
    assert fencing.is_fenced()
    assert Node.objects.get().reachability == "fenced"


def test_a_waiting_node_is_only_asked_who_it_is(agent):
    Node.objects.update(lifecycle="pending")
    NodePin.objects.update(slot="pending")
    assert health.probe("local").node_id == "local"
    assert [path for _, path, _, _ in agent.peer.asked] == ["/agent/v1/info"]


def test_a_node_that_cannot_be_reached_is_lost(live_master):
    local_machine(1)
    with pytest.raises(NodeOffline):
        health.connect("local")
    node = Node.objects.get()
    assert node.reachability == "offline"
    assert "refused" in node.reachability_reason
