"""The placement rules, as a table."""

import pytest

from agent.wire.capability import Delivery, Runtime
from models_app.placement.feasible import NodeFacts, Wish, problems
from tests.models_app.things import GIB, capabilities, gpu

pytestmark = pytest.mark.unit

UNIFIED = capabilities()
TWO = capabilities(gpu("GPU-a"), gpu("GPU-b"))


def facts(caps=UNIFIED, lifecycle="approved", draining=False) -> NodeFacts:
    return NodeFacts("pc-1", lifecycle, draining, caps)


def wish(*gpus: str, runtime="vllm", delivery="container", standing=False) -> Wish:
    return Wish(runtime, delivery, gpus, standing)


NO_VLLM = capabilities(unavailable={(Runtime.VLLM, Delivery.CONTAINER): "Docker does not answer."})
NO_UUIDS = capabilities(gpu("GPU-a"), features=())
OTHER_NAME = capabilities(gpu("GPU-a"), gpu("GPU-b", name="RTX 3090"))
OTHER_SIZE = capabilities(gpu("GPU-a"), gpu("GPU-b", memory=16 * GIB))
UNKNOWN_SIZE = capabilities(gpu("GPU-a"), gpu("GPU-b", name=None, memory=None))

TABLE = [
    ("a model on a unified node", wish(), facts(), []),
    ("a model on one GPU", wish("GPU-a"), facts(TWO), []),
    ("a model on two equal GPUs", wish("GPU-a", "GPU-b"), facts(TWO), []),
    ("llama.cpp on the processor beside GPUs", wish(runtime="llama.cpp"), facts(TWO), []),
    ("values that are not reported do not differ", wish("GPU-a", "GPU-b"), facts(UNKNOWN_SIZE), []),
    ("no such node", wish(), None, ["node_unknown"]),
    ("a node that waits", wish(), facts(lifecycle="pending"), ["node_unknown"]),
    ("a revoked node", wish(), facts(lifecycle="revoked"), ["node_revoked"]),
    ("a draining node", wish(), facts(draining=True), ["node_draining"]),
    ("other GPUs where it stands, on a draining node", wish("GPU-b", standing=True), facts(TWO, draining=True), []),
    ("a node that has not reported", wish(), facts(None), ["runtime_unavailable"]),
    ("a runtime that the node lacks", wish(), facts(NO_VLLM), ["runtime_unavailable"]),
    ("GPUs by UUID for an old agent", wish("GPU-a"), facts(NO_UUIDS), ["runtime_unavailable"]),
    ("GPUs chosen on a unified node", wish("GPU-a"), facts(), ["gpus_on_unified_node"]),
    ("vLLM without a GPU on a discrete node", wish(), facts(TWO), ["gpus_required"]),
    ("an unknown GPU", wish("GPU-x"), facts(TWO), ["gpu_unknown"]),
    ("the same GPU twice", wish("GPU-a", "GPU-a"), facts(TWO), ["gpu_duplicate"]),
    ("twice and unknown", wish("GPU-x", "GPU-x"), facts(TWO), ["gpu_duplicate", "gpu_unknown"]),
    ("two models of GPU", wish("GPU-a", "GPU-b"), facts(OTHER_NAME), ["gpu_capacity_mismatch"]),
    ("two sizes of GPU", wish("GPU-a", "GPU-b"), facts(OTHER_SIZE), ["gpu_capacity_mismatch"]),
]


@pytest.mark.parametrize(("wanted", "known", "codes"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_placement_is_refused_for_exactly_the_rules_that_it_breaks(wanted, known, codes) -> None:
    found = problems(wanted, "pc-1", known)
    assert [problem.code for problem in found] == codes
    assert all(problem.message.endswith(".") and problem.field.startswith("placement.") for problem in found)


def test_the_reason_of_a_missing_runtime_is_the_agents_own() -> None:
    (problem,) = problems(wish(), "pc-1", facts(NO_VLLM))
    assert problem.message == "Node 'pc-1' cannot run vllm as a container: Docker does not answer."
