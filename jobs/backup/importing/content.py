"""The parts of a backup that an import needs. Identities, pins, people and admin tokens are read over and dropped."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from jobs.backup import container, verification
from jobs.backup.container import CONFIGURATION, BackupFile, BackupManifest
from jobs.backup.records import (
    ApiKeyRecord,
    DestinationRecord,
    DestinationSecretsRecord,
    ModelRecord,
    ModelSecretsRecord,
    NodeRecord,
)


@dataclass(frozen=True, slots=True)
class BackupContent:
    """The content of one backup.

    `keys`, `env` and `destination_secrets` are None when it was read without the passphrase.
    """

    name: str
    manifest: BackupManifest
    nodes: Mapping[str, NodeRecord]
    models: tuple[ModelRecord, ...]
    destinations: tuple[DestinationRecord, ...] = ()
    keys: tuple[ApiKeyRecord, ...] | None = field(default=None, repr=False)
    env: Mapping[str, Mapping[str, str]] | None = field(default=None, repr=False)
    destination_secrets: Mapping[str, DestinationSecretsRecord] | None = field(default=None, repr=False)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the configuration."""
        return next(part.sha256 for part in self.manifest.parts if part.name == CONFIGURATION)


def read(path: Path, passphrase: str | None, name: str = "") -> BackupContent:
    """Read a backup to its last byte. `name` is shown for it. Raises BackupUnsuitable, OSError."""
    verification.verify(path, passphrase)
    with container.opened(path) as backup:
        nodes: dict[str, NodeRecord] = {}
        models: list[ModelRecord] = []
        destinations: list[DestinationRecord] = []
        for record in verification.configuration(backup):
            if isinstance(record, NodeRecord):
                nodes[record.id] = record
            elif isinstance(record, DestinationRecord):
                destinations.append(record)
            else:
                models.append(record)
        plain = BackupContent(name or path.name, backup.manifest, nodes, tuple(models), tuple(destinations))
        return plain if passphrase is None else _with_secrets(plain, backup, passphrase)


def _with_secrets(plain: BackupContent, backup: BackupFile, passphrase: str) -> BackupContent:
    keys: list[ApiKeyRecord] = []
    env: dict[str, Mapping[str, str]] = {}
    destinations: dict[str, DestinationSecretsRecord] = {}
    for secret in verification.secrets(backup, passphrase):
        if isinstance(secret, ApiKeyRecord):
            keys.append(secret)
        elif isinstance(secret, ModelSecretsRecord):
            env[secret.model_id] = secret.env
        elif isinstance(secret, DestinationSecretsRecord):
            destinations[secret.name] = secret
    return replace(plain, keys=tuple(keys), env=env, destination_secrets=destinations)
