"""Node conditions for placements whose GPUs the node no longer reports."""

from models_app.models import Placement
from models_app.placement.feasible import missing_gpus
from nodes import conditions, queries
from nodes.models import Node

SOURCE = "placement"
GPU_MISSING = "placed_gpu_missing"


def refresh(node_id: str) -> bool:
    """Write a condition for each model on the node with a missing GPU; return whether that changed anything."""
    node = Node.objects.filter(pk=node_id).first()
    capabilities = queries.capabilities(node) if node is not None else None
    if capabilities is None:
        return False
    found = []
    for placement in Placement.objects.filter(node_id_text=node_id).order_by("model_id"):
        if missing := missing_gpus(placement.gpu_uuids, capabilities):
            text = (
                f"Model '{placement.model_id}' is placed on GPU(s) {', '.join(missing)}, which the node no longer "
                "reports. Choose the model's GPUs again."
            )
            found.append(conditions.Condition(GPU_MISSING, text, placement.model_id))
    return conditions.replace(node_id, SOURCE, found)
