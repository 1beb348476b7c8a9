"""The rules for nodes that share one replica: fabrics, GPUs and addresses, by the reports of several nodes. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from agent.wire.capability import Capabilities, Feature, Runtime
from models_app.placement.feasible import NodeFacts, Problem

MULTI_NODE_RUNTIMES = frozenset({Runtime.VLLM, Runtime.SIM})
MOST_SHARDS = 64

_FIELD = "placements"


def fabrics_of(capabilities: Capabilities | None) -> dict[str, tuple[str, ...]]:
    """Return the fabrics that a node can use now, each with the node's adapters."""
    if capabilities is None:
        return {}
    return {fabric.name: fabric.adapters for fabric in capabilities.fabrics if fabric.problem is None}


def shared_fabrics(each: Sequence[Capabilities | None]) -> tuple[str, ...]:
    """Return the names of the fabrics that all of `each` can use."""
    common = set(fabrics_of(each[0])) if each else set()
    for capabilities in each[1:]:
        common &= set(fabrics_of(capabilities))
    return tuple(sorted(common))


@dataclass(frozen=True, slots=True)
class ShardNode:
    """The node of one shard: its facts, the address that the master connects to, and the number of chosen GPUs."""

    facts: NodeFacts
    address: str
    gpus: int


def problems(runtime: str, nodes: Sequence[ShardNode]) -> tuple[Problem, ...]:
    """Return the rules that keep two or more existing nodes from sharing one replica."""
    facts = [node.facts for node in nodes]
    if len(facts) > MOST_SHARDS:
        return (Problem("too_many_shards", f"A replica has at most {MOST_SHARDS} shards.", _FIELD),)
    if runtime not in MULTI_NODE_RUNTIMES:
        text = f"{runtime} cannot run on several nodes; choose one node, or another engine."
        return (Problem("runtime_unavailable", text, _FIELD),)
    if twice := sorted(name for name, times in Counter(one.node_id for one in facts).items() if times > 1):
        text = f"Node {twice[0]!r} is listed more than once; each shard needs its own node."
        return (Problem("node_duplicate", text, _FIELD),)
    found = [
        Problem("runtime_unavailable", f"The agent of node {one.node_id!r} cannot run shards; upgrade it.", _FIELD)
        for one in facts
        if one.capabilities is not None and Feature.REPLICAS_SHARDS not in one.capabilities.features
    ]
    if len({node.gpus for node in nodes}) > 1:
        counts = ", ".join(f"{node.facts.node_id}: {node.gpus}" for node in nodes)
        text = f"Every shard of a replica needs the same number of GPUs ({counts})."
        found.append(Problem("gpu_capacity_mismatch", text, _FIELD))
    if not found and not shared_fabrics([one.capabilities for one in facts]):
        found.append(Problem("no_shared_fabric", _no_fabric(facts), _FIELD))
    if not found and (alone := _unreachable(nodes)):
        text = (
            f"Node {alone.facts.node_id!r} has the address {alone.address}, which other machines cannot reach; set "
            "a network address in its settings."
        )
        found.append(Problem("address_local", text, _FIELD))
    return tuple(found)


def _unreachable(nodes: Sequence[ShardNode]) -> ShardNode | None:
    """Return a node that only this machine can reach, unless all nodes are on this machine."""
    local = [node for node in nodes if _is_loopback(node.address)]
    return local[0] if local and len(local) < len(nodes) else None


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _no_fabric(facts: Sequence[NodeFacts]) -> str:
    islands = [one.node_id for one in facts if not fabrics_of(one.capabilities)]
    if islands:
        return (
            f"Node {islands[0]!r} has no usable fabric, so it runs single-node replicas only. Set its "
            "fabric at join (--fabric) or in its agent.json."
        )
    fabrics = "; ".join(f"{one.node_id}: {', '.join(sorted(fabrics_of(one.capabilities)))}" for one in facts)
    return f"These nodes share no fabric ({fabrics}); choose nodes on the same one."
