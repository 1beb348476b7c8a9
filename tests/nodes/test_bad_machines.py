"""Machines that are not what they seem: a name that flips, another node on an address, a copied disk, a wrong clock."""

import socket
from datetime import timedelta

import pytest

from agent.common import keys
from agent.wire.capability import AgentInfo
from mirbad.kernel import clock
from mirbad.kernel.errors import InvalidRequest
from nodes import queries, registry
from nodes.enrollment import join, tokens
from nodes.errors import EnrollmentRefused, NodeIncompatible, NodeOffline
from nodes.link import client, health, pools
from nodes.models import JoinToken, Node, NodeCondition
from tests.nodes.parts import (
    OPERATOR,
    PEER,
    agent_context,
    approved,
    ca_bundle,
    local_machine,
    request_for,
    tls_peer,
)
from tests.standins.answering import AnsweringAgent

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("live_master")]


@pytest.fixture(autouse=True)
def _closed():
    yield
    pools.loop_thread().run(client.close())


def _address(host: str, port: int = 0):
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]


def test_a_name_that_flips_to_the_master_itself_between_two_look_ups_is_not_dialled(monkeypatch):
    machine = approved("pc-1")
    with tls_peer(AnsweringAgent(machine), agent_context(machine.identity, ca_bundle())) as peer:
        looked = []

        def flip(host, port, *_, **__):
            looked.append(host)
            return _address("192.0.2.7" if len(looked) == 1 else "127.0.0.1", port or 0)

        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", flip)
            registry.update("pc-1", {"address": "flipping.example", "port": peer.port}, OPERATOR)
            with pytest.raises(NodeOffline, match="does not resolve to an allowed address"):
                client.call("pc-1", "GET", "info", answer=AgentInfo)
        assert looked == ["flipping.example", "flipping.example"]
        assert (peer.connections, peer.asked) == (0, [])


def test_another_node_on_the_address_of_a_node_never_sees_a_request():
    """Node B answers on A's address: its certificate is of the fleet, its name and key are not A's."""
    other = approved("pc-2")
    with tls_peer(AnsweringAgent(other), agent_context(other.identity, ca_bundle())) as peer:
        local_machine(peer.port)
        with pytest.raises(NodeOffline, match="no trusted connection"):
            health.probe("local")
        assert peer.asked == []
    assert Node.objects.get(pk="local").agent_version == ""


@pytest.fixture
def copied():
    """A node that was seen, and the same key and uid on another machine."""

    def show(agent: AnsweringAgent, machine_id: str):
        agent.info = agent.info.model_copy(update={"machine_id_hash": machine_id})
        return health.probe("local")

    return show


def test_a_copied_disk_holds_both_machines_and_raises_an_alarm(copied, caplog):
    machine = local_machine(9443)
    agent = AnsweringAgent(machine)
    with tls_peer(agent, agent_context(machine.identity, ca_bundle())) as peer:
        Node.objects.update(port=peer.port)
        copied(agent, "a" * 64)
        health.connect("local")
        assert Node.objects.get().reachability == "online"
        with pytest.raises(NodeIncompatible, match="Two machines"):
            copied(agent, "b" * 64)
        # The first one is held as well: from here nobody can tell which of them is the real one.
        with pytest.raises(NodeIncompatible, match="Two machines"):
            copied(agent, "a" * 64)
        assert Node.objects.get().reachability == "incompatible"
        assert [row.code for row in NodeCondition.objects.all()] == ["key_on_two_machines"]
        with pytest.raises(NodeIncompatible):
            queries.require_serving("local")
        made = tokens.create("local", actor=OPERATOR, purpose="rekey")
        request = request_for(
            made.token, "local", keys.new_key(), node_uid=machine.answer.node_uid, address="127.0.0.1", port=peer.port
        )
        join.enroll(request, "127.0.0.1", rekey=True)
    assert not NodeCondition.objects.exists()
    assert Node.objects.get().machine_id_hash == ""


def test_a_copied_key_cannot_join_as_another_node():
    machine = approved("pc-1")
    made = tokens.create("pc-9", actor=OPERATOR)
    with pytest.raises(EnrollmentRefused):
        join.enroll(request_for(made.token, "pc-9", machine.key), "192.0.2.99")
    assert JoinToken.objects.get(node_id_text="pc-9").used_at is None


def test_a_machine_without_an_id_is_no_second_machine(copied):
    machine = local_machine(9443)
    agent = AnsweringAgent(machine)
    with tls_peer(agent, agent_context(machine.identity, ca_bundle())) as peer:
        Node.objects.update(port=peer.port)
        for machine_id in ("a" * 64, "", "a" * 64):
            assert copied(agent, machine_id)


@pytest.mark.parametrize("minutes", [-15, -1, 0, 15])
def test_a_clock_that_is_a_little_off_joins(minutes):
    made = tokens.create("pc-1", actor=OPERATOR)
    theirs = (clock.now() + timedelta(minutes=minutes)).isoformat()
    assert join.enroll(request_for(made.token, "pc-1", keys.new_key(), time=theirs), PEER).chain


@pytest.mark.parametrize("hours", [-2, 2, 24 * 400])
def test_a_clock_that_is_far_off_is_refused_with_both_times_and_keeps_its_token(hours):
    made = tokens.create("pc-1", actor=OPERATOR)
    theirs = clock.now() + timedelta(hours=hours)
    with pytest.raises(InvalidRequest) as refused:
        join.enroll(request_for(made.token, "pc-1", keys.new_key(), time=theirs.isoformat()), PEER)
    assert f"{theirs:%Y-%m-%d %H:%M}" in refused.value.detail
    assert f"{clock.now():%Y-%m-%d}" in refused.value.detail
    assert JoinToken.objects.get().used_at is None
    assert not Node.objects.exists()


@pytest.mark.parametrize("text", ["yesterday", "2026-01-01T00:00:00", "9" * 40])
def test_a_time_that_is_none_is_a_bad_request(text):
    made = tokens.create("pc-1", actor=OPERATOR)
    with pytest.raises(InvalidRequest):
        join.enroll(request_for(made.token, "pc-1", keys.new_key(), time=text), PEER)
