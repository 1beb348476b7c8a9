"""Nodes that may hold one replica together."""

import pytest

from agent.wire.capability import Capabilities, FabricCapability, Feature
from models_app.placement.feasible import NodeFacts
from models_app.placement.multi_node import MOST_SHARDS, ShardNode, fabrics_of, problems, shared_fabrics
from tests.models_app.things import capabilities

pytestmark = pytest.mark.unit


def caps(*fabrics: str, **more) -> Capabilities:
    listed = tuple(FabricCapability(name=name, adapters=("mlx5_0", "mlx5_1")) for name in fabrics)
    return capabilities(**{"fabrics": listed, "features": (Feature.REPLICAS_SHARDS,), **more})


def node(node_id: str, *fabrics: str, address: str = "192.0.2.1", gpus: int = 0, **more) -> ShardNode:
    return ShardNode(NodeFacts(node_id, "approved", False, caps(*fabrics, **more)), address, gpus)


def codes(*nodes: ShardNode, runtime: str = "vllm") -> list[str]:
    return [problem.code for problem in problems(runtime, nodes)]


def test_nodes_of_one_fabric_may_share_a_replica() -> None:
    assert codes(node("a", "ib-a", "ib-b"), node("b", "ib-b"), node("c", "ib-b", "ib-c")) == []


def test_every_two_sharing_a_fabric_is_not_enough() -> None:
    assert codes(node("a", "x", "y"), node("b", "y", "z"), node("c", "z", "x")) == ["no_shared_fabric"]


def test_a_node_without_a_fabric_is_named() -> None:
    (problem,) = problems("sim", [node("a", "ib-b"), node("island")])
    assert problem.message.startswith("Node 'island' has no usable fabric")
    assert "--fabric" in problem.message


def test_what_was_not_reported_shares_nothing() -> None:
    unknown = ShardNode(NodeFacts("b", "approved", False, None), "192.0.2.2", 0)
    assert codes(node("a", "ib-b"), unknown) == ["no_shared_fabric"]


def test_a_fabric_with_a_problem_does_not_count() -> None:
    down = FabricCapability(name="ib-b", adapters=("mlx5_0",), problem="The adapter mlx5_0 is not up.")
    assert shared_fabrics([caps("ib-b"), caps(fabrics=(down,))]) == ()


def test_only_engines_that_can_are_spread() -> None:
    (problem,) = problems("llama.cpp", [node("a", "ib-b"), node("b", "ib-b")])
    assert (problem.code, "llama.cpp cannot run on several nodes" in problem.message) == ("runtime_unavailable", True)


def test_an_agent_that_knows_no_shards_would_start_a_whole_engine() -> None:
    old = node("old", "ib-b", features=(Feature.LAUNCH_ENV,))
    (problem,) = problems("sim", [node("a", "ib-b"), old])
    assert (problem.code, "'old'" in problem.message) == ("runtime_unavailable", True)


def test_shards_have_as_many_gpus_each() -> None:
    assert codes(node("a", "ib-b", gpus=2), node("b", "ib-b", gpus=4)) == ["gpu_capacity_mismatch"]


def test_an_address_of_this_machine_alone_leads_nowhere() -> None:
    (problem,) = problems("sim", [node("local", "ib-b", address="127.0.0.1"), node("b", "ib-b")])
    assert (problem.code, "'local'" in problem.message) == ("address_local", True)
    assert codes(node("a", "ib-b", address="127.0.0.1"), node("b", "ib-b", address="::1")) == [], "one machine"


def test_a_node_holds_one_shard_of_a_replica_and_a_replica_not_too_many() -> None:
    assert codes(node("a", "ib-b"), node("a", "ib-b")) == ["node_duplicate"]
    assert codes(*[node(f"n{number}", "ib-b") for number in range(MOST_SHARDS + 1)]) == ["too_many_shards"]


def sentence(*nodes: ShardNode, runtime: str = "sim") -> str:
    (problem,) = problems(runtime, nodes)
    assert problem.field == "placements"
    return problem.message


def test_each_refusal_says_what_to_do() -> None:
    assert sentence(node("a", "x", "y"), node("b", "y", "z"), node("c", "z", "x")) == (
        "These nodes share no fabric (a: x, y; b: y, z; c: x, z); choose nodes on the same one."
    )
    assert sentence(node("a", "x"), node("island"), node("other")) == (
        "Node 'island' has no usable fabric, so it runs single-node replicas only. "
        "Set its fabric at join (--fabric) or in its agent.json."
    )
    assert sentence(node("a", "x"), node("b", "x"), runtime="llama.cpp") == (
        "llama.cpp cannot run on several nodes; choose one node, or another engine."
    )
    old = node("old", "x", features=(Feature.LAUNCH_ENV,))
    assert sentence(node("a", "x"), old) == "The agent of node 'old' cannot run shards; upgrade it."
    assert sentence(node("a", "x", gpus=2), node("b", "x", gpus=4)) == (
        "Every shard of a replica needs the same number of GPUs (a: 2, b: 4)."
    )
    assert sentence(node("b", "x"), node("local", "x", address="localhost")) == (
        "Node 'local' has the address localhost, which other machines cannot reach; "
        "set a network address in its settings."
    )
    twice = [node("b", "x"), node("b", "x"), node("a", "x"), node("a", "x"), node("c", "x")]
    assert sentence(*twice) == "Node 'a' is listed more than once; each shard needs its own node."
    many = [node(f"n{number}", "x") for number in range(MOST_SHARDS + 1)]
    assert sentence(*many) == "A replica has at most 64 shards."
    assert codes(*many[:MOST_SHARDS]) == []


def test_old_agents_and_unequal_shards_are_told_together_and_before_the_fabric() -> None:
    old = node("old", gpus=1, features=(Feature.LAUNCH_ENV,))
    assert codes(node("a", "x", gpus=2), old) == ["runtime_unavailable", "gpu_capacity_mismatch"]


def test_a_name_is_taken_for_an_address_of_the_network() -> None:
    assert codes(node("a", "x", address="gpu-box.lan"), node("b", "x", address="gpu-box-2.lan")) == []


def test_fabrics_are_listed_with_their_adapters() -> None:
    down = FabricCapability(name="z", adapters=("mlx5_9",), problem="Down.")
    up = FabricCapability(name="ib-b", adapters=("mlx5_0", "mlx5_1"))
    assert fabrics_of(caps(fabrics=(down, up))) == {"ib-b": ("mlx5_0", "mlx5_1")}
    assert fabrics_of(None) == {}
    assert shared_fabrics([caps("b", "a", "c"), caps("c", "a")]) == ("a", "c")
    assert shared_fabrics([]) == ()
