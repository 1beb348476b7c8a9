"""The line to agents: making contact, and what is found out by it."""

import json

import pytest

from agent.wire.errors import AgentCode
from nodes import fencing, reachability
from nodes.errors import MasterFenced, NodeIncompatible, NodeOffline, NodePendingTakeover
from nodes.link import health
from nodes.models import Node, NodePin
from tests.nodes.parts import (
    local_machine,
)

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("live_master")]


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
        ({"node_id": "pc-7"}, "identifies as pc-7"),
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
    agent.refuse("PUT", "fence", AgentCode.COMPETING_MASTER, held={"epoch": 1, "instanceId": "another-master"})
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
