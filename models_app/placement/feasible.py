"""Whether a model may be placed on a node and its GPUs, by the node's last report. Pure: values in, problems out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agent.wire.capability import Capabilities, Feature, GpuCapability, MemoryModel, Runtime


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be placed. `standing` is true for a change of GPUs where the model already stands."""

    runtime: str
    delivery: str
    gpu_uuids: tuple[str, ...] = ()
    standing: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of a node. `capabilities` is None until it has reported them once."""

    node_id: str
    lifecycle: str
    draining: bool
    capabilities: Capabilities | None


@dataclass(frozen=True, slots=True)
class Problem:
    """One rule that a placement breaks; `message` is for a person."""

    code: str
    message: str
    field: str

    def to_json(self) -> dict[str, str]:
        """As `problems[]` carries it."""
        return {"code": self.code, "message": self.message, "field": self.field}


def problems(wish: Wish, node_id: str, facts: NodeFacts | None) -> tuple[Problem, ...]:
    """Every rule that placing `wish` on `node_id` breaks, in the order of their weight; empty when it may stand."""
    if blocked := _node_problem(wish, node_id, facts):
        return (blocked,)
    assert facts is not None  # noqa: S101 - _node_problem answers for a node that is not there
    if facts.capabilities is None:
        text = f"Node {node_id!r} has not reported what it can run yet; try again in a moment."
        return (Problem("runtime_unavailable", text, "placement.nodeId"),)
    found = [*_runtime_problems(wish, node_id, facts.capabilities), *_gpu_problems(wish, node_id, facts.capabilities)]
    return tuple(found)


def missing_gpus(gpu_uuids: Sequence[str], capabilities: Capabilities) -> tuple[str, ...]:
    """Those of `gpu_uuids` that the node does not report."""
    there = {gpu.uuid for gpu in capabilities.gpus}
    return tuple(uuid for uuid in gpu_uuids if uuid not in there)


def runtime_problem(runtime: str, delivery: str, node_id: str, capabilities: Capabilities) -> Problem | None:
    """Why the node cannot run `runtime` by `delivery`, or None when it can."""
    for offer in capabilities.runtimes:
        if offer.runtime == runtime and offer.delivery == delivery:
            if offer.available:
                return None
            reason = (offer.problem or "its agent does not say why").rstrip(".")
            break
    else:
        reason = "its agent does not offer it"
    text = f"Node {node_id!r} cannot run {runtime} as a {delivery}: {reason}."
    return Problem("runtime_unavailable", text, "placement.nodeId")


def _node_problem(wish: Wish, node_id: str, facts: NodeFacts | None) -> Problem | None:
    field = "placement.nodeId"
    if facts is None:
        return Problem("node_unknown", f"Node {node_id!r} does not exist.", field)
    if facts.lifecycle == "revoked":
        return Problem("node_revoked", f"Node {node_id!r} is revoked; no model can be placed there.", field)
    if facts.lifecycle == "pending":
        text = f"Node {node_id!r} waits for approval; approve it before you place models there."
        return Problem("node_unknown", text, field)
    if facts.draining and not wish.standing:
        text = f"Node {node_id!r} is draining: undrain it, or choose another node."
        return Problem("node_draining", text, field)
    return None


def _runtime_problems(wish: Wish, node_id: str, capabilities: Capabilities) -> list[Problem]:
    found = []
    if problem := runtime_problem(wish.runtime, wish.delivery, node_id, capabilities):
        found.append(problem)
    discrete = capabilities.memory_model == MemoryModel.DISCRETE
    if wish.gpu_uuids and discrete and Feature.GPUS_UUIDS not in capabilities.features:
        text = f"The agent of node {node_id!r} cannot assign GPUs by UUID; upgrade it."
        found.append(Problem("runtime_unavailable", text, "placement.nodeId"))
    return found


def _gpu_problems(wish: Wish, node_id: str, capabilities: Capabilities) -> list[Problem]:
    field = "placement.gpuUuids"
    if capabilities.memory_model == MemoryModel.UNIFIED:
        if not wish.gpu_uuids:
            return []
        text = f"Node {node_id!r} has one memory for everything and shares it by itself; clear the GPU selection."
        return [Problem("gpus_on_unified_node", text, field)]
    if not wish.gpu_uuids:
        # llama.cpp and sim run on the processor when no GPU is chosen; vLLM here does not.
        if wish.runtime != Runtime.VLLM:
            return []
        return [Problem("gpus_required", f"Node {node_id!r} has GPUs of their own memory; choose at least one.", field)]
    found = [
        Problem("gpu_duplicate", f"GPU {uuid} is listed more than once; choose each GPU once.", field)
        for uuid, times in Counter(wish.gpu_uuids).items()
        if times > 1
    ]
    missing = missing_gpus(tuple(dict.fromkeys(wish.gpu_uuids)), capabilities)
    found += [
        Problem("gpu_unknown", f"GPU {uuid} is not on node {node_id!r}, as it last reported; choose another.", field)
        for uuid in missing
    ]
    chosen = [gpu for gpu in capabilities.gpus if gpu.uuid in set(wish.gpu_uuids)]
    if not found and (text := _mismatch(chosen)):
        found.append(Problem("gpu_capacity_mismatch", text, field))
    return found


def _mismatch(chosen: Sequence[GpuCapability]) -> str:
    # What is not reported cannot differ: only two known values can.
    names = sorted({gpu.name for gpu in chosen if gpu.name})
    sizes = sorted({gpu.memory_bytes for gpu in chosen if gpu.memory_bytes is not None})
    if len(names) > 1:
        return f"Several GPUs work as one only when they are of the same model: these are {', '.join(names)}."
    if len(sizes) > 1:
        shown = ", ".join(f"{size / 2**30:.1f} GiB" for size in sizes)
        return f"Several GPUs work as one only when they have the same memory: these have {shown}."
    return ""
