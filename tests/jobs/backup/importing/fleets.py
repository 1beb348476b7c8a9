"""A fleet that is backed up, and masters that the backup is imported into."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.backup import making
from jobs.backup.importing import content
from jobs.backup.importing.choices import ImportChoices, TargetChoice
from jobs.backup.importing.content import BackupContent
from jobs.backup.importing.plan import PlannedModel, RestorePlan
from jobs.models import Operation
from jobs.requests import restore
from models_app.models import ApiKey, Hold, ModelDefinition, Placement
from nodes.models import Gpu, Node
from nodes.pki import authority
from tests.jobs.backup.fleet import PASSPHRASE
from tests.models_app.things import GIB, PERSON, capabilities, gpu, node

RTX = {"name": "RTX 4090", "memory": 24 * GIB}


def machine(node_id: str, *cards: Mapping[str, Any], **columns: Any) -> Node:
    """Make a node with these cards, each ``{uuid, name, memory}``, by its rows and by its report."""
    reported = [
        gpu(card["uuid"], card["name"], card["memory"]).model_copy(update={"index": index})
        for index, card in enumerate(cards)
    ]
    made = node(node_id, caps=capabilities(*reported), address="192.0.2.9", **columns)
    for index, card in enumerate(cards):
        Gpu.objects.create(
            node=made, uuid=card["uuid"], index=index, name=card["name"] or "", memory_bytes=card["memory"]
        )
    return made


def backed_up(folder: Path, passphrase: str | None = PASSPHRASE) -> BackupContent:
    """Back this master up, and read the backup."""
    authority.ensure()
    path = folder / f"fleet-{len(list(folder.iterdir()))}.backup"
    making.create(path, passphrase, PERSON)
    return content.read(path, passphrase)


def forget_models() -> None:
    """Delete the models and keys, not the nodes."""
    for rows in (Hold, Placement, ModelDefinition, ApiKey, Operation):
        rows.objects.all().delete()


def forget_all() -> None:
    """Delete the nodes, too: another master."""
    forget_models()
    Node.objects.all().delete()


def plan(read: BackupContent, *targets: TargetChoice, **other: Any) -> RestorePlan:
    """Return the plan of an import now."""
    return restore.preview(read, ImportChoices(targets=targets, **other))


def planned(read: BackupContent, model_id: str, *targets: TargetChoice, **other: Any) -> PlannedModel:
    """Return the plan of one model."""
    return next(model for model in plan(read, *targets, **other).models if model.id == model_id)


def imported(read: BackupContent, *targets: TargetChoice, **other: Any) -> Operation:
    """Import as a person does who looks at the preview and confirms it."""
    choices = ImportChoices(targets=targets, **other)
    return restore.request(read, choices, restore.preview(read, choices).digest, PERSON)
