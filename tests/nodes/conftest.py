"""Fixtures of the nodes tests."""

import pytest

from nodes.link import client, pools
from nodes.models import Node
from nodes.pki import authority
from tests.nodes.parts import agent_context, ca_bundle, local_machine, tls_peer
from tests.standins.answering import AnsweringAgent


@pytest.fixture
def master(db):
    """A master with its authority."""
    return authority.ensure()


@pytest.fixture
def live_master(transactional_db):
    """The same where other threads must see the rows."""
    yield authority.ensure()
    pools.database_threads().release()


@pytest.fixture
def agent(live_master):
    """The master's own node, approved, and an agent that answers for it."""
    made = local_machine(9443)
    answers = AnsweringAgent(made)
    with tls_peer(answers, agent_context(made.identity, ca_bundle())) as peer:
        Node.objects.update(port=peer.port)
        answers.peer = peer
        yield answers
        pools.loop_thread().run(client.close())
