"""A backup is read to its last byte: every digest, every line, and with the passphrase every secret."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from jobs.backup import container, records, sealed
from jobs.backup.container import CONFIGURATION, BackupFile, BackupManifest
from jobs.errors import BackupUnsuitable


def inspect(path: Path) -> BackupManifest:
    """Return the manifest, without the passphrase and without reading the parts. Raises BackupUnsuitable, OSError."""
    with container.opened(path) as backup:
        return backup.manifest


def verify(path: Path, passphrase: str | None) -> BackupManifest:
    """Read the whole backup, its secrets if there is a passphrase, and return the manifest.

    Raises BackupUnsuitable with the first problem, OSError.
    """
    with container.opened(path) as backup:
        manifest = backup.manifest
        counts: Counter[str] = Counter(record.kind for record in configuration(backup))
        if passphrase is not None:
            counts.update(record.kind for record in secrets(backup, passphrase))
        expected = manifest.counts
        if passphrase is None:
            expected = {kind: count for kind, count in expected.items() if kind in counts}
        if counts != Counter(expected):
            raise BackupUnsuitable("This backup does not have the records that its manifest counts.")
        return manifest


def configuration(backup: BackupFile) -> Iterator[records.ConfigurationRecord]:
    """Yield the configuration. What was yielded counts once the last record came."""
    yield from map(records.configuration_record, backup.lines())


def secrets(backup: BackupFile, passphrase: str) -> Iterator[records.SecretRecord]:
    """Yield the secrets but the binding, which is checked first: the configuration must be the one of their writer."""
    with backup.secrets() as stream:
        found = map(records.secret_record, container.split_lines(sealed.unsealed(stream, passphrase)))
        binding = next(found, None)
        if not isinstance(binding, records.BindingRecord):
            raise BackupUnsuitable("The secrets of this backup do not say which configuration they belong to.")
        _require_bound(backup.manifest, binding)
        yield binding
        yield from found


def _require_bound(manifest: BackupManifest, binding: records.BindingRecord) -> None:
    digest = next(part.sha256 for part in manifest.parts if part.name == CONFIGURATION)
    named = (manifest.instance_id, manifest.created_at, digest)
    if named != (binding.instance_id, binding.created_at, binding.configuration_sha256):
        raise BackupUnsuitable(
            "The configuration or the manifest of this backup was changed, or is of another backup: the secrets were "
            "sealed with another one."
        )
