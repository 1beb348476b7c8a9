"""Nodes and models as the tests of the models and jobs apps need them."""

from typing import Any

from agent.wire.capability import (
    Capabilities,
    Delivery,
    Feature,
    GpuCapability,
    MemoryModel,
    Runtime,
    RuntimeCapability,
)
from mirbad.kernel.actor import Actor
from models_app import registry
from models_app.models import ModelDefinition, Placement
from nodes.models import Node

PERSON = Actor("admin:0123456789ab")
GIB = 2**30
DIGEST = "sha256:" + "a" * 64


def gpu(uuid: str, name: str | None = "RTX 4090", memory: int | None = 24 * GIB, **other: Any) -> GpuCapability:
    return GpuCapability(uuid=uuid, index=0, name=name, memory_bytes=memory, **other)


def capabilities(*gpus: GpuCapability, unavailable: dict[tuple[Runtime, Delivery], str] | None = None, **other: Any):
    """Return the capabilities of a node: all, on a unified machine without GPUs, or on a discrete one with `gpus`."""
    reasons = unavailable or {}
    values: dict[str, Any] = {
        "os": "linux",
        "arch": "x86_64",
        "hostname": "box",
        "cpu_count": 8,
        "memory_bytes": 64 * GIB,
        "memory_model": MemoryModel.DISCRETE if gpus else MemoryModel.UNIFIED,
        "memory_model_reason": "",
        "gpus": gpus,
        "runtimes": tuple(
            RuntimeCapability(
                runtime=runtime,
                delivery=delivery,
                available=(runtime, delivery) not in reasons,
                problem=reasons.get((runtime, delivery)),
            )
            for runtime in Runtime
            for delivery in Delivery
        ),
        "features": (Feature.GPUS_UUIDS, Feature.LAUNCH_ENV) if gpus else (Feature.LAUNCH_ENV,),
        "folders": (),
        "models_root": "/srv/models",
        "allow_tag_pulls": False,
    }
    return Capabilities(**(values | other))


def node(node_id: str = "pc-1", *gpus: GpuCapability, caps: Capabilities | None = None, **columns: Any) -> Node:
    """An approved node that answers."""
    values: dict[str, Any] = {
        "address": "127.0.0.1",
        "lifecycle": "approved",
        "reachability": "online",
        "capabilities": (caps or capabilities(*gpus)).to_wire(),
        "capabilities_seq": 1,
    }
    return Node.objects.create(pk=node_id, **(values | columns))


def model_data(model_id: str = "tiny", **fields: Any) -> registry.ModelInput:
    """A definition of the simulated engine, as the API would send it."""
    return registry.parse({"id": model_id, "runtime": "sim", "delivery": "process", **fields})


def placed(model_id: str = "tiny", node_id: str = "pc-1", **fields: Any) -> Placement:
    """A model of the simulated engine that stands on a node (which must exist)."""
    data = model_data(model_id, **{"placement": {"nodeId": node_id}, **fields})
    registry.create(data, PERSON)
    return Placement.objects.get(model_id=model_id)


def definition(model_id: str = "tiny") -> ModelDefinition:
    return ModelDefinition.objects.get(pk=model_id)
