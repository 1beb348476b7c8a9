"""Models on several nodes, in rows: replicas alone on their nodes, and one that three nodes hold together."""

from typing import Any

from agent.wire.capability import Capabilities, FabricCapability, Feature
from mirbad.kernel import clock
from mirbad.kernel.ids import new_uid
from models_app.models import Placement
from nodes.models import Node
from tests.pages import seed


def on_fabric(node_id: str, name: str, *fabrics: str) -> Node:
    """A machine with two GPUs that can share a replica."""
    row = seed.node(node_id, name, gpus=2)
    told = Capabilities.model_validate(row.capabilities)
    listed = tuple(FabricCapability(name=fabric, adapters=("mlx5_2", "mlx5_3")) for fabric in fabrics)
    features = (*told.features, Feature.REPLICAS_SHARDS)
    digest = f"sha256:{'a' * 64}"
    changes = {"fabrics": listed, "features": features, "approved_images": (f"vllm/vllm-openai@{digest}",)}
    row.capabilities = told.model_copy(update=changes).to_wire()
    row.default_image, row.default_image_digest = "vllm/vllm-openai", digest
    row.save(update_fields=["capabilities", "default_image", "default_image_digest"])
    return row


def place(model_id: str, *nodes: str, observed: tuple[str, ...], **columns: Any) -> list[Placement]:
    """One replica of a model, on one node or on several."""
    replica = new_uid()
    return [
        Placement.objects.create(
            model_id=model_id, node_id_text=node_id, replica=replica, shard=rank, shards=len(nodes), desired="running",
            observed=observed[rank], observed_at=clock.now(), gpu_uuids=[seed.gpu_uuid(node_id, 0)],
            observed_view={"memoryBytes": 31 * seed.GIB, "state": "ready"}, **columns,
        )
        for rank, node_id in enumerate(nodes)
    ]  # fmt: skip


def models() -> None:
    """One fabric: a model with three replicas, one of them failed, and a large one with a shard that starts."""
    for name in ("ridge", "slope", "tarn", "vale"):
        on_fabric(name, name.capitalize(), "ib-b")
    seed.model("chat-small", name="Chat Small", tags=["prod"])
    place("chat-small", "ridge", observed=("ready",))
    place("chat-small", "slope", observed=("ready",))
    place("chat-small", "tarn", observed=("failed",), observed_reason=seed.OUT_OF_MEMORY)
    seed.model("chat-huge", name="Chat Huge 405B")
    place("chat-huge", "ridge", "slope", "tarn", observed=("starting", "ready", "ready"))
    seed.model("chat-alone", "ridge", name="Chat Alone")
    seed.seen("chat-alone", "ready", memoryBytes=9 * seed.GIB)
