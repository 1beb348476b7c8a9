"""View-models of a configuration import. They run no query but that of the nodes to choose from."""

from dataclasses import dataclass
from datetime import datetime

from jobs.backup.importing.choices import OPTION_NAMES, ImportChoices
from jobs.backup.importing.plan import (
    NodeMatch,
    PlannedAction,
    PlannedDestination,
    PlannedKey,
    PlannedModel,
    PlannedNode,
    PlannedSetting,
    RestorePlan,
)
from jobs.pages.forms.backup_imports import OF_MODEL, OF_NODE, UNPLACED
from jobs.requests.imported_uploads import ImportedUpload
from mirbad.web import parts
from mirbad.web.parts import Badge
from nodes.models import Node

SHOWN = 200
"""Rows of one kind: more would be a page that nobody reads, and a form that no master takes."""

_BADGES = {
    PlannedAction.CREATED: Badge("Created", "ok", "plus"),
    PlannedAction.CHANGED: Badge("Changed", "warn", "pencil"),
    PlannedAction.KEPT: Badge("Kept", "idle", "circle-check"),
    PlannedAction.LEFT_OUT: Badge("Left out", "bad", "circle-x"),
}
_MATCHES = {
    NodeMatch.SAME: Badge("Same machine", "ok", "circle-check"),
    NodeMatch.NAME_ONLY: Badge("Name only", "warn", "triangle-alert"),
    NodeMatch.NONE: Badge("Not here", "idle", "circle-x"),
}
_OPTIONS = {
    "start_models": ("Start the models that were running", "One at a time per node, as memory allows."),
    "node_settings": (
        "Apply node settings",
        "On the same machine only: reserves, default images, concurrent starts, labels, name.",
    ),
    "start_times": ("Restore start times", "Times measured here are kept."),
    "destinations": ("Connect the backup destinations again", "With their schedules. Those of a name here are kept."),
}
_SETTINGS = {
    "display_name": "Display name",
    "labels": "Labels",
    "memory_reserve_bytes": "Memory reserve",
    "max_concurrent_starts": "Concurrent starts",
    "default_image": "Default image (vLLM)",
    "default_image_digest": "Digest of the default image (vLLM)",
    "default_llama_image": "Default image (llama.cpp)",
    "default_llama_image_digest": "Digest of the default image (llama.cpp)",
    "reserve_bytes": "Reserve",
}


@dataclass(frozen=True, slots=True)
class ImportModelRow:
    """A model of the backup. `field` is the name of its choice, "" without one, and `target` what was chosen."""

    id: str
    badge: Badge
    places: tuple[str, ...]
    text: str
    notes: tuple[str, ...]
    starts: bool
    needs_target: bool
    field: str
    target: str


@dataclass(frozen=True, slots=True)
class ImportNodeRow:
    """A node of the backup. `settings` are sentences."""

    id: str
    badge: Badge
    node_id: str
    models: int
    unresolved: int
    settings: tuple[str, ...]
    notes: tuple[str, ...]
    field: str
    target: str


@dataclass(frozen=True, slots=True)
class ImportNamedRow:
    """An API key or a destination of the backup."""

    name: str
    badge: Badge
    reason: str


@dataclass(frozen=True, slots=True)
class ImportOptionRow:
    """A part of the import that can be left out."""

    name: str
    label: str
    hint: str
    available: bool
    chosen: bool


@dataclass(frozen=True, slots=True)
class ImportPreview:
    """The preview of one import. `more_…` count the rows that are not shown."""

    id: str
    name: str
    made_by: str
    made_at: datetime
    digest: str
    summary: str
    notes: tuple[str, ...]
    options: tuple[ImportOptionRow, ...]
    nodes: tuple[ImportNodeRow, ...]
    models: tuple[ImportModelRow, ...]
    keys: tuple[ImportNamedRow, ...]
    destinations: tuple[ImportNamedRow, ...]
    more_models: int
    more_keys: int
    unresolved: int
    others_unplaced: bool
    choices: tuple[str, ...]
    unplaced: str = UNPLACED


def preview(upload: ImportedUpload, plan: RestorePlan, choices: ImportChoices) -> ImportPreview:
    """Return the preview: first the models that need something, then by what happens to them. One query."""
    manifest = upload.content.manifest
    targets = {
        f"{OF_MODEL}{one.model_id}" if one.model_id else f"{OF_NODE}{one.backup_node_id}": one.node_id or UNPLACED
        for one in choices.targets
    }
    models = sorted(plan.models, key=_order)
    return ImportPreview(
        id=upload.id,
        name=upload.content.name,
        made_by=plan.instance_id,
        made_at=manifest.created_at,
        digest=plan.digest,
        summary=plan.summary(),
        notes=plan.notes,
        options=tuple(
            ImportOptionRow(
                name,
                *_OPTIONS[name],
                available=getattr(plan.available, name),
                chosen=getattr(plan.options, name),
            )
            for name in OPTION_NAMES
        ),
        nodes=tuple(_node(one, targets) for one in plan.nodes),
        models=tuple(_model(one, targets) for one in models[:SHOWN]),
        keys=tuple(map(_named, plan.keys[:SHOWN])),
        destinations=tuple(map(_named, plan.destinations)),
        more_models=max(len(models) - SHOWN, 0),
        more_keys=max(len(plan.keys) - SHOWN, 0),
        unresolved=len(plan.unresolved),
        others_unplaced=choices.others_unplaced,
        choices=tuple(Node.objects.approved().values_list("pk", flat=True)),
    )


def _named(one: PlannedKey | PlannedDestination) -> ImportNamedRow:
    return ImportNamedRow(one.name, _BADGES[one.action], one.reason)


def _order(model: PlannedModel) -> tuple[bool, bool, bool, str]:
    return (
        not model.needs_target,
        model.action != PlannedAction.LEFT_OUT,
        model.action == PlannedAction.KEPT,
        model.id,
    )


def _model(model: PlannedModel, targets: dict[str, str]) -> ImportModelRow:
    field = f"{OF_MODEL}{model.id}"
    open_to_choice = model.action != PlannedAction.LEFT_OUT and not model.placed_on
    places = tuple(
        f"{place.node_id} · {parts.plural(len(place.gpu_uuids), 'GPU', 'GPUs')}" if place.gpu_uuids else place.node_id
        for place in model.places
    )
    changes = f"Differs: {', '.join(name.replace('_', ' ') for name in model.changes)}." if model.changes else ""
    waits = f"It was on {', '.join(model.backup_node_ids)}. Choose a target." if model.needs_target else ""
    return ImportModelRow(
        id=model.id,
        badge=_BADGES[model.action],
        places=places or model.placed_on,
        text=" ".join(filter(None, [model.reason, changes, waits])),
        notes=model.notes,
        starts=model.start,
        needs_target=model.needs_target,
        field=field if open_to_choice else "",
        target=targets.get(field, ""),
    )


def _node(node: PlannedNode, targets: dict[str, str]) -> ImportNodeRow:
    field = f"{OF_NODE}{node.id}"
    return ImportNodeRow(
        id=node.id,
        badge=_MATCHES[node.match],
        node_id=node.node_id,
        models=node.models,
        unresolved=node.unresolved,
        settings=tuple(map(_setting, node.settings)),
        notes=node.notes,
        field=field if node.models and node.match != NodeMatch.SAME else "",
        target=targets.get(field, ""),
    )


def _setting(setting: PlannedSetting) -> str:
    name = _SETTINGS[setting.name] + (f" of {setting.gpu_uuid}" if setting.gpu_uuid else "")
    return f"{name}: {_value(setting, setting.before)} → {_value(setting, setting.after)}"


def _value(setting: PlannedSetting, value: object) -> str:
    if value in (None, "", {}):
        return "none"
    if setting.name.endswith("_bytes") and isinstance(value, int):
        return parts.size(value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={text}" for key, text in sorted(value.items()))
    return str(value)
