"""The placement rules, as a table."""

import pytest

from agent.wire.capability import Delivery, MemoryModel, Runtime
from models_app.placement.feasible import NodeFacts, PlacementRequest, missing_gpus, problems
from tests.models_app.things import GIB, capabilities, gpu

pytestmark = pytest.mark.unit

UNIFIED = capabilities()
TWO = capabilities(gpu("GPU-a"), gpu("GPU-b"))


def facts(caps=UNIFIED, lifecycle="approved", draining=False) -> NodeFacts:
    return NodeFacts("pc-1", lifecycle, draining, caps)


def request(*gpus: str, runtime="vllm", delivery="container", already_placed=False) -> PlacementRequest:
    return PlacementRequest(runtime, delivery, gpus, already_placed)


NO_VLLM = capabilities(unavailable={(Runtime.VLLM, Delivery.CONTAINER): "Docker does not answer."})
NO_UUIDS = capabilities(gpu("GPU-a"), features=())
OTHER_NAME = capabilities(gpu("GPU-a"), gpu("GPU-b", name="RTX 3090"))
OTHER_SIZE = capabilities(gpu("GPU-a"), gpu("GPU-b", memory=16 * GIB))
UNKNOWN_SIZE = capabilities(gpu("GPU-a"), gpu("GPU-b", name=None, memory=None))

LOST = capabilities(gpu("GPU-a", lost=True, problem="GPU 0 is lost."), gpu("GPU-b"))
NEEDS_RESET = capabilities(gpu("GPU-a"), gpu("GPU-b", problem="GPU 1 needs a reset.", problem_code="gpu_needs_reset"))
UNREAD = capabilities(gpu("GPU-a", problem="It cannot be read."))
NAMELESS = capabilities(gpu("GPU-unreadable-0"))
SHARED = capabilities(
    gpu("GPU-a", memory=None, problem="GPU 0 needs a reset.", problem_code="gpu_needs_reset"),
    memory_model=MemoryModel.UNIFIED,
)

TABLE = [
    ("a lost GPU", request("GPU-a"), facts(LOST), ["gpu_unusable"]),
    ("the GPU beside a lost one", request("GPU-b"), facts(LOST), []),
    ("a GPU that needs a reset", request("GPU-a", "GPU-b"), facts(NEEDS_RESET), ["gpu_unusable"]),
    ("the GPU beside it", request("GPU-a"), facts(NEEDS_RESET), []),
    ("a GPU whose driver is slow", request("GPU-a"), facts(UNREAD), []),
    ("a GPU without a name", request("GPU-unreadable-0"), facts(NAMELESS), ["gpu_unusable"]),
    ("vLLM on a shared GPU that needs a reset", request(), facts(SHARED), ["gpu_unusable"]),
    ("llama.cpp beside a shared GPU that needs a reset", request(runtime="llama.cpp"), facts(SHARED), []),
    ("a model on a unified node", request(), facts(), []),
    ("a model on one GPU", request("GPU-a"), facts(TWO), []),
    ("a model on two equal GPUs", request("GPU-a", "GPU-b"), facts(TWO), []),
    ("llama.cpp on the processor beside GPUs", request(runtime="llama.cpp"), facts(TWO), []),
    ("values that are not reported do not differ", request("GPU-a", "GPU-b"), facts(UNKNOWN_SIZE), []),
    ("no such node", request(), None, ["node_unknown"]),
    ("a node that waits", request(), facts(lifecycle="pending"), ["node_unknown"]),
    ("a revoked node", request(), facts(lifecycle="revoked"), ["node_revoked"]),
    ("a draining node", request(), facts(draining=True), ["node_draining"]),
    (
        "other GPUs on the same node while it drains",
        request("GPU-b", already_placed=True),
        facts(TWO, draining=True),
        [],
    ),
    ("a node that has not reported", request(), facts(None), ["runtime_unavailable"]),
    ("a runtime that the node lacks", request(), facts(NO_VLLM), ["runtime_unavailable"]),
    ("GPUs by UUID for an old agent", request("GPU-a"), facts(NO_UUIDS), ["runtime_unavailable"]),
    ("GPUs chosen on a unified node", request("GPU-a"), facts(), ["gpus_on_unified_node"]),
    ("vLLM without a GPU on a discrete node", request(), facts(TWO), ["gpus_required"]),
    ("an unknown GPU", request("GPU-x"), facts(TWO), ["gpu_unknown"]),
    ("the same GPU twice", request("GPU-a", "GPU-a"), facts(TWO), ["gpu_duplicate"]),
    ("twice and unknown", request("GPU-x", "GPU-x"), facts(TWO), ["gpu_duplicate", "gpu_unknown"]),
    ("two models of GPU", request("GPU-a", "GPU-b"), facts(OTHER_NAME), ["gpu_capacity_mismatch"]),
    ("two sizes of GPU", request("GPU-a", "GPU-b"), facts(OTHER_SIZE), ["gpu_capacity_mismatch"]),
]


@pytest.mark.parametrize(("wanted", "known", "codes"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_placement_is_refused_for_exactly_the_rules_that_it_breaks(wanted, known, codes) -> None:
    found = problems(wanted, "pc-1", known)
    assert [problem.code for problem in found] == codes
    assert all(problem.message.endswith(".") and problem.field.startswith("placement.") for problem in found)


NODE, GPUS = "placement.nodeId", "placement.gpuUuids"
SENTENCES = {
    "a lost GPU": [(GPUS, "Node 'pc-1': GPU 0 is lost.")],
    "a GPU that needs a reset": [(GPUS, "Node 'pc-1': GPU 1 needs a reset.")],
    "a GPU without a name": [(GPUS, "Node 'pc-1': GPU 0 does not answer.")],
    "vLLM on a shared GPU that needs a reset": [(NODE, "Node 'pc-1': GPU 0 needs a reset.")],
    "no such node": [(NODE, "Node 'pc-1' does not exist.")],
    "a node that waits": [(NODE, "Node 'pc-1' is not approved yet; approve it first.")],
    "a revoked node": [(NODE, "Node 'pc-1' is revoked; no model can be placed there.")],
    "a draining node": [(NODE, "Node 'pc-1' is draining: undrain it, or choose another node.")],
    "a node that has not reported": [
        (NODE, "Node 'pc-1' has not reported its runtimes yet; try again in a moment."),
    ],
    "a runtime that the node lacks": [
        (NODE, "Node 'pc-1' cannot run vllm as a container: Docker does not answer."),
    ],
    "GPUs by UUID for an old agent": [(NODE, "The agent of node 'pc-1' cannot assign GPUs by UUID; upgrade it.")],
    "GPUs chosen on a unified node": [
        (GPUS, "Node 'pc-1' has unified memory, so GPUs are not assigned; clear the GPU selection."),
    ],
    "vLLM without a GPU on a discrete node": [(GPUS, "Node 'pc-1' has GPUs; choose at least one.")],
    "an unknown GPU": [(GPUS, "GPU-x is not on node 'pc-1' (last report); choose another.")],
    "the same GPU twice": [(GPUS, "GPU 0 is listed more than once; choose each GPU once.")],
    "twice and unknown": [
        (GPUS, "GPU-x is listed more than once; choose each GPU once."),
        (GPUS, "GPU-x is not on node 'pc-1' (last report); choose another."),
    ],
    "two models of GPU": [
        (GPUS, "GPUs can only be combined if they are the same model; these are RTX 3090, RTX 4090."),
    ],
    "two sizes of GPU": [
        (GPUS, "GPUs can only be combined if they have the same memory; these have 16 GiB, 24 GiB."),
    ],
}


@pytest.mark.parametrize(("name", "wanted", "known", "codes"), TABLE, ids=[row[0] for row in TABLE])
def test_each_rule_names_its_field_and_says_what_to_do(name, wanted, known, codes) -> None:
    found = [(problem.field, problem.message) for problem in problems(wanted, "pc-1", known)]
    assert found == SENTENCES.get(name, [])


def test_a_problem_is_an_item_of_the_apis_list() -> None:
    assert problems(request(), "pc-1", None)[0].to_json() == {
        "code": "node_unknown",
        "message": "Node 'pc-1' does not exist.",
        "field": "placement.nodeId",
    }


def test_a_runtime_that_the_agent_does_not_offer_or_explain_has_a_reason_all_the_same() -> None:
    (problem,) = problems(request(runtime="mlx"), "pc-1", facts())
    assert problem.message == "Node 'pc-1' cannot run mlx as a container: its agent does not offer it."
    silent = capabilities(unavailable={(Runtime.VLLM, Delivery.CONTAINER): ""})
    (problem,) = problems(request(), "pc-1", facts(silent))
    assert problem.message == "Node 'pc-1' cannot run vllm as a container: its agent gave no reason."


def test_every_rule_that_is_broken_is_listed() -> None:
    both = capabilities(gpu("GPU-a"), features=(), unavailable={(Runtime.VLLM, Delivery.CONTAINER): "No Docker."})
    found = problems(request("GPU-a", "GPU-a"), "pc-1", facts(both))
    assert [problem.code for problem in found] == ["runtime_unavailable", "runtime_unavailable", "gpu_duplicate"]


def test_a_rule_of_the_node_alone_comes_first_and_alone() -> None:
    assert [problem.code for problem in problems(request("GPU-x"), "pc-1", facts(TWO, draining=True))] == [
        "node_draining"
    ]


def test_only_the_chosen_gpus_are_compared() -> None:
    three = capabilities(gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c", name="RTX 3090", memory=16 * GIB))
    assert problems(request("GPU-a", "GPU-b"), "pc-1", facts(three)) == ()


def test_gpus_that_the_node_does_not_report_are_missing() -> None:
    assert missing_gpus(["GPU-a", "GPU-x", "GPU-b"], TWO) == ("GPU-x",)
