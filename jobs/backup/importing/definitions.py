"""Definitions of models, of a backup and of this master, in one form. Pure."""

import hashlib
import json
from typing import Any

from jobs.backup.importing.content import BackupContent
from jobs.backup.importing.present import ModelHere
from jobs.backup.records import ModelRecord, SourcePart

_OTHERS = {"kind", "id", "sources", "placements", "secret_env_names"}
COLUMNS = tuple(name for name in ModelRecord.model_fields if name not in _OTHERS)
"""The columns of a definition that are neither its id, its secrets, nor other rows."""

SOURCE_COLUMNS = tuple(SourcePart.model_fields)


def values_of(record: ModelRecord) -> dict[str, Any]:
    """Return the columns of a definition of the backup."""
    return record.model_dump(mode="json", exclude=_OTHERS)


def source_values(record: ModelRecord) -> tuple[dict[str, Any], ...]:
    """Return the sources of a model of the backup."""
    return tuple(source.model_dump(mode="json") for source in record.sources)


def differences(record: ModelRecord, content: BackupContent, existing: ModelHere) -> tuple[str, ...]:
    """Return the names of what the backup has otherwise than this master."""
    values = values_of(record)
    found = [name for name in COLUMNS if values[name] != existing.values[name]]
    if source_values(record) != existing.sources:
        found.append("sources")
    if content.env is None:
        same = set(record.secret_env_names) == set(existing.secret_names)
    else:
        same = dict(content.env.get(record.id, {})) == dict(existing.secret_env or {})
        same = same and set(record.secret_env_names) == set(existing.secret_names)
    if not same:
        found.append("secret variables")
    return tuple(found)


def missing_secrets(record: ModelRecord, content: BackupContent, existing: ModelHere | None) -> tuple[str, ...]:
    """Return the secret variables that would have no value: neither of the backup, nor of this master."""
    if content.env is not None:
        known = set(content.env.get(record.id, {}))
    else:
        known = set(existing.secret_names) if existing is not None else set()
    return tuple(name for name in record.secret_env_names if name not in known)


def digest_of(model: ModelHere) -> str:
    """Return the SHA-256 of a definition of this master, without the values of its secrets."""
    parts = [dict(model.values), [dict(source) for source in model.sources], sorted(model.secret_names)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
