"""The plan of an import, as a person confirms it. It holds no secret value."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any
from uuid import UUID

from jobs.backup.importing.choices import ImportOptions


class PlannedAction(StrEnum):
    """The fate of one model, key or node."""

    CREATED = "created"
    CHANGED = "changed"
    KEPT = "kept"
    LEFT_OUT = "left-out"


class NodeMatch(StrEnum):
    """A node of the backup on this master: the same machine, another one of that name, or none."""

    SAME = "same"
    NAME_ONLY = "name-only"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    """A placement that the import makes. Those with the same `replica` serve together."""

    node_id: str
    gpu_uuids: tuple[str, ...]
    replica: UUID
    shard: int = 0
    shards: int = 1
    start_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model of the backup. `changes` name what differs here, `notes` what a person has to know or do.

    `before` is the digest of the definition that is replaced. `start_seconds` are start times that placements of this
    master lack, by their id. `missing_secrets` are names of variables without a value.
    """

    id: str
    action: PlannedAction
    reason: str = ""
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    backup_node_ids: tuple[str, ...] = ()
    places: tuple[PlannedPlace, ...] = ()
    placed_on: tuple[str, ...] = ()
    needs_target: bool = False
    start: bool = False
    missing_secrets: tuple[str, ...] = ()
    start_seconds: tuple[tuple[str, float], ...] = ()
    before: str = ""


@dataclass(frozen=True, slots=True)
class PlannedKey:
    """A key of the backup; `number` is its place there, `name` the name that it gets here."""

    number: int
    name: str
    action: PlannedAction
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlannedDestination:
    """A destination of backups; `reason` is also what a person has to do. `schedule_off` leaves its schedule out."""

    name: str
    action: PlannedAction
    reason: str = ""
    schedule_off: bool = False


@dataclass(frozen=True, slots=True)
class PlannedSetting:
    """A setting of a node before and after; `gpu_uuid` for the reserve of a GPU."""

    name: str
    before: Any
    after: Any
    gpu_uuid: str = ""


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node of the backup. `node_id` is that of the same machine here, `models` those that were on it."""

    id: str
    match: NodeMatch
    node_id: str = ""
    models: int = 0
    unresolved: int = 0
    settings: tuple[PlannedSetting, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RestorePlan:
    """The plan of one import. `available` are the options that the backup has something for, `options` those chosen."""

    backup: str
    instance_id: str
    content_digest: str
    with_secrets: bool
    available: ImportOptions
    options: ImportOptions
    models: tuple[PlannedModel, ...]
    keys: tuple[PlannedKey, ...]
    nodes: tuple[PlannedNode, ...]
    destinations: tuple[PlannedDestination, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the whole plan: a confirmation of another one is refused."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def unresolved(self) -> tuple[PlannedModel, ...]:
        """Return the models that need a target and have none."""
        return tuple(model for model in self.models if model.needs_target)

    def count(self, action: PlannedAction) -> int:
        """Return how many models have this fate."""
        return sum(model.action == action for model in self.models)

    def summary(self) -> str:
        """Return the numbers of models, keys and nodes in words."""
        models = ", ".join(f"{self.count(action)} {action.value.replace('-', ' ')}" for action in PlannedAction)
        keys = sum(key.action == PlannedAction.CREATED for key in self.keys)
        nodes = sum(bool(node.settings) for node in self.nodes)
        text = f"Models: {models}. API keys created: {keys}. Nodes with changed settings: {nodes}."
        destinations = sum(one.action == PlannedAction.CREATED for one in self.destinations)
        return f"{text} Destinations created: {destinations}." if destinations else text
