"""Nodes learn whether they are drained: at the change, after an absence, and each only when it has to."""

import pytest
from aiohttp import web

from agent.wire.drain import DrainState
from agent.wire.errors import AgentCode
from nodes import drains, registry
from nodes.models import Node
from tests.nodes.parts import OPERATOR

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("live_master")]


def reported(draining: bool | None) -> None:
    Node.objects.update(reachability="online", host={} if draining is None else {"draining": draining})


def states(agent) -> list[bool]:
    sent = [body for _, path, _, body in agent.peer.asked if path.endswith("/drain")]
    return [DrainState.model_validate_json(body).draining for body in sent]


@pytest.fixture
def told(agent):
    """An agent that takes the state."""
    agent.answers["PUT", "/agent/v1/drain"] = lambda request: web.json_response({"draining": True})
    return agent


def test_a_drain_and_its_end_reach_the_node_once_each(told):
    reported(False)
    assert drains.tell_once() == 0
    registry.drain("local", OPERATOR)
    assert drains.tell_once() == 1
    reported(True)
    assert drains.tell_once() == 0
    registry.undrain("local", OPERATOR)
    assert drains.due() == [("local", False)]
    assert drains.tell_once() == 1
    assert states(told) == [True, False]


def test_an_older_agent_is_not_called(told):
    reported(None)
    registry.drain("local", OPERATOR)
    assert drains.due() == []
    assert (drains.tell_once(), states(told)) == (0, [])


@pytest.mark.parametrize("reachability", ["offline", "unknown", "incompatible", "fenced"])
def test_a_node_that_does_not_serve_learns_it_when_it_is_back(told, reachability):
    reported(False)
    registry.drain("local", OPERATOR)
    Node.objects.update(reachability=reachability)
    assert (drains.tell_once(), states(told)) == (0, [])
    Node.objects.update(reachability="online")
    assert (drains.tell_once(), states(told)) == (1, [True])


def test_a_node_that_refuses_is_told_again(agent):
    agent.refuse("PUT", "drain", AgentCode.INTERNAL, 500)
    reported(False)
    registry.drain("local", OPERATOR)
    assert drains.tell_once() == 0
    assert drains.due() == [("local", True)]
