"""The rules of a placement on a node and its GPUs, by the node's last report. Pure: values in, problems out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agent.common.gpu_label import gpu_label
from agent.wire.capability import Capabilities, Feature, GpuCapability, MemoryModel, Runtime
from mirbad.kernel.sizes import size

NODE_FIELD = "placement.nodeId"
GPU_FIELD = "placement.gpuUuids"


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A placement to check. `already_placed` is true for a change of GPUs on the model's own node."""

    runtime: str
    delivery: str
    gpu_uuids: tuple[str, ...] = ()
    already_placed: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The known facts of a node. `capabilities` is None until its first report."""

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
        """Return the problem as an item of `problems[]` on the API."""
        return {"code": self.code, "message": self.message, "field": self.field}


def problems(request: PlacementRequest, node_id: str, facts: NodeFacts | None) -> tuple[Problem, ...]:
    """Return every rule that `request` on `node_id` breaks, the most important first; empty when it is allowed."""
    if blocked := node_problem(node_id, facts, already_placed=request.already_placed):
        return (blocked,)
    assert facts is not None  # noqa: S101 - node_problem reports a node that does not exist
    if facts.capabilities is None:
        text = f"Node {node_id!r} has not reported its runtimes yet; try again in a moment."
        return (Problem("runtime_unavailable", text, NODE_FIELD),)
    found = [
        *_runtime_problems(request, node_id, facts.capabilities),
        *_gpu_problems(request, node_id, facts.capabilities),
    ]
    return tuple(found)


def missing_gpus(gpu_uuids: Sequence[str], capabilities: Capabilities) -> tuple[str, ...]:
    """Return those of `gpu_uuids` that the node does not report; none while its driver reports no GPU at all."""
    if capabilities.gpu_problem and not capabilities.gpus:
        return ()
    there = {gpu.uuid for gpu in capabilities.gpus}
    return tuple(uuid for uuid in gpu_uuids if uuid not in there)


def unusable_gpus(gpu_uuids: Sequence[str], capabilities: Capabilities) -> dict[str, str]:
    """Return those of `gpu_uuids` on which nothing can be started, each with the reason."""
    chosen = set(gpu_uuids)
    return {gpu.uuid: _why_unusable(gpu) for gpu in capabilities.gpus if gpu.uuid in chosen and not gpu.is_usable}


def _why_unusable(gpu: GpuCapability) -> str:
    return gpu.problem or f"{gpu_label(gpu.index, gpu.uuid)} does not answer."


def runtime_problem(runtime: str, delivery: str, node_id: str, capabilities: Capabilities) -> Problem | None:
    """Return the reason for which the node cannot run `runtime` by `delivery`, None when it can."""
    for offer in capabilities.runtimes:
        if offer.runtime == runtime and offer.delivery == delivery:
            if offer.available:
                return None
            reason = (offer.problem or "its agent gave no reason").rstrip(".")
            break
    else:
        reason = "its agent does not offer it"
    text = f"Node {node_id!r} cannot run {runtime} as a {delivery}: {reason}."
    return Problem("runtime_unavailable", text, NODE_FIELD)


def node_problem(node_id: str, facts: NodeFacts | None, *, already_placed: bool = False) -> Problem | None:
    """Return the rule of the node alone that a placement breaks: it is unknown, not approved, or draining."""
    field = NODE_FIELD
    if facts is None:
        return Problem("node_unknown", f"Node {node_id!r} does not exist.", field)
    if facts.lifecycle == "revoked":
        return Problem("node_revoked", f"Node {node_id!r} is revoked; no model can be placed there.", field)
    if facts.lifecycle == "pending":
        text = f"Node {node_id!r} is not approved yet; approve it first."
        return Problem("node_unknown", text, field)
    if facts.draining and not already_placed:
        text = f"Node {node_id!r} is draining: undrain it, or choose another node."
        return Problem("node_draining", text, field)
    return None


def _runtime_problems(request: PlacementRequest, node_id: str, capabilities: Capabilities) -> list[Problem]:
    found = []
    if problem := runtime_problem(request.runtime, request.delivery, node_id, capabilities):
        found.append(problem)
    discrete = capabilities.memory_model == MemoryModel.DISCRETE
    if request.gpu_uuids and discrete and Feature.GPUS_UUIDS not in capabilities.features:
        text = f"The agent of node {node_id!r} cannot assign GPUs by UUID; upgrade it."
        found.append(Problem("runtime_unavailable", text, NODE_FIELD))
    return found


def _gpu_problems(request: PlacementRequest, node_id: str, capabilities: Capabilities) -> list[Problem]:
    field = GPU_FIELD
    if capabilities.memory_model == MemoryModel.UNIFIED:
        if not request.gpu_uuids:
            return _shared_gpu_problems(request, node_id, capabilities)
        text = f"Node {node_id!r} has unified memory, so GPUs are not assigned; clear the GPU selection."
        return [Problem("gpus_on_unified_node", text, field)]
    if not request.gpu_uuids:
        # llama.cpp and sim run on the processor when no GPU is chosen; vLLM does not.
        if request.runtime != Runtime.VLLM:
            return []
        return [Problem("gpus_required", f"Node {node_id!r} has GPUs; choose at least one.", field)]
    labels = {gpu.uuid: gpu_label(gpu.index, gpu.uuid) for gpu in capabilities.gpus}
    found = [
        Problem("gpu_duplicate", f"{labels.get(uuid, uuid)} is listed more than once; choose each GPU once.", field)
        for uuid, times in Counter(request.gpu_uuids).items()
        if times > 1
    ]
    missing = missing_gpus(tuple(dict.fromkeys(request.gpu_uuids)), capabilities)
    found += [
        Problem("gpu_unknown", f"{uuid} is not on node {node_id!r} (last report); choose another.", field)
        for uuid in missing
    ]
    found += [
        Problem("gpu_unusable", f"Node {node_id!r}: {reason}", field)
        for reason in unusable_gpus(request.gpu_uuids, capabilities).values()
    ]
    chosen = [gpu for gpu in capabilities.gpus if gpu.uuid in set(request.gpu_uuids)]
    if not found and (text := _mismatch(chosen)):
        found.append(Problem("gpu_capacity_mismatch", text, field))
    return found


def _shared_gpu_problems(request: PlacementRequest, node_id: str, capabilities: Capabilities) -> list[Problem]:
    """Return the problems of GPUs that share the machine's memory, which an engine gets all of."""
    if request.runtime != Runtime.VLLM:
        return []
    every = [gpu.uuid for gpu in capabilities.gpus]
    return [
        Problem("gpu_unusable", f"Node {node_id!r}: {reason}", NODE_FIELD)
        for reason in unusable_gpus(every, capabilities).values()
    ]


def _mismatch(chosen: Sequence[GpuCapability]) -> str:
    # Values that are not reported do not differ: only two known values can.
    names = sorted({gpu.name for gpu in chosen if gpu.name})
    sizes = sorted({gpu.memory_bytes for gpu in chosen if gpu.memory_bytes is not None})
    if len(names) > 1:
        return f"GPUs can only be combined if they are the same model; these are {', '.join(names)}."
    if len(sizes) > 1:
        shown = ", ".join(size(one) for one in sizes)
        return f"GPUs can only be combined if they have the same memory; these have {shown}."
    return ""
