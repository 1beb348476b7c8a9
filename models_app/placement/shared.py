"""Which nodes may share one replica: the rules of fabrics, over the reports of several nodes. Pure."""

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
    """The fabrics that a node can use now, each with the node's adapters."""
    if capabilities is None:
        return {}
    return {fabric.name: fabric.adapters for fabric in capabilities.fabrics if fabric.problem is None}


def shared_fabrics(each: Sequence[Capabilities | None]) -> tuple[str, ...]:
    """The fabrics that all of `each` can use, by name."""
    common = set(fabrics_of(each[0])) if each else set()
    for capabilities in each[1:]:
        common &= set(fabrics_of(capabilities))
    return tuple(sorted(common))


@dataclass(frozen=True, slots=True)
class Seat:
    """One shard's place: what is known of the node, where it is dialled, how many GPUs are chosen."""

    facts: NodeFacts
    address: str
    gpus: int


def problems(runtime: str, seats: Sequence[Seat]) -> tuple[Problem, ...]:
    """What keeps existing nodes, two or more, from holding one replica together."""
    facts = [seat.facts for seat in seats]
    if len(facts) > MOST_SHARDS:
        return (Problem("too_many_shards", f"A replica has at most {MOST_SHARDS} shards.", _FIELD),)
    if runtime not in MULTI_NODE_RUNTIMES:
        text = f"{runtime} runs on one node alone; give the replica one node, or choose another engine."
        return (Problem("runtime_unavailable", text, _FIELD),)
    if twice := sorted(name for name, times in Counter(one.node_id for one in facts).items() if times > 1):
        text = f"Node {twice[0]!r} is listed more than once; each shard of a replica needs a node of its own."
        return (Problem("node_duplicate", text, _FIELD),)
    found = [
        Problem("runtime_unavailable", f"The agent of node {one.node_id!r} cannot run shards; upgrade it.", _FIELD)
        for one in facts
        if one.capabilities is not None and Feature.REPLICAS_SHARDS not in one.capabilities.features
    ]
    if len({seat.gpus for seat in seats}) > 1:
        counts = ", ".join(f"{seat.facts.node_id}: {seat.gpus}" for seat in seats)
        text = f"Every shard of a replica needs the same number of GPUs ({counts})."
        found.append(Problem("gpu_capacity_mismatch", text, _FIELD))
    if not found and not shared_fabrics([one.capabilities for one in facts]):
        found.append(Problem("no_shared_fabric", _no_fabric(facts), _FIELD))
    if not found and (alone := _unreachable(seats)):
        text = (
            f"Node {alone.facts.node_id!r} is dialled at {alone.address}, where no other machine can reach it; give it "
            "an address of the network in its settings."
        )
        found.append(Problem("address_local", text, _FIELD))
    return tuple(found)


def _unreachable(seats: Sequence[Seat]) -> Seat | None:
    """A node that only this machine can reach, unless all of them are on this machine."""
    local = [seat for seat in seats if _is_loopback(seat.address)]
    return local[0] if local and len(local) < len(seats) else None


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _no_fabric(facts: Sequence[NodeFacts]) -> str:
    islands = [one.node_id for one in facts if not fabrics_of(one.capabilities)]
    if islands:
        return (
            f"Node {islands[0]!r} states no fabric that it can use, so it holds single-node replicas only. State its "
            "fabric when it joins (--fabric), or in its agent.json."
        )
    said = "; ".join(f"{one.node_id}: {', '.join(sorted(fabrics_of(one.capabilities)))}" for one in facts)
    return f"These nodes share no fabric ({said}); choose nodes on the same one."
