"""The ranking of nodes: what is better, and why the others are none."""

from dataclasses import replace

import pytest

from agent.wire.capability import Delivery, GpuCapability, MemoryModel, Runtime, RuntimeCapability
from models_app.fit import Estimate, ModelShape, estimate, serve_plan
from models_app.fit.shape import CacheGroup
from models_app.fit.verdict import Capacity, FitState
from models_app.placement import planner
from models_app.placement.feasible import NodeFacts
from models_app.placement.fleet import FleetCard, Machine
from models_app.placement.planner import PlanRequest, Rejection, cards_for, consider, plan, reject, reject_node
from tests.models_app.things import GIB, capabilities

pytestmark = pytest.mark.unit
SHAPE = ModelShape(
    "safetensors", weights_bytes=14 * GIB, groups=(CacheGroup("full", 32, 1024, 1024, 8),), layers=32, hidden=4096,
    intermediate=14336, vocabulary=32000, attention_heads=32, context=8192,
)  # fmt: skip
SMALL_SHARE = ("--gpu-memory-utilization", "0.75")


def card(index: int, free: float | None, *, name="RTX 4090", total=24, models=0, problem="") -> FleetCard:
    room = Capacity(f"GPU {index}", f"GPU-{index}", total * GIB, None if free is None else int(free * GIB))
    return FleetCard(room, name, total * GIB, models, problem)


def machine(node_id: str, *cards: FleetCard, host: float | None = 60, **more) -> Machine:
    gpus = tuple(GpuCapability(uuid=item.uuid, name=item.name, memory_bytes=item.memory) for item in cards)
    known = capabilities(*gpus, **({"allow_tag_pulls": True} | more.pop("caps", {})))
    facts = NodeFacts(node_id, more.pop("lifecycle", "approved"), more.pop("draining", False), known)
    room = Capacity("Host memory", "", 64 * GIB, None if host is None else int(host * GIB), 4 * GIB)
    images = dict.fromkeys(Runtime, ("vllm/vllm-openai", ""))
    return Machine(facts, room, cards, **({"images": images} | more))


def request(*args: str, runtime="vllm", delivery="container", shape=SHAPE, **more) -> PlanRequest:
    return PlanRequest(
        runtime, delivery, shape, serve_plan(runtime, (*SMALL_SHARE, *args) if runtime == "vllm" else args), **more
    )


def order(found) -> list[tuple[str, tuple[str, ...]]]:
    return [(candidate.node_id, candidate.gpu_uuids) for candidate in found.candidates]


def test_the_smallest_hole_that_is_enough_is_taken_so_that_large_ones_stay() -> None:
    found = plan(request(), [machine("a", card(0, 23), card(1, 19), card(2, 21))])
    assert order(found) == [("a", ("GPU-1",))]
    found = plan(request(), [machine("large", card(0, 40, total=48, name="A6000")), machine("small", card(0, 19))])
    assert order(found)[0] == ("small", ("GPU-0",))


def test_nodes_whose_gaps_differ_by_less_than_a_gib_count_as_equal() -> None:
    found = plan(request(), [machine("b", card(0, 22.1)), machine("a", card(0, 22.4)), machine("c", card(0, 21.9))])
    assert [candidate.node_id for candidate in found.candidates] == ["c", "a", "b"]
    assert [candidate.rank[-1] for candidate in found.candidates] == [3, 4, 4]


def test_fewer_models_go_before_a_smaller_hole() -> None:
    found = plan(request(), [machine("a", card(0, 19, models=2), card(1, 23))])
    assert order(found) == [("a", ("GPU-1",))]
    found = plan(request(), [machine("busy", card(0, 19), models=5), machine("idle", card(0, 19))])
    assert [candidate.node_id for candidate in found.candidates] == ["idle", "busy"]


def test_a_node_that_has_the_weights_goes_first() -> None:
    found = plan(request(), [machine("a", card(0, 20)), machine("b", card(0, 20), models=3, holds_weights=True)])
    assert [candidate.node_id for candidate in found.candidates] == ["b", "a"]
    assert "has the weights" in found.best.why
    assert "needs to download the weights" in found.candidates[1].why


def test_one_card_goes_before_two_and_two_only_where_one_is_not_enough() -> None:
    big = replace(SHAPE, weights_bytes=28 * GIB)
    found = plan(request(shape=big), [machine("two", card(0, 23), card(1, 23)), machine("one", card(0, 46, total=48))])
    assert order(found) == [("one", ("GPU-0",)), ("two", ("GPU-0", "GPU-1"))]


def test_only_equal_cards_work_as_one() -> None:
    big = replace(SHAPE, weights_bytes=28 * GIB)
    mixed = machine("mixed", card(0, 23), card(1, 23, name="RTX 3090"), card(2, 15, total=16))
    found = plan(request(shape=big), [mixed])
    assert found.best is None
    assert found.rejections[0].code == "memory_short"
    found = plan(request(shape=big), [machine("pair", card(0, 23, name="RTX 3090"), card(1, 23), card(2, 23))])
    assert order(found) == [("pair", ("GPU-1", "GPU-2"))]


def test_what_fits_tightly_goes_last() -> None:
    llama = {"runtime": "llama.cpp", "delivery": "container"}
    found = plan(request(**llama), [machine("a", card(0, 16.6)), machine("b", card(0, 23), models=3)])
    assert [(candidate.node_id, candidate.verdict.state) for candidate in found.candidates] == [
        ("b", FitState.FITS),
        ("a", FitState.TIGHT),
    ]


NO_VLLM = {(Runtime.VLLM, Delivery.CONTAINER): "No Docker."}
REFUSED = [
    ("a node that is away", machine("n", card(0, 23), unavailable="Node 'n' is offline."), "node_offline"),
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
    found = plan(request(), [node])
    assert found.candidates == ()
    (rejection,) = found.rejections
    assert rejection.code == code
    assert rejection.message.endswith(".")


def test_a_model_that_stands_there_already_is_not_placed_there_again() -> None:
    found = plan(request(avoid={"a": "It stands there."}), [machine("a", card(0, 23)), machine("b", card(0, 23))])
    assert [candidate.node_id for candidate in found.candidates] == ["b"]
    assert [(rejection.node_id, rejection.code) for rejection in found.rejections] == [("a", "placed_already")]


def test_an_unknown_shape_blocks_every_node_with_its_reason_unless_a_budget_is_given() -> None:
    riddle = ModelShape(problems=(("weights", "The hub is silent."), ("cache", "It is silent."), ("context", "No.")))
    found = plan(request(shape=riddle), [machine("a", card(0, 23))])
    assert found.rejections[0].code == "fit_unknown"
    assert "The hub is silent" in found.rejections[0].message
    plan_ = serve_plan("vllm", SMALL_SHARE, gpu_budget_bytes=GIB, host_budget_bytes=GIB)
    budgeted = PlanRequest("vllm", "container", riddle, plan_)
    assert plan(budgeted, [machine("a", card(0, 23))]).best is not None


def test_a_broken_card_does_not_keep_its_neighbours_from_work() -> None:
    found = plan(request(), [machine("a", card(0, 23, problem="The card is lost."), card(1, 23))])
    assert order(found) == [("a", ("GPU-1",))]


def test_llama_cpp_of_the_agent_runs_on_the_processor_and_an_own_server_on_cards() -> None:
    def offer(version):
        item = RuntimeCapability(runtime=Runtime.LLAMA_CPP, delivery=Delivery.PROCESS, available=True, version=version)
        return {"runtimes": (item,)}

    wheel = machine("wheel", card(0, 23), caps=offer("2026.1"), bytes_per_second=40 * 10**9)
    own = machine("own", card(0, 23), caps=offer(None))
    found = plan(request(runtime="llama.cpp", delivery="process"), [wheel, own])
    places = dict(order(found))
    assert places == {"wheel": (), "own": ("GPU-0",)}
    rate = next(candidate for candidate in found.candidates if candidate.node_id == "wheel").tokens_per_second
    assert rate == pytest.approx(1 / (14 * GIB / (0.68 * 40e9) + 0.005))


def test_the_version_of_the_same_runtime_and_delivery_tells_whose_llama_cpp_it_is() -> None:
    def offer(runtime: Runtime, delivery: Delivery, version: str | None) -> RuntimeCapability:
        return RuntimeCapability(runtime=runtime, delivery=delivery, available=True, version=version)

    others = (
        offer(Runtime.LLAMA_CPP, Delivery.CONTAINER, "b7100"),
        offer(Runtime.SIM, Delivery.PROCESS, "1"),
        offer(Runtime.LLAMA_CPP, Delivery.PROCESS, None),
    )
    wanted = request(runtime="llama.cpp", delivery="process")
    assert order(plan(wanted, [machine("own", card(0, 23), caps={"runtimes": others})])) == [("own", ("GPU-0",))]
    without = machine("n", card(0, 23), caps={"runtimes": others[:2]})
    assert reject(wanted, without).code == "runtime_unavailable"


def test_a_node_without_cards_of_their_own_memory_is_a_host() -> None:
    small = request("--gpu-memory-utilization", "0.5")
    shared = machine("n", card(0, 23), caps={"memory_model": MemoryModel.UNIFIED})
    bare = machine("n", caps={"memory_model": MemoryModel.DISCRETE})
    assert order(plan(small, [shared])) == [("n", ())]
    assert order(plan(request(runtime="llama.cpp"), [bare])) == [("n", ())]
    assert (cards_for(small, shared), cards_for(small, bare)) == ((), ())


def test_a_node_that_has_not_reported_yet_is_rejected_with_that_reason() -> None:
    node = machine("n", card(0, 23))
    silent = replace(node, facts=replace(node.facts, capabilities=None))
    (rejection,) = plan(request(), [silent]).rejections
    assert rejection.code == "runtime_unavailable"
    assert rejection.message == "Node 'n' has not reported its runtimes yet; try again in a moment."
    assert cards_for(request(), silent) == ()


def test_settings_that_an_engine_refuses_go_before_a_lack_of_memory() -> None:
    odd = request(shape=replace(SHAPE, weights_bytes=28 * GIB, attention_heads=31))
    (rejection,) = plan(odd, [machine("n", card(0, 23), card(1, 23))]).rejections
    assert (rejection.code, rejection.message) == (
        "tensor_parallel_mismatch",
        "vLLM splits attention heads evenly: 31 cannot be split over 2 GPUs.",
    )


def test_a_need_that_is_unknown_without_a_reason_is_said_so() -> None:
    def silent(cards: int, *, shares_memory: bool = False) -> Estimate:
        return replace(estimate(SHAPE, serve_plan("vllm").on(cards)), gpu_bytes=None, reasons=())

    assert consider(request(), machine("n", card(0, 23)), silent) == Rejection(
        "n",
        "fit_unknown",
        "Fit unknown (the memory that the model needs is unknown); choose the node yourself, or set a memory budget.",
    )


def test_each_kind_of_card_is_tried_and_the_first_of_equal_ones_stays() -> None:
    found = plan(request(), [machine("n", card(0, 15, total=16, name="T4"), card(1, 23))])
    assert order(found) == [("n", ("GPU-1",))]
    assert order(plan(request(), [machine("n", card(0, 23, name="B"), card(1, 23, name="A"))])) == [("n", ("GPU-0",))]


def test_shared_memory_is_one_budget() -> None:
    shared = machine("spark", host=40, has_gpu_with_shared_memory=True, caps={"memory_model": MemoryModel.UNIFIED})
    found = plan(request(), [shared])
    assert found.rejections[0].code == "memory_short", "the host has 64 GiB, of which three quarters are taken"
    little = PlanRequest("vllm", "container", SHAPE, serve_plan("vllm", ("--gpu-memory-utilization", "0.5")))
    assert order(plan(little, [shared])) == [("spark", ())]


def test_memory_is_shared_with_a_gpu_only_where_an_engine_uses_one() -> None:
    shared = machine(
        "spark", has_gpu_with_shared_memory=True, caps={"memory_model": MemoryModel.UNIFIED}, bytes_per_second=10**9
    )
    plain = machine("plain", bytes_per_second=10**9)
    for runtime, node, shares in (
        ("llama.cpp", shared, True), ("llama.cpp", plain, False), ("sim", shared, False), ("sim", plain, False),
    ):  # fmt: skip
        wanted = request(runtime=runtime, delivery="process")
        best = plan(wanted, [node]).best
        assert best is not None
        assert best.estimate == estimate(SHAPE, wanted.plan.on(0, shares_memory=shares))
        assert (best.tokens_per_second is None) is ((runtime, node) != ("llama.cpp", plain)), (
            "only an engine on the processor is as slow as the memory"
        )


def test_equal_places_come_in_the_order_of_their_names() -> None:
    nodes = [machine(name, card(0, 23)) for name in ("c", "a", "b")]
    assert [candidate.node_id for candidate in plan(request(), nodes).candidates] == ["a", "b", "c"]


SENTENCES = {
    "a node that is away": "Node 'n' is offline.",
    "a draining node": "Node 'n' is draining: undrain it, or choose another node.",
    "a node that waits": "Node 'n' is not approved yet; approve it first.",
    "a node without the engine": "Node 'n' cannot run vllm as a container: No Docker.",
    "no image at all": "The model has no image, and node 'n' has no default image.",
    "cards that are all broken": "Node 'n' has no usable GPU now. The card is lost.",
    "cards without room": "GPU 0: needs 17.0 GiB, 10 GiB free. The engine would take 75% of it, 18 GiB.",
    "a host without room": "Host memory: needs 6 GiB, 1 GiB free.",
    "free memory that is not reported": (
        "Fit unknown (GPU 0: free memory not reported); choose the node yourself, or set a memory budget."
    ),
}


@pytest.mark.parametrize(("name", "node", "code"), REFUSED, ids=[row[0] for row in REFUSED])
def test_each_rejection_names_its_node_and_its_reason(name, node, code) -> None:
    (rejection,) = plan(request(), [node]).rejections
    assert rejection.node_id == "n"
    assert rejection.message == SENTENCES.get(name, rejection.message)
    rules = {"node_draining", "node_unknown", "runtime_unavailable"}
    assert [problem.code for problem in rejection.problems] == ([code] if code in rules else [])


def test_an_image_is_judged_as_the_agent_will() -> None:
    (rejection,) = plan(request(), [REFUSED[4][1]]).rejections
    assert rejection.message.startswith("Node 'n': ")
    assert "'vllm/vllm-openai' names none" in rejection.message
    own = request(image="example.org/vllm", image_digest=f"sha256:{'b' * 64}")
    approved = machine(
        "n", card(0, 23), caps={"allow_tag_pulls": False, "approved_images": (f"example.org/vllm@sha256:{'b' * 64}",)}
    )
    assert order(plan(own, [approved])) == [("n", ("GPU-0",))]
    assert order(plan(request(delivery="process"), [machine("n", card(0, 23), images={})])) == [("n", ("GPU-0",))]


def test_a_candidate_explains_its_rank() -> None:
    best = plan(
        request(), [machine("a", card(0, 23, models=1), card(1, 23, models=2), models=3, holds_weights=True)]
    ).best
    assert best is not None
    assert best.why == ("fits on GPU 0", "has the weights", "1 other model on these GPUs", "5 GiB would remain free")
    assert best.rank == (0, 1, 0, 1, 3, 5)
    assert (best.gpu_labels, best.tokens_per_second) == (("GPU 0",), None)
    assert (best.estimate.gpus, best.verdict.state) == (1, FitState.FITS)
    free = plan(request(runtime="sim", delivery="process"), [machine("a", card(0, 23), host=None)])
    assert [rejection.code for rejection in free.rejections] == ["fit_unknown"]
    sim = plan(request(runtime="sim", delivery="process"), [machine("a", card(0, 23), models=2)]).best
    assert sim is not None
    assert sim.why[0] == "fits on the host"
    assert sim.why[1:3] == ("needs to download the weights", "2 other models on the node")
    assert (sim.gpu_uuids, sim.gpu_labels, sim.tokens_per_second) == ((), (), None)
    idle = plan(request(runtime="sim", delivery="process"), [machine("a")]).best
    assert idle is not None
    assert idle.why[2] == "no other model on the node"


def test_nothing_is_best_where_nothing_fits_and_rejections_are_sorted() -> None:
    found = plan(request(), [machine("b", card(0, 1)), machine("a", card(0, 1))])
    assert (found.best, [rejection.node_id for rejection in found.rejections]) == (None, ["a", "b"])


def test_the_first_reason_against_a_node_is_the_one_that_a_person_can_change_first() -> None:
    worst = machine("n", card(0, 1), draining=True, unavailable="Node 'n' is offline.", images={})
    assert reject(request(avoid={"n": "Already there."}), worst) == Rejection("n", "placed_already", "Already there.")
    assert reject(request(), worst).code == "node_draining"
    away = machine(
        "n", card(0, 1), unavailable="Gone.", unavailable_code="node_incompatible", caps={"unavailable": NO_VLLM}
    )
    assert reject(request(), away) == Rejection("n", "node_incompatible", "Gone.")
    assert reject_node(away) == Rejection("n", "node_incompatible", "Gone.")
    assert reject(request(), machine("n", card(0, 1))) is None, "memory is not judged here"
    assert reject_node(machine("n", card(0, 1), caps={"unavailable": NO_VLLM})) is None, (
        "nor is the engine of one model"
    )


def test_an_agent_that_cannot_assign_gpus_is_rejected_before_any_are_chosen() -> None:
    old = machine("n", card(0, 23), caps={"features": ()})
    assert reject(request(), old).code == "runtime_unavailable"
    assert reject(request(runtime="sim", delivery="process"), old) is None


def test_two_four_eight_and_sixteen_cards_work_as_one_and_no_other_number() -> None:
    def sized(weights: int) -> ModelShape:
        return replace(SHAPE, weights_bytes=weights * GIB)

    def cards_of(weights: int, count: int) -> list[int]:
        large = Capacity("Host memory", "", 512 * GIB, 500 * GIB, 4 * GIB)
        node = replace(machine("n", *[card(number, 23) for number in range(count)]), host=large)
        return [len(uuids) for _, uuids in order(plan(request(shape=sized(weights)), [node]))]

    assert [cards_of(weights, 32) for weights in (14, 28, 56, 110, 220)] == [[1], [2], [4], [8], [16]]
    assert cards_of(28, 1) == []
    assert cards_of(56, 3) == []
    assert cards_of(110, 7) == []


def test_without_any_place_the_cards_that_it_would_get_are_those_with_most_room() -> None:
    node = machine("n", card(0, 1), card(1, 5), card(2, 3))
    assert cards_for(request(), node) == ("GPU-1", "GPU-2")
    assert cards_for(request(), machine("n", card(0, None), card(1, 3), card(2, 5))) == ("GPU-1", "GPU-2")
    unknown = request(shape=ModelShape(problems=(("weights", "The hub is silent."),)))
    assert cards_for(unknown, node) == ("GPU-1", "GPU-2")
    assert cards_for(request(), machine("n", card(0, 23), card(1, 19))) == ("GPU-1",)
    assert cards_for(request(runtime="sim", delivery="process"), node) == ()
    assert cards_for(request(), machine("n")) == ()
    assert cards_for(request(), machine("n", card(0, 23, problem="Lost."))) == ()
    full = [card(number, 1) for number in range(5)]
    assert cards_for(request(), machine("n", *full)) == ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
    mixed = machine("n", card(0, 5, name="A"), card(1, 1, name="B"), card(2, 1, name="B"), card(3, 9, name="C"))
    assert cards_for(request(), mixed) == ("GPU-1", "GPU-2"), "the most cards of one kind"


def test_cards_are_chosen_by_models_then_by_the_smallest_gap_then_by_their_order() -> None:
    assert cards_for(request(), machine("n", card(0, 19, models=1), card(1, 23), card(2, 22))) == ("GPU-2",)
    assert cards_for(request(runtime="llama.cpp"), machine("n", card(0, 23), card(1, 19))) == ("GPU-1",)
    assert cards_for(request(), machine("n", card(0, 22.1), card(1, 22.4))) == ("GPU-0",), (
        "less than 1 GiB counts as equal"
    )
    assert cards_for(request(), machine("n", card(0, 23, models=1), card(1, 18))) == ("GPU-1",), "18 GiB are enough"
    assert cards_for(request(), machine("n", card(0, 23, models=1), card(1, 17.9))) == ("GPU-0",)
    fraction = request("--gpu-memory-utilization", "0.73")  # 17.52 GiB, so 1.98 and 1.88 would remain
    assert cards_for(fraction, machine("n", card(0, 19.5), card(1, 19.4))) == ("GPU-0",)
    assert cards_for(fraction, machine("n", card(0, 19.6), card(1, 19.4))) == ("GPU-1",)
    big = replace(SHAPE, weights_bytes=28 * GIB)
    several = machine("n", card(0, 23), card(1, 20), card(2, 23), card(3, 20))
    assert cards_for(request(shape=big), several) == ("GPU-1", "GPU-3")


def test_the_chosen_cards_stay_in_the_order_of_the_node() -> None:
    big = replace(SHAPE, weights_bytes=28 * GIB)
    node = machine("n", card(0, 23, models=2), card(1, 23, models=3), card(2, 22, models=1))
    assert cards_for(request(shape=big), node) == ("GPU-0", "GPU-2")


LOST_DISK = {
    "warnings": ("The fan is slow.", "The models disk is another one."),
    "warning_codes": ("node_warning", "models_root_changed"),
}


def test_a_node_without_its_models_disk_takes_no_model_with_weights() -> None:
    node = machine("n", card(0, 23), caps=LOST_DISK)
    assert reject(request(), node) == Rejection("n", "models_root_changed", "Node 'n': The models disk is another one.")
    assert reject(request(runtime="llama.cpp"), node).code == "models_root_changed"
    assert reject(request(runtime="sim", delivery="process"), node) is None, "a simulated engine reads none"
    slow = machine("n", card(0, 23), caps={name: values[:1] for name, values in LOST_DISK.items()})
    assert reject(request(), slow) is None


def test_llama_cpp_in_a_container_runs_on_cards() -> None:
    found = plan(request(runtime="llama.cpp"), [machine("n", card(0, 23))])
    assert order(found) == [("n", ("GPU-0",))]


def test_an_estimate_is_made_once_for_all_nodes(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(
        planner, "estimate", lambda shape, serving: made.append(serving.gpus) or estimate(shape, serving)
    )
    plan(request(), [machine(name, card(0, 23), card(1, 23)) for name in "abc"])
    assert made == [1]
