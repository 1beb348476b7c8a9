"""A fresh connection to a node: is it the one we mean, do we speak the same protocol, does it obey us, what can it do.

Every probe is a whole request: a TLS 1.3 handshake alone says nothing about our own certificate. What is found goes to
`nodes.reachability`.
"""

from dataclasses import dataclass

from agent.wire.base import PROTOCOL_VERSIONS
from agent.wire.capability import AgentInfo, Capabilities
from agent.wire.fence import Claim, FenceView
from agent.wire.status import NodeStatus
from mirbad.kernel.errors import NotFound
from mirbad.kernel.ids import new_operation_id
from nodes import fencing, reachability
from nodes.errors import MasterFenced, NodeIncompatible, NodeOffline, NodePendingTakeover
from nodes.link import pools
from nodes.link.client import acall, in_thread, in_writer
from nodes.link.transport import Endpoint, endpoint
from nodes.models import Node
from nodes.states import APPROVED, FENCED, INCOMPATIBLE

CAPABILITIES_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Connected:
    """What a node said while the connection was made."""

    info: AgentInfo
    status: NodeStatus
    capabilities: Capabilities


async def aprobe(node_id: str) -> AgentInfo:
    """Ask a node (one that waits for approval, too) who it is, and keep that.

    Raises NodeOffline (the node is then lost), NodeIncompatible (it is marked so), NotFound, NodeRevoked, Conflict.
    """
    return await _ask(*await in_thread(lambda: _dial(node_id)))


async def _ask(node: Node, dialled: Endpoint) -> AgentInfo:
    try:
        info = await acall(node.pk, "GET", "info", answer=AgentInfo, dialled=dialled)
    except NodeOffline as error:
        reason = error.detail
        await in_thread(lambda: reachability.lost(node.pk, reason))
        raise
    except NodeIncompatible as error:
        reason = error.detail
        await in_thread(lambda: reachability.refused(node.pk, INCOMPATIBLE, reason))
        raise
    if (problem := await in_writer(lambda: _take_info(node, info))) is not None:
        raise NodeIncompatible(problem)
    return info


async def aconnect(node_id: str) -> Connected:
    """Make contact with an approved node: info, our claim, status, capabilities; it then reads Online.

    A node that came back under another master after a takeover is not claimed: someone has to continue that takeover.
    Raises what `aprobe` raises, MasterFenced (before anything is claimed), NodePendingTakeover, AgentRefused.
    """
    node, dialled = await in_thread(lambda: _dial(node_id))
    info = await _ask(node, dialled)
    claim = await in_thread(lambda: _claim_for(node_id, info))
    await acall(node_id, "PUT", "fence", claim, answer=FenceView, operation_id=new_operation_id(), dialled=dialled)
    status = await acall(node_id, "GET", "status", answer=NodeStatus, dialled=dialled)
    capabilities = await acall(
        node_id, "GET", "capabilities", answer=Capabilities, timeout_seconds=CAPABILITIES_SECONDS, dialled=dialled
    )
    connected = Connected(info, status, capabilities)
    await in_writer(lambda: _take(node_id, connected))
    return connected


async def arefresh(node_id: str, seq: int) -> Capabilities:
    """Read the node's capabilities again and keep them under `seq` (of the status that said they changed)."""
    capabilities = await acall(
        node_id, "GET", "capabilities", answer=Capabilities, timeout_seconds=CAPABILITIES_SECONDS
    )
    await in_thread(lambda: reachability.observe_capabilities(node_id, capabilities, seq))
    return capabilities


def probe(node_id: str) -> AgentInfo:
    """`aprobe` for a caller without an event loop."""
    return pools.loop_thread().run(aprobe(node_id))


def connect(node_id: str) -> Connected:
    """`aconnect` for a caller without an event loop."""
    return pools.loop_thread().run(aconnect(node_id))


def _dial(node_id: str) -> tuple[Node, Endpoint]:
    node = Node.objects.filter(pk=node_id).first()
    if node is None:
        raise NotFound(f"There is no node {node_id}.")
    return node, endpoint(node_id)


def _take(node_id: str, connected: Connected) -> None:
    reachability.observe_capabilities(node_id, connected.capabilities, connected.status.capabilities_seq)
    reachability.observe_status(node_id, connected.status)
    reachability.accepted(node_id)


def _claim_for(node_id: str, info: AgentInfo) -> Claim:
    """Our claim, when the node may be asked to admit it."""
    left_out = Node.objects.filter(pk=node_id).values_list("takeover_id", "takeover_epoch").first()
    takeover_id, takeover_epoch = left_out or ("", None)
    held = info.held_claim
    if fencing.came_back_taken(takeover_epoch, held, fencing.present()):
        assert held is not None  # noqa: S101 - what the line above says
        text = f"It obeys another master (epoch {held.epoch}) since takeover {takeover_id or 'was needed'}."
        reachability.refused(node_id, FENCED, f"{text} Stop that master, then continue the takeover for this node.")
        raise NodePendingTakeover(f"Node {node_id}: {text}")
    try:
        return fencing.claim()
    except MasterFenced:
        reachability.refused(node_id, FENCED, "This master is fenced, so it cannot ask the node to obey. Take over.")
        raise


def _take_info(node: Node, info: AgentInfo) -> str | None:
    """Keep it; why the node cannot be worked with, if it cannot."""
    common = [version for version in PROTOCOL_VERSIONS if version in info.protocol_versions]
    reachability.observe_info(node.pk, info, common[-1] if common else None)
    problem = None
    if (info.node_id, info.node_uid) != (node.pk, str(node.uid)):
        problem = f"The agent says that it is {info.node_id} ({info.node_uid}), not {node.pk} ({node.uid})."
    elif not common:
        ours, theirs = (", ".join(map(str, versions)) for versions in (PROTOCOL_VERSIONS, info.protocol_versions))
        problem = f"The agent speaks protocol {theirs or 'none'}, the master {ours}. Upgrade the older of the two."
    elif not reachability.same_machine(node.pk, info.machine_id_hash):
        problem = "Two machines hold this node's key, and neither is worked with. Re-pair the one that is to stay."
    if problem is not None:
        reachability.refused(node.pk, INCOMPATIBLE, problem)
    elif node.lifecycle != APPROVED:
        reachability.seen(node.pk, info)
    return problem
