"""The node of a request with ``?node=``, or without."""

from agent.wire.capability import Feature
from mirbad.kernel.errors import Conflict, NotFound
from models_app.artifacts.errors import AgentTooOld, NodeRequired
from nodes import queries
from nodes.models import Node
from nodes.states import APPROVED, REVOKED


def named(node_id: str) -> Node:
    """Return the node of that id, or with an empty id the only fleet member, whatever its reachability.

    Raises NodeRequired (two or more members), NotFound (unknown, revoked, none at all), Conflict (not approved yet).
    """
    if not node_id:
        members = list(Node.objects.filter(lifecycle=APPROVED)[:2])
        if len(members) > 1:
            raise NodeRequired("Name the node with ?node=<id>: the fleet has more than one.")
        if not members:
            raise NotFound("No node is approved yet; add one first.")
        return members[0]
    node = Node.objects.filter(pk=node_id).first()
    if node is None or node.lifecycle == REVOKED:
        raise NotFound(f"Node {node_id!r} does not exist.")
    if node.lifecycle != APPROVED:
        raise Conflict(f"Node {node_id!r} is not approved yet; approve it first.")
    return node


def reachable(node_id: str, feature: Feature | None = None) -> Node:
    """Return `named` if the node serves now. Raises NodeOffline and the like, AgentTooOld (no such feature), too."""
    node = queries.require_serving(named(node_id).pk)
    known = queries.capabilities(node)
    if feature is not None and known is not None and feature not in known.features:
        raise AgentTooOld(
            f"The agent of node {node.pk!r} does not support this; upgrade it.", fields={"feature": feature}
        )
    return node
