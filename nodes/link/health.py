"""A fresh connection to a node: its identity, protocol, claim and capabilities.

Every probe is a whole request: a TLS 1.3 handshake alone does not show that our certificate was accepted. Findings go
to `nodes.reachability`.
"""

from dataclasses import dataclass

from agent.wire.base import PROTOCOL_VERSIONS
from agent.wire.capability import AgentInfo, Capabilities
from agent.wire.fence import Claim, FenceView, well_formed
from agent.wire.status import NodeStatus
from mirbad.kernel.ids import new_operation_id
from nodes import fencing, reachability
from nodes.errors import MasterFenced, NodeIncompatible, NodeOffline, NodePendingTakeover, no_such_node
from nodes.link import pools
from nodes.link.client import acall, in_thread, in_writer
from nodes.link.transport import Endpoint, endpoint
from nodes.models import Node
from nodes.states import APPROVED, FENCED, INCOMPATIBLE

CAPABILITIES_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Connected:
    """The node's reports from a new connection."""

    info: AgentInfo
    status: NodeStatus
    capabilities: Capabilities


async def aprobe(node_id: str) -> AgentInfo:
    """Ask a node (a pending one, too) for its identity, and record it.

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
    """Connect to an approved node: info, our claim, status, capabilities; the node is then Online.

    A node that returned under another master after a takeover is not claimed: a person has to continue that takeover.
    Raises the errors of `aprobe`, MasterFenced (before anything is claimed), NodePendingTakeover, AgentRefused.
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
    """Read the node's capabilities again and store them under `seq` (of the status that announced the change)."""
    capabilities = await acall(
        node_id, "GET", "capabilities", answer=Capabilities, timeout_seconds=CAPABILITIES_SECONDS
    )
    await in_thread(lambda: reachability.observe_capabilities(node_id, capabilities, seq))
    return capabilities


def probe(node_id: str) -> AgentInfo:
    """Do `aprobe` for a caller without an event loop."""
    return pools.loop_thread().run(aprobe(node_id))


def connect(node_id: str) -> Connected:
    """Do `aconnect` for a caller without an event loop."""
    return pools.loop_thread().run(aconnect(node_id))


def _dial(node_id: str) -> tuple[Node, Endpoint]:
    node = Node.objects.filter(pk=node_id).first()
    if node is None:
        raise no_such_node(node_id)
    return node, endpoint(node_id)


def _take(node_id: str, connected: Connected) -> None:
    reachability.observe_capabilities(node_id, connected.capabilities, connected.status.capabilities_seq)
    reachability.observe_status(node_id, connected.status)
    reachability.accepted(node_id)


def _claim_for(node_id: str, info: AgentInfo) -> Claim:
    """Return our claim, when the node may be asked to accept it."""
    left_out = Node.objects.filter(pk=node_id).values_list("takeover_id", "takeover_epoch").first()
    takeover_id, takeover_epoch = left_out or ("", None)
    held = well_formed(info.held_claim)
    if fencing.returned_under_another_master(takeover_epoch, held, fencing.present()):
        assert held is not None  # noqa: S101 - what the line above says
        text = f"The node obeys another master (epoch {held.epoch}) since takeover {takeover_id or 'was needed'}."
        reachability.refused(node_id, FENCED, f"{text} Stop that master, then continue the takeover for this node.")
        raise NodePendingTakeover(f"Node {node_id}: {text}")
    try:
        return fencing.claim()
    except MasterFenced:
        reachability.refused(node_id, FENCED, "This master is fenced and cannot claim the node. Take over first.")
        raise


def _take_info(node: Node, info: AgentInfo) -> str | None:
    """Record the node's info; return the reason why the node cannot be used, if there is one."""
    common = [version for version in PROTOCOL_VERSIONS if version in info.protocol_versions]
    reachability.observe_info(node.pk, info, common[-1] if common else None)
    problem: str | None = fencing.disbelief(info.held_claim, fencing.present()) or None
    if (info.node_id, info.node_uid) != (node.pk, str(node.uid)):
        problem = f"The agent identifies as {info.node_id} ({info.node_uid}), not {node.pk} ({node.uid})."
    elif not common:
        ours, theirs = (", ".join(map(str, versions)) for versions in (PROTOCOL_VERSIONS, info.protocol_versions))
        problem = f"The agent speaks protocol {theirs or 'none'}, the master {ours}. Upgrade the older one."
    elif not reachability.same_machine(node.pk, info.machine_id_hash):
        problem = "Two machines have this node's key, so neither is used. Re-pair the one to keep."
    if problem is not None:
        reachability.refused(node.pk, INCOMPATIBLE, problem)
    elif node.lifecycle != APPROVED:
        reachability.observe_contact(node.pk, info)
    return problem
