"""What no longer fits between placements and the machines they stand on, told as reasons of the node."""

from pydantic import ValidationError

from agent.wire.capability import Capabilities
from models_app.models import Placement
from models_app.placement.feasible import missing_gpus
from nodes import conditions
from nodes.models import Node

SOURCE = "placement"
GPU_MISSING = "placed_gpu_missing"


def capabilities_of(node: Node) -> Capabilities | None:
    """What the node reported last; a report that cannot be read counts as none."""
    try:
        return Capabilities.model_validate(node.capabilities) if node.capabilities else None
    except ValidationError:
        return None


def note_missing_gpus(node_id: str) -> bool:
    """State for each model on the node whether one of its GPUs is gone; says whether that changed anything."""
    node = Node.objects.filter(pk=node_id).first()
    capabilities = capabilities_of(node) if node is not None else None
    if capabilities is None:
        return False
    found = []
    for placement in Placement.objects.filter(node_id_text=node_id).order_by("model_id"):
        if missing := missing_gpus(placement.gpu_uuids, capabilities):
            text = (
                f"{GPU_MISSING}: model '{placement.model_id}' is placed on GPU(s) {', '.join(missing)}, which the node "
                "no longer reports; choose the model's GPUs again."
            )
            found.append(conditions.Condition(GPU_MISSING, text, placement.model_id))
    return conditions.replace(node_id, SOURCE, found)
