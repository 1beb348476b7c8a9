"""The only writer of engines without a place: ours, on a node, and with no placement there that they are of.

Alive, or ended with a record that the node still keeps.
"""

from collections.abc import Iterable, Mapping

from agent.wire.instances import InstanceView
from agent.wire.status import NodeStatus
from models_app.models import Placement, StrayInstance

_LONGEST_ID, _LONGEST_MODEL, _LONGEST_OPERATION = 80, 64, 160
"""As the columns are. Longer names were not given by a master, so nothing of ours is missed."""


def observe(statuses: Mapping[str, NodeStatus], placements: Iterable[Placement]) -> None:
    """Keep what each node's status says, in the caller's transaction. `placements` are all those on these nodes."""
    placed = {(row.node_id_text, str(row.pk)) for row in placements}
    stored = {
        (row.node_id_text, row.instance_id): row
        for row in StrayInstance.objects.filter(node_id_text__in=list(statuses))
    }
    seen = {
        (node_id, view.instance_id): (view, status)
        for node_id, status in statuses.items()
        for view in status.instances
        if (node_id, view.instance_id) not in placed and _fits(view)
    }
    gone = [row.pk for key, row in stored.items() if key not in seen and _is_newer(statuses[row.node_id_text], row)]
    if gone:
        StrayInstance.objects.filter(pk__in=gone).delete()
    for key, (view, status) in seen.items():
        row = stored.get(key)
        if row is None or (_is_newer(status, row) and row.state != view.state.value):
            StrayInstance.objects.update_or_create(
                node_id_text=key[0],
                instance_id=key[1],
                defaults={
                    "model_id_text": view.model_id,
                    "operation_id_text": view.operation_id[:_LONGEST_OPERATION],
                    "state": view.state.value,
                    "boot_id": status.boot_id,
                    "seq": status.seq,
                },
            )


def forget(node_id: str, instance_id: str) -> None:
    """It was seen to be gone."""
    StrayInstance.objects.filter(node_id_text=node_id, instance_id=instance_id).delete()


def _is_newer(status: NodeStatus, row: StrayInstance) -> bool:
    return row.boot_id != status.boot_id or row.seq < status.seq


def _fits(view: InstanceView) -> bool:
    return len(view.instance_id) <= _LONGEST_ID and len(view.model_id) <= _LONGEST_MODEL
