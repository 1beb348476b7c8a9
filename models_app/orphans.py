"""The only writer of orphans: engines of ours on a node, without a placement there.

They are alive, or ended with a record that the node still keeps.
"""

from collections.abc import Iterable, Mapping

from agent.wire.instances import InstanceView
from agent.wire.status import NodeStatus
from models_app.models import OrphanInstance, Placement

_LONGEST_ID, _LONGEST_MODEL, _LONGEST_OPERATION = 80, 64, 160
"""The lengths of the columns. A master gives no longer ids, so a longer one is not an engine of ours."""


def observe(statuses: Mapping[str, NodeStatus], placements: Iterable[Placement]) -> None:
    """Store the orphans of each node's status, in the caller's transaction. `placements` are all on these nodes."""
    placed = {(row.node_id_text, str(row.pk)) for row in placements}
    stored = {
        (row.node_id_text, row.instance_id): row
        for row in OrphanInstance.objects.filter(node_id_text__in=list(statuses))
    }
    observed = {
        (node_id, view.instance_id): (view, status)
        for node_id, status in statuses.items()
        for view in status.instances
        if (node_id, view.instance_id) not in placed and _fits(view)
    }
    gone = [row.pk for key, row in stored.items() if key not in observed and _is_newer(statuses[row.node_id_text], row)]
    if gone:
        OrphanInstance.objects.filter(pk__in=gone).delete()
    for key, (view, status) in observed.items():
        row = stored.get(key)
        if row is None or (_is_newer(status, row) and row.state != view.state.value):
            OrphanInstance.objects.update_or_create(
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
    """Delete the row of an engine that was observed to be gone."""
    OrphanInstance.objects.filter(node_id_text=node_id, instance_id=instance_id).delete()


def _is_newer(status: NodeStatus, row: OrphanInstance) -> bool:
    return row.boot_id != status.boot_id or row.seq < status.seq


def _fits(view: InstanceView) -> bool:
    return len(view.instance_id) <= _LONGEST_ID and len(view.model_id) <= _LONGEST_MODEL
