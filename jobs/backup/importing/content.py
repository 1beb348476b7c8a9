"""The parts of a backup that an import needs. Identities, pins, people and admin tokens are read over and dropped."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jobs.backup import container, verification
from jobs.backup.container import CONFIGURATION, BackupManifest
from jobs.backup.records import ApiKeyRecord, ModelRecord, ModelSecretsRecord, NodeRecord


@dataclass(frozen=True, slots=True)
class BackupContent:
    """The content of one backup. `keys` and `env` are None when it was read without the passphrase."""

    name: str
    manifest: BackupManifest
    nodes: Mapping[str, NodeRecord]
    models: tuple[ModelRecord, ...]
    keys: tuple[ApiKeyRecord, ...] | None = field(default=None, repr=False)
    env: Mapping[str, Mapping[str, str]] | None = field(default=None, repr=False)

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
        for record in verification.configuration(backup):
            if isinstance(record, NodeRecord):
                nodes[record.id] = record
            else:
                models.append(record)
        keys: list[ApiKeyRecord] | None = None
        env: dict[str, Mapping[str, str]] | None = None
        if passphrase is not None:
            keys, env = [], {}
            for secret in verification.secrets(backup, passphrase):
                if isinstance(secret, ApiKeyRecord):
                    keys.append(secret)
                elif isinstance(secret, ModelSecretsRecord):
                    env[secret.model_id] = secret.env
        return BackupContent(
            name or path.name, backup.manifest, nodes, tuple(models), tuple(keys) if keys is not None else None, env
        )
