"""Rows of a node as the planner sees it: every value from its column."""

from collections import Counter

import pytest

from agent.common import budget
from models_app.artifacts.defaults import default_image
from models_app.fit.verdict import Capacity
from models_app.placement import feasible, snapshot
from models_app.placement.fleet import FleetCard, Machine
from nodes.models import Gpu, Node
from tests.models_app.things import GIB, capabilities, gpu

pytestmark = pytest.mark.unit

HOST = {
    "memoryTotalBytes": 64 * GIB, "memoryAvailableBytes": 40 * GIB, "memoryBandwidthBytesPerSecond": 50 * GIB,
    "coreBandwidthBytesPerSecond": 10 * GIB, "engineThreads": 12,
}  # fmt: skip


def a_node(**columns):
    return Node(pk="pc-1", lifecycle="approved", reachability="online", **columns)


def a_card(uuid="GPU-1", **columns):
    return Gpu(uuid=uuid, **{"index": 0, "name": "RTX 4090", "memory_bytes": 24 * GIB, **columns})


def seen(card, reported=None):
    known = capabilities(*([reported] if reported else []))
    return snapshot.machine(a_node(), known, [card], snapshot.NodeLoad(), HOST).cards[0]


def test_a_machine_has_every_value_of_its_node():
    known = capabilities(gpu("GPU-1"), memory_reserve_bytes=3 * GIB)
    node = a_node(memory_reserve_bytes=5 * GIB, default_image="vllm/vllm-openai", default_image_digest="sha256:d")
    load = snapshot.NodeLoad(4, 7 * GIB, Counter({"GPU-1": 2}), Counter({"GPU-1": 6 * GIB}))
    card = a_card(reserve_bytes=GIB, seen={"totalBytes": 23 * GIB, "usedBytes": 3 * GIB})
    assert snapshot.machine(node, known, [card], load, HOST) == Machine(
        facts=feasible.NodeFacts("pc-1", "approved", False, known),
        host=Capacity(
            label="Host memory", total=64 * GIB, free=40 * GIB, promised=7 * GIB,
            reserve=budget.host_reserve(64 * GIB, 5 * GIB, 3 * GIB),
        ),
        cards=(
            FleetCard(
                capacity=Capacity(
                    label="GPU 0", uuid="GPU-1", total=23 * GIB, free=20 * GIB, reserve=GIB, promised=6 * GIB
                ),
                name="RTX 4090", memory=24 * GIB, models=2,
            ),
        ),
        models=4, unavailable="", unavailable_code="", bytes_per_second=50 * GIB, core_bytes_per_second=10 * GIB,
        engine_threads=12, images={runtime: default_image(node, runtime) for runtime in feasible.Runtime},
    )  # fmt: skip


def test_the_owners_reserve_counts_where_the_node_has_none_set():
    known = capabilities(memory_reserve_bytes=3 * GIB)
    machine = snapshot.machine(a_node(), known, [], snapshot.NodeLoad(), HOST)
    assert machine.host.reserve == budget.host_reserve(64 * GIB, None, 3 * GIB)
    assert machine.host.reserve != budget.host_reserve(64 * GIB, None, None)


def test_a_node_that_reported_nothing_is_a_machine_of_unknowns():
    machine = snapshot.machine(a_node(), None, [a_card()], snapshot.NodeLoad(), {})
    assert (machine.host.total, machine.host.free, machine.engine_threads) == (None, None, None)
    assert (machine.has_gpu_with_shared_memory, machine.cards[0].unusable) == (False, False)
    assert machine.cards[0].capacity.total == 24 * GIB
    assert machine.cards[0].capacity.free is None


@pytest.mark.parametrize("shares", [True, False])
def test_a_gpu_that_shares_the_hosts_memory_is_known(shares):
    known = capabilities(gpu("GPU-1", shares_host_memory=shares), gpu("GPU-2"))
    machine = snapshot.machine(a_node(), known, [a_card()], snapshot.NodeLoad(), HOST)
    assert machine.has_gpu_with_shared_memory is shares


@pytest.mark.parametrize(
    ("values", "problem", "unusable"),
    [
        ({}, "", False),
        ({"lost": True}, "The GPU is lost.", True),
        ({"problem": "It is warm."}, "It is warm.", False),
        ({"lost": True, "problem": "It fell off the bus."}, "It fell off the bus.", True),
        ({"problemCode": "gpu_reset_required", "problem": "It wants a reset."}, "It wants a reset.", True),
    ],
)
def test_what_is_wrong_with_a_card_is_said_and_whether_it_can_be_used(values, problem, unusable):
    card = seen(a_card(seen=values))
    assert (card.problem, card.unusable) == (problem, unusable)


def test_what_the_capabilities_say_of_a_card_comes_first():
    card = seen(a_card(seen={"problem": "older"}), reported=gpu("GPU-1", problem="The driver does not answer."))
    assert card.problem == "The driver does not answer."
    other = seen(a_card("GPU-9", seen={"problem": "older"}), reported=gpu("GPU-1", problem="newer"))
    assert other.problem == "older"


def test_cards_come_by_index_and_those_without_one_last():
    cards = [
        a_card("GPU-b", index=None),
        a_card("GPU-c", index=1),
        a_card("GPU-a", index=None),
        a_card("GPU-d", index=0),
    ]
    machine = snapshot.machine(a_node(), None, cards, snapshot.NodeLoad(), {})
    assert [card.uuid for card in machine.cards] == ["GPU-d", "GPU-c", "GPU-a", "GPU-b"]


@pytest.mark.parametrize(
    ("reachability", "code", "words"),
    [
        ("offline", "node_offline", "Node 'pc-1' is offline. It is off."),
        ("incompatible", "node_incompatible", "Node 'pc-1' is incompatible. It is off."),
        ("fenced", "node_pending_takeover", "Node 'pc-1' obeys another master and waits for a takeover. It is off."),
        ("unknown", "node_offline", "Node 'pc-1' is offline. It is off."),
    ],
)
def test_a_node_that_does_not_serve_says_why(reachability, code, words):
    node = Node(pk="pc-1", lifecycle="approved", reachability=reachability, reachability_reason="It is off.")
    machine = snapshot.machine(node, None, [], snapshot.NodeLoad(), {})
    assert (machine.unavailable_code, machine.unavailable) == (code, words)


@pytest.mark.parametrize("value", ["12", 1.5, True, None, [1]])
def test_a_value_that_is_no_number_is_unknown(value):
    machine = snapshot.machine(a_node(), None, [], snapshot.NodeLoad(), {"engineThreads": value})
    assert machine.engine_threads is None
