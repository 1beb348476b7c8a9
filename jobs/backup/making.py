"""A backup is made, read back and opened before it counts: one that nobody can open is no backup."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from audit import log as audit_log
from jobs.backup import collect, container, records, sealed, verification
from jobs.backup.container import CONFIGURATION, SECRETS, BackupManifest, BackupWriter
from jobs.errors import BackupExists, BackupUnsuitable
from mirbad import __version__
from mirbad.accounts import passwords
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.consistent_read import consistent_read
from nodes.pki import store


@dataclass(frozen=True, slots=True)
class MadeBackup:
    """A backup on disk, read back."""

    path: Path
    bytes: int
    manifest: BackupManifest


def create(path: Path, passphrase: str | None, actor: Actor) -> MadeBackup:
    """Write a backup of this moment to the new file `path`, and open it again. Without `passphrase` it has no secrets.

    Raises WeakPassword, BackupExists, Unavailable before the first start, SealBroken, OSError; then there is no file.
    """
    if passphrase is not None:
        check_passphrase(passphrase)
    made = write(path, passphrase)
    secrets = "with secrets" if passphrase is not None else "without secrets"
    audit_log.record("backup", actor, target=path.name, detail=f"{made.bytes} bytes, {secrets}")
    return made


def check_passphrase(passphrase: str) -> None:
    """Raise WeakPassword for a passphrase that is too easy to guess."""
    passwords.check(unicodedata.normalize("NFC", passphrase), source="the backup")


def write(path: Path, passphrase: str | None) -> MadeBackup:
    """Do as `create` does, with a passphrase that was checked, and without an audit line: its caller writes that."""
    made: list[BackupManifest] = []

    def check(part: Path) -> None:
        found = verification.verify(part, passphrase)
        if found != made[0]:
            raise BackupUnsuitable("The backup reads differently from what was written: the disk is at fault.")

    try:
        container.write_new(path, lambda file: made.append(_write(file, passphrase, clock.now())), check)
    except FileExistsError as error:
        raise BackupExists(f"{path} already exists. Choose another name.") from error
    return MadeBackup(path, path.stat().st_size, made[0])


def _write(file: BinaryIO, passphrase: str | None, at: datetime) -> BackupManifest:
    counts: Counter[str] = Counter()
    with BackupWriter(file, at) as writer:
        with consistent_read():
            instance_id, ca = store.master().instance_id, ""
            with writer.part(CONFIGURATION) as part:
                _write_lines(part, collect.configuration(), counts)
            if passphrase is not None:
                ca = collect.issuing_ca()
                binding = records.BindingRecord(
                    configuration_sha256=writer.parts[0].sha256, instance_id=instance_id, created_at=at
                )
                with writer.part(SECRETS) as part:
                    sealing = sealed.SealingWriter(part, passphrase)
                    _write_lines(sealing, [binding], counts)
                    _write_lines(sealing, collect.secrets(), counts)
                    sealing.finish()
        manifest = BackupManifest(
            mirbad_version=__version__,
            instance_id=instance_id,
            created_at=at,
            counts=dict(counts),
            ca_sha256=ca,
            parts=tuple(writer.parts),
        )
        writer.finish(manifest)
    return manifest


def _write_lines(part: container.Writable, found: Iterable[records.Record], counts: Counter[str]) -> None:
    for record in found:
        part.write(records.to_line(record))
        counts[record.kind] += 1
