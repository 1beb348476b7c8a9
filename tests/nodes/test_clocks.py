"""Offline because of a clock: the reason names whose clock it probably is, by the handshake that fails."""

from datetime import timedelta
from uuid import UUID

import pytest

from agent.common import keys
from agent.common.tls_pins import pin
from agent.wire.capability import AgentInfo
from mirbad.kernel import clock
from nodes.errors import NodeOffline
from nodes.link import client, pools
from nodes.models import Node
from nodes.pki import certs, store
from nodes.pki.tls import TlsIdentity
from tests.nodes.parts import Machine, agent_context, ca_bundle, fresh_issuer, local_machine, tls_peer
from tests.standins.answering import AnsweringAgent

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("live_master")]


def as_master(ahead: timedelta) -> TlsIdentity:
    """The master with a certificate that was made at another time, as a clock elsewhere sees the real one."""
    key = keys.new_key()
    made = certs.issue_master_client(store.issuer(), key.public_key(), clock.now() + ahead)
    return TlsIdentity((certs.to_pem(made),), keys.key_to_pem(key))


def as_node(machine: Machine, ahead: timedelta) -> TlsIdentity:
    uid = str(UUID(str(machine.node.uid)))
    made = certs.issue_node(store.issuer(), machine.key.public_key(), uid, clock.now() + ahead)
    return TlsIdentity((certs.to_pem(made),), keys.key_to_pem(machine.key))


@pytest.mark.parametrize(
    ("ahead", "says"),
    [
        (timedelta(hours=2), "not valid yet by the node's clock, which is probably behind"),
        (timedelta(days=300), "not valid yet by the node's clock, which is probably behind"),
        (timedelta(days=-4000), "has expired by the node's clock, which is probably ahead"),
    ],
)
def test_the_node_refuses_the_master_s_certificate_for_its_time(ahead, says):
    made = local_machine(9443)
    context = agent_context(made.identity, ca_bundle())
    pin(context, lambda _: True)  # as every agent does
    with tls_peer(AnsweringAgent(made), context) as peer:
        Node.objects.update(port=peer.port)
        call = client.acall_once("local", "GET", "info", answer=AgentInfo, identity=as_master(ahead))
        with pytest.raises(NodeOffline) as caught:
            pools.loop_thread().run(call)
        assert says in caught.value.detail
        assert client.call("local", "GET", "info", answer=AgentInfo), "the real certificate is accepted"
        pools.loop_thread().run(client.close())
    assert len(peer.asked) == 1


@pytest.mark.parametrize(
    ("ahead", "says"),
    [
        (timedelta(hours=2), "not valid yet by this master's clock, which is probably behind"),
        (timedelta(days=-4000), "certificate has expired"),
    ],
)
def test_the_master_refuses_the_node_s_certificate_for_its_time(ahead, says):
    made = local_machine(9443)
    with tls_peer(AnsweringAgent(made), agent_context(as_node(made, ahead), ca_bundle())) as peer:
        Node.objects.update(port=peer.port)
        with pytest.raises(NodeOffline) as caught:
            client.call("local", "GET", "info", answer=AgentInfo)
        pools.loop_thread().run(client.close())
    assert says in caught.value.detail


def test_a_master_of_another_fleet_is_no_matter_of_clocks(agent):
    issuer, key = fresh_issuer(), keys.new_key()
    made = certs.issue_master_client(issuer, key.public_key(), clock.now())
    stranger = TlsIdentity((certs.to_pem(made),), keys.key_to_pem(key))
    with pytest.raises(NodeOffline) as caught:
        pools.loop_thread().run(client.acall_once("local", "GET", "info", answer=AgentInfo, identity=stranger))
    assert "clock" not in caught.value.detail


def test_a_call_carries_the_master_s_time(agent):
    client.call("local", "GET", "info", answer=AgentInfo)
    _, _, headers, _ = agent.peer.asked[0]
    assert headers["Date"].endswith(" GMT")
