"""View-models of engines that a node runs without a placement: after a move, a lost record, or a manual start."""

from dataclasses import dataclass

from agent.wire.instances import LIVE_STATES
from models_app.models import ModelDefinition, Placement
from nodes.models import Node


@dataclass(frozen=True, slots=True)
class OrphanRow:
    """An engine without a placement. `known` is whether a model of that id is defined."""

    model_id: str
    instance_id: str
    state: str
    known: bool


def on_node(node_id: str) -> tuple[OrphanRow, ...]:
    """Return the orphans of the node's last status; three queries."""
    reported = Node.objects.filter(pk=node_id).values_list("engines", flat=True).first() or []
    running = [item for item in reported if item.get("state") in LIVE_STATES]
    if not running:
        return ()
    placed = {str(pk) for pk in Placement.objects.filter(node_id_text=node_id).values_list("pk", flat=True)}
    left = [item for item in running if item.get("instanceId") not in placed]
    known = set(
        ModelDefinition.objects.filter(pk__in=[item.get("modelId") for item in left]).values_list("pk", flat=True)
    )
    return tuple(
        OrphanRow(str(item["modelId"]), str(item["instanceId"]), str(item["state"]), item["modelId"] in known)
        for item in sorted(left, key=lambda item: (str(item.get("modelId")), str(item.get("instanceId"))))
    )
