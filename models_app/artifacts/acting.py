"""Which node acts when a request names one with ``?node=``, or none."""

from agent.wire.capability import Feature
from mirbad.kernel.errors import Conflict, NotFound
from models_app.artifacts.errors import AgentTooOld, NodeRequired
from nodes import queries
from nodes.models import Node
from nodes.states import APPROVED, REVOKED


def named(node_id: str) -> Node:
    """The node of that name, or the only fleet member when it is empty, whatever its state of reach.

    Raises NodeRequired (two or more members), NotFound (unknown, revoked, none at all), Conflict (not approved yet).
    """
    if not node_id:
        members = list(Node.objects.filter(lifecycle=APPROVED)[:2])
        if len(members) > 1:
            raise NodeRequired("Say which node with ?node=<id>: the fleet has more than one.")
        if not members:
            raise NotFound("No node has been approved yet; add one first.")
        return members[0]
    node = Node.objects.filter(pk=node_id).first()
    if node is None or node.lifecycle == REVOKED:
        raise NotFound(f"There is no node {node_id!r}.")
    if node.lifecycle != APPROVED:
        raise Conflict(f"Node {node_id!r} waits for approval. Approve it first.")
    return node


def reachable(node_id: str, feature: Feature | None = None) -> Node:
    """`named`, when it can be worked with now. Raises NodeOffline and the like, AgentTooOld (no such feature), too."""
    node = queries.require_serving(named(node_id).pk)
    known = queries.capabilities(node)
    if feature is not None and known is not None and feature not in known.features:
        raise AgentTooOld(
            f"The agent of node {node.pk!r} does not offer this; upgrade it.", fields={"feature": feature}
        )
    return node
