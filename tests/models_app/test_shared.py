"""Which nodes may hold one replica together."""

import pytest

from agent.wire.capability import Capabilities, FabricCapability, Feature
from models_app.placement.feasible import NodeFacts
from models_app.placement.shared import MOST_SHARDS, Seat, problems, shared_fabrics
from tests.models_app.things import capabilities

pytestmark = pytest.mark.unit


def caps(*fabrics: str, **more) -> Capabilities:
    listed = tuple(FabricCapability(name=name, adapters=("mlx5_0", "mlx5_1")) for name in fabrics)
    return capabilities(**{"fabrics": listed, "features": (Feature.REPLICAS_SHARDS,), **more})


def seat(node_id: str, *fabrics: str, address: str = "192.0.2.1", gpus: int = 0, **more) -> Seat:
    return Seat(NodeFacts(node_id, "approved", False, caps(*fabrics, **more)), address, gpus)


def codes(*seats: Seat, runtime: str = "vllm") -> list[str]:
    return [problem.code for problem in problems(runtime, seats)]


def test_nodes_of_one_fabric_may_share_a_replica() -> None:
    assert codes(seat("a", "ib-a", "ib-b"), seat("b", "ib-b"), seat("c", "ib-b", "ib-c")) == []


def test_every_two_sharing_a_fabric_is_not_enough() -> None:
    assert codes(seat("a", "x", "y"), seat("b", "y", "z"), seat("c", "z", "x")) == ["no_shared_fabric"]


def test_a_node_without_a_fabric_is_named() -> None:
    (problem,) = problems("sim", [seat("a", "ib-b"), seat("island")])
    assert problem.message.startswith("Node 'island' states no fabric")
    assert "--fabric" in problem.message


def test_what_was_not_reported_shares_nothing() -> None:
    unknown = Seat(NodeFacts("b", "approved", False, None), "192.0.2.2", 0)
    assert codes(seat("a", "ib-b"), unknown) == ["no_shared_fabric"]


def test_a_fabric_with_a_problem_does_not_count() -> None:
    down = FabricCapability(name="ib-b", adapters=("mlx5_0",), problem="The adapter mlx5_0 is not up.")
    assert shared_fabrics([caps("ib-b"), caps(fabrics=(down,))]) == ()


def test_only_engines_that_can_are_spread() -> None:
    (problem,) = problems("llama.cpp", [seat("a", "ib-b"), seat("b", "ib-b")])
    assert (problem.code, "llama.cpp runs on one node" in problem.message) == ("runtime_unavailable", True)


def test_an_agent_that_knows_no_shards_would_start_a_whole_engine() -> None:
    old = seat("old", "ib-b", features=(Feature.LAUNCH_ENV,))
    (problem,) = problems("sim", [seat("a", "ib-b"), old])
    assert (problem.code, "'old'" in problem.message) == ("runtime_unavailable", True)


def test_shards_have_as_many_gpus_each() -> None:
    assert codes(seat("a", "ib-b", gpus=2), seat("b", "ib-b", gpus=4)) == ["gpu_capacity_mismatch"]


def test_an_address_of_this_machine_alone_leads_nowhere() -> None:
    (problem,) = problems("sim", [seat("local", "ib-b", address="127.0.0.1"), seat("b", "ib-b")])
    assert (problem.code, "'local'" in problem.message) == ("address_local", True)
    assert codes(seat("a", "ib-b", address="127.0.0.1"), seat("b", "ib-b", address="::1")) == [], "one machine"


def test_a_node_holds_one_shard_of_a_replica_and_a_replica_not_too_many() -> None:
    assert codes(seat("a", "ib-b"), seat("a", "ib-b")) == ["node_duplicate"]
    assert codes(*[seat(f"n{number}", "ib-b") for number in range(MOST_SHARDS + 1)]) == ["too_many_shards"]
