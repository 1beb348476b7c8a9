"""The ranking of nodes: what is better, and why the others are none."""

import pytest

from agent.wire.capability import Delivery, GpuCapability, MemoryModel, Runtime, RuntimeCapability
from models_app.fit import ModelShape, serve_plan
from models_app.fit.shape import CacheGroup
from models_app.fit.verdict import Room, State
from models_app.placement.feasible import NodeFacts
from models_app.placement.fleet import Card, Machine
from models_app.placement.planner import Wish, plan
from tests.models_app.things import GIB, capabilities

pytestmark = pytest.mark.unit
SHAPE = ModelShape(
    "safetensors", weights_bytes=14 * GIB, groups=(CacheGroup("full", 32, 1024, 1024, 8),), layers=32, hidden=4096,
    intermediate=14336, vocabulary=32000, attention_heads=32, context=8192,
)  # fmt: skip
SMALL_SHARE = ("--gpu-memory-utilization", "0.75")


def card(index: int, free: float | None, *, name="RTX 4090", total=24, models=0, problem="") -> Card:
    room = Room(f"GPU {index}", f"GPU-{index}", total * GIB, None if free is None else int(free * GIB))
    return Card(room, name, total * GIB, models, problem)


def machine(node_id: str, *cards: Card, host: float | None = 60, **more) -> Machine:
    gpus = tuple(GpuCapability(uuid=item.uuid, name=item.name, memory_bytes=item.memory) for item in cards)
    known = capabilities(*gpus, **({"allow_tag_pulls": True} | more.pop("caps", {})))
    facts = NodeFacts(node_id, more.pop("lifecycle", "approved"), more.pop("draining", False), known)
    room = Room("host memory", "", 64 * GIB, None if host is None else int(host * GIB), 4 * GIB)
    images = dict.fromkeys(Runtime, ("vllm/vllm-openai", ""))
    return Machine(facts, room, cards, **({"images": images} | more))


def wish(*args: str, runtime="vllm", delivery="container", shape=SHAPE, **more) -> Wish:
    return Wish(
        runtime, delivery, shape, serve_plan(runtime, (*SMALL_SHARE, *args) if runtime == "vllm" else args), **more
    )


def order(found) -> list[tuple[str, tuple[str, ...]]]:
    return [(choice.node_id, choice.gpu_uuids) for choice in found.choices]


def test_the_smallest_hole_that_is_enough_is_taken_so_that_large_ones_stay() -> None:
    found = plan(wish(), [machine("a", card(0, 23), card(1, 19), card(2, 21))])
    assert order(found) == [("a", ("GPU-1",))]
    found = plan(wish(), [machine("large", card(0, 40, total=48, name="A6000")), machine("small", card(0, 19))])
    assert order(found)[0] == ("small", ("GPU-0",))


def test_fewer_models_go_before_a_smaller_hole() -> None:
    found = plan(wish(), [machine("a", card(0, 19, models=2), card(1, 23))])
    assert order(found) == [("a", ("GPU-1",))]
    found = plan(wish(), [machine("busy", card(0, 19), models=5), machine("idle", card(0, 19))])
    assert [choice.node_id for choice in found.choices] == ["idle", "busy"]


def test_a_node_that_has_the_weights_goes_first() -> None:
    found = plan(wish(), [machine("a", card(0, 20)), machine("b", card(0, 20), models=3, holds_weights=True)])
    assert [choice.node_id for choice in found.choices] == ["b", "a"]
    assert "has the weights" in found.best.why
    assert "has to download the weights" in found.choices[1].why


def test_one_card_goes_before_two_and_two_only_where_one_is_not_enough() -> None:
    big = ModelShape(**{name: getattr(SHAPE, name) for name in ModelShape.__slots__} | {"weights_bytes": 28 * GIB})
    found = plan(wish(shape=big), [machine("two", card(0, 23), card(1, 23)), machine("one", card(0, 46, total=48))])
    assert order(found) == [("one", ("GPU-0",)), ("two", ("GPU-0", "GPU-1"))]


def test_only_equal_cards_work_as_one() -> None:
    big = ModelShape(**{name: getattr(SHAPE, name) for name in ModelShape.__slots__} | {"weights_bytes": 28 * GIB})
    mixed = machine("mixed", card(0, 23), card(1, 23, name="RTX 3090"), card(2, 15, total=16))
    found = plan(wish(shape=big), [mixed])
    assert found.best is None
    assert found.refusals[0].code == "memory_short"
    found = plan(wish(shape=big), [machine("pair", card(0, 23, name="RTX 3090"), card(1, 23), card(2, 23))])
    assert order(found) == [("pair", ("GPU-1", "GPU-2"))]


def test_what_fits_tightly_goes_last() -> None:
    llama = {"runtime": "llama.cpp", "delivery": "container"}
    found = plan(wish(**llama), [machine("a", card(0, 16.6)), machine("b", card(0, 23), models=3)])
    assert [(choice.node_id, choice.verdict.state) for choice in found.choices] == [
        ("b", State.FITS),
        ("a", State.TIGHT),
    ]


NO_VLLM = {(Runtime.VLLM, Delivery.CONTAINER): "No Docker."}
REFUSED = [
    ("a node that is away", machine("n", card(0, 23), away="Node 'n' is offline."), "node_offline"),
    ("a draining node", machine("n", card(0, 23), draining=True), "node_draining"),
    ("a node that waits", machine("n", card(0, 23), lifecycle="pending"), "node_unknown"),
    ("a node without the engine", machine("n", caps={"unavailable": NO_VLLM}), "runtime_unavailable"),
    ("an image that is not approved", machine("n", card(0, 23), caps={"allow_tag_pulls": False}), "spec_rejected"),
    ("no image at all", machine("n", card(0, 23), images={}), "image_missing"),
    ("cards that are all broken", machine("n", card(0, 23, problem="The card is lost.")), "gpus_required"),
    ("cards without room", machine("n", card(0, 10)), "memory_short"),
    ("a host without room", machine("n", card(0, 23), host=5), "memory_short"),
    ("free memory that is not reported", machine("n", card(0, None)), "fit_unknown"),
]


@pytest.mark.parametrize(("node", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_each_refusal_has_its_code_and_a_sentence(node, code) -> None:
    found = plan(wish(), [node])
    assert found.choices == ()
    (refusal,) = found.refusals
    assert refusal.code == code
    assert refusal.message.endswith(".")


def test_a_model_that_stands_there_already_is_not_placed_there_again() -> None:
    found = plan(wish(avoid={"a": "It stands there."}), [machine("a", card(0, 23)), machine("b", card(0, 23))])
    assert [choice.node_id for choice in found.choices] == ["b"]
    assert [(refusal.node_id, refusal.code) for refusal in found.refusals] == [("a", "placed_already")]


def test_an_unknown_shape_blocks_every_node_with_its_reason_unless_a_budget_is_given() -> None:
    riddle = ModelShape(problems=(("weights", "The hub is silent."), ("cache", "It is silent."), ("context", "No.")))
    found = plan(wish(shape=riddle), [machine("a", card(0, 23))])
    assert found.refusals[0].code == "fit_unknown"
    assert "The hub is silent" in found.refusals[0].message
    plan_ = serve_plan("vllm", SMALL_SHARE, gpu_budget_bytes=GIB, host_budget_bytes=GIB)
    budgeted = Wish("vllm", "container", riddle, plan_)
    assert plan(budgeted, [machine("a", card(0, 23))]).best is not None


def test_a_broken_card_does_not_keep_its_neighbours_from_work() -> None:
    found = plan(wish(), [machine("a", card(0, 23, problem="The card is lost."), card(1, 23))])
    assert order(found) == [("a", ("GPU-1",))]


def test_llama_cpp_of_the_agent_runs_on_the_processor_and_an_own_server_on_cards() -> None:
    def offer(version):
        item = RuntimeCapability(runtime=Runtime.LLAMA_CPP, delivery=Delivery.PROCESS, available=True, version=version)
        return {"runtimes": (item,)}

    wheel = machine("wheel", card(0, 23), caps=offer("2026.1"), bytes_per_second=40 * 10**9)
    own = machine("own", card(0, 23), caps=offer(None))
    found = plan(wish(runtime="llama.cpp", delivery="process"), [wheel, own])
    places = dict(order(found))
    assert places == {"wheel": (), "own": ("GPU-0",)}
    rate = next(choice for choice in found.choices if choice.node_id == "wheel").tokens_per_second
    assert rate == pytest.approx(1 / (14 * GIB / (0.68 * 40e9) + 0.005))


def test_shared_memory_is_one_budget() -> None:
    shared = machine("spark", host=40, has_gpu_with_shared_memory=True, caps={"memory_model": MemoryModel.UNIFIED})
    found = plan(wish(), [shared])
    assert found.refusals[0].code == "memory_short", "the host has 64 GiB, of which three quarters are taken"
    little = Wish("vllm", "container", SHAPE, serve_plan("vllm", ("--gpu-memory-utilization", "0.5")))
    assert order(plan(little, [shared])) == [("spark", ())]


def test_equal_places_come_in_the_order_of_their_names() -> None:
    nodes = [machine(name, card(0, 23)) for name in ("c", "a", "b")]
    assert [choice.node_id for choice in plan(wish(), nodes).choices] == ["a", "b", "c"]
