"""The nodes of a backup on this master: the same machines, and the settings that they get. Pure."""

from collections import Counter
from collections.abc import Sequence

from jobs.backup.importing.content import BackupContent
from jobs.backup.importing.plan import NodeMatch, PlannedModel, PlannedNode, PlannedSetting
from jobs.backup.importing.present import FleetHere, NodeHere
from jobs.backup.records import NodeRecord

SETTINGS = (
    "display_name",
    "labels",
    "memory_reserve_bytes",
    "max_concurrent_starts",
    "default_image",
    "default_image_digest",
    "default_llama_image",
    "default_llama_image_digest",
)
"""The settings of a node that an import applies. Never its approval, keys or addresses."""


def same_machines(content: BackupContent, here: FleetHere) -> dict[str, NodeHere]:
    """Return the nodes of this master that are machines of the backup, by their id in the backup."""
    by_uid = {node.uid: node for node in here.nodes.values()}
    return {node_id: by_uid[record.uid] for node_id, record in content.nodes.items() if record.uid in by_uid}


def planned_nodes(
    content: BackupContent, here: FleetHere, models: Sequence[PlannedModel], *, with_settings: bool
) -> tuple[PlannedNode, ...]:
    """Return each node of the backup: its match, its models, and the settings that change."""
    same = same_machines(content, here)
    placed = Counter(node_id for model in models for node_id in model.backup_node_ids)
    unresolved = Counter(node_id for model in models if model.needs_target for node_id in model.backup_node_ids)
    gone = [node_id for node_id in placed if node_id not in content.nodes]
    found = [
        _node(record, here, same.get(node_id), placed[node_id], unresolved[node_id], with_settings=with_settings)
        for node_id, record in content.nodes.items()
    ]
    found += [
        PlannedNode(node_id, NodeMatch.NONE, models=placed[node_id], unresolved=unresolved[node_id])
        for node_id in sorted(gone)
    ]
    return tuple(found)


def _node(
    record: NodeRecord, here: FleetHere, same: NodeHere | None, models: int, unresolved: int, *, with_settings: bool
) -> PlannedNode:
    if same is None:
        match = NodeMatch.NAME_ONLY if record.id in here.nodes else NodeMatch.NONE
        return PlannedNode(record.id, match, models=models, unresolved=unresolved)
    settings: tuple[PlannedSetting, ...] = ()
    notes: tuple[str, ...] = ()
    if with_settings and (why := here.invalid_nodes.get(record.id)):
        notes = (f"Its settings are not applied: {why}",)
    elif with_settings:
        settings = _settings(record, same)
    return PlannedNode(record.id, NodeMatch.SAME, same.id, models, unresolved, settings, notes)


def _settings(record: NodeRecord, node: NodeHere) -> tuple[PlannedSetting, ...]:
    values = record.model_dump(mode="json")
    found = [
        PlannedSetting(name, node.settings[name], values[name])
        for name in SETTINGS
        if values[name] != node.settings[name]
    ]
    found += [
        PlannedSetting("reserve_bytes", node.reserves[gpu.uuid], gpu.reserve_bytes, gpu.uuid)
        for gpu in record.gpus
        if gpu.uuid in node.reserves and gpu.reserve_bytes != node.reserves[gpu.uuid]
    ]
    return tuple(found)
