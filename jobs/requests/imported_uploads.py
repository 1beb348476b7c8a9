"""Uploaded backups of one person, read for an import."""

from collections.abc import Iterable
from dataclasses import dataclass

from jobs.backup import uploads
from jobs.backup.importing import content
from jobs.backup.importing.content import BackupContent
from jobs.backup.uploads import UploadedBackup
from mirbad.kernel.actor import Actor


@dataclass(frozen=True, slots=True)
class ImportedUpload:
    """An upload and its content."""

    id: str
    content: BackupContent


def keep(chunks: Iterable[bytes], name: str, passphrase: str | None, actor: Actor) -> ImportedUpload:
    """Keep an upload for an hour, once every part of it was read. Raises what `uploads.keep` raises."""
    return _read(uploads.keep(chunks, name, passphrase, _owner(actor)))


def find(upload_id: str, actor: Actor) -> ImportedUpload:
    """Return an upload of the same person. Raises NotFound, BackupUnsuitable."""
    return _read(uploads.find(upload_id, _owner(actor)))


def forget(upload_id: str, actor: Actor) -> None:
    """Remove an upload of the same person. Raises NotFound."""
    uploads.forget(uploads.find(upload_id, _owner(actor)).id)


def _read(upload: UploadedBackup) -> ImportedUpload:
    return ImportedUpload(upload.id, content.read(upload.path, upload.passphrase, upload.name))


def _owner(actor: Actor) -> str:
    # A token may have the name of a user.
    return f"{actor.name.partition(':')[0]}:{actor.person or actor.name}"
