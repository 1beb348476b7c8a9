"""The rows of this master that an import compares with a backup: values of one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from models_app.placement.fleet import Machine

Values = Mapping[str, Any]
"""Columns of a row by name, as JSON values."""


@dataclass(frozen=True, slots=True)
class PlacementHere:
    """A placement of a model on this master."""

    id: UUID
    node_id: str
    start_seconds: float | None


@dataclass(frozen=True, slots=True)
class ModelHere:
    """A model of this master. `secret_env` is None when it was not to be read; `holder` completes "… holds it"."""

    id: str
    values: Values
    sources: tuple[Values, ...]
    names: tuple[str, ...]
    placements: tuple[PlacementHere, ...] = ()
    secret_names: tuple[str, ...] = ()
    secret_env: Mapping[str, str] | None = field(default=None, repr=False)
    holder: str = ""


@dataclass(frozen=True, slots=True)
class NodeHere:
    """A node of this master that is not revoked. `reserves` are of its GPUs by UUID."""

    id: str
    uid: UUID
    address: str
    machine: Machine
    settings: Values
    reserves: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class KeyHere:
    """A key of this master."""

    name: str
    digest: str = field(repr=False)
    previous_digest: str = field(repr=False)
    created_at: datetime
    is_revoked: bool


@dataclass(frozen=True, slots=True)
class FleetHere:
    """The whole of it. `invalid_…` are the parts of the backup that break a rule today, with the reason."""

    now: datetime
    models: Mapping[str, ModelHere]
    nodes: Mapping[str, NodeHere]
    keys: tuple[KeyHere, ...]
    invalid_models: Mapping[str, str]
    invalid_nodes: Mapping[str, str]
    destinations: frozenset[str] = frozenset()
    invalid_destinations: Mapping[str, str] = field(default_factory=dict)
