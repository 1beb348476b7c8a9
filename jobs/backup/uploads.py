"""Uploaded backups, kept for the time between a preview and its confirmation.

Each is two files in the folder ``uploads`` of the data folder, private to the master: the backup, and beside it a note
with its name, its person, and its passphrase, sealed. An upload lives for an hour: an operation that outlives the
request copies what it needs.
"""

import json
import re
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from agent.common.files import write_text
from jobs.backup import verification
from jobs.backup.container import BackupManifest
from jobs.errors import BackupUnsuitable
from mirbad.accounts.upload_door import MOST_BYTES
from mirbad.api.problems import PayloadTooLarge
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import NotFound, Unavailable
from mirbad.kernel.seal import seal, unseal

FOLDER = "uploads"
LIFE = timedelta(hours=1)
MOST_OF_A_PERSON = 4
_FREE_BYTES = 64 * 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9_-]{32}")
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class UploadedBackup:
    """A backup that was uploaded and verified. `name` is that of the file on the person's machine."""

    id: str
    name: str
    path: Path
    passphrase: str | None = field(repr=False)
    manifest: BackupManifest


def keep(chunks: Iterable[bytes], name: str, passphrase: str | None, person: str) -> UploadedBackup:
    """Store an upload once it was read to its end and every part of it verified, with the passphrase if there is one.

    Of the uploads of a person the oldest beyond `MOST_OF_A_PERSON` go. Raises BackupUnsuitable, PayloadTooLarge,
    Unavailable for a full disk, OSError; then nothing is stored.
    """
    folder = _folder()
    remove_old()
    upload_id = secrets.token_urlsafe(24)
    part = folder / f"{upload_id}.part"
    try:
        _write(part, chunks)
        manifest = _verified(part, name, passphrase)
        note = {"name": _shown(name), "person": person, "passphrase": _sealed(passphrase, upload_id)}
        write_text(_note(upload_id), json.dumps(note))
        # Last: an upload without its note is never found.
        part.rename(folder / upload_id)
    except BaseException:
        _note(upload_id).unlink(missing_ok=True)
        raise
    finally:
        part.unlink(missing_ok=True)
    _remove_beyond(person, keep_id=upload_id)
    return UploadedBackup(upload_id, _shown(name), folder / upload_id, passphrase, manifest)


def find(upload_id: str, person: str) -> UploadedBackup:
    """Return an upload of `person`. Raises NotFound once it is gone, and for that of another person."""
    missing = NotFound("The uploaded backup is not there any more: uploads are kept for an hour. Upload it again.")
    if not _ID.fullmatch(upload_id):
        raise missing
    path = _folder() / upload_id
    try:
        note = json.loads(_note(upload_id).read_text())
        if note["person"] != person or _age_seconds(path) > LIFE.total_seconds():
            raise missing
        return UploadedBackup(
            upload_id, note["name"], path, _opened(note["passphrase"], upload_id), verification.inspect(path)
        )
    except FileNotFoundError:
        raise missing from None


def forget(upload_id: str) -> None:
    """Remove an upload; one that is gone is no error."""
    if _ID.fullmatch(upload_id):
        (_folder() / upload_id).unlink(missing_ok=True)
        _note(upload_id).unlink(missing_ok=True)


def remove_old() -> int:
    """Remove what is older than `LIFE`, and what an interrupted upload left; return the number of files."""
    removed = 0
    for path in list(_folder().iterdir()):
        try:
            if _age_seconds(path) > LIFE.total_seconds():
                path.unlink()
                removed += 1
        except FileNotFoundError:
            continue  # another request removed it
    return removed


def _folder() -> Path:
    folder = settings().data / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _note(upload_id: str) -> Path:
    return _folder() / f"{upload_id}.json"


def _age_seconds(path: Path) -> float:
    return clock.now().timestamp() - path.stat().st_mtime


def _write(part: Path, chunks: Iterable[bytes]) -> None:
    count = 0
    with part.open("xb") as file:
        part.chmod(0o600)
        for chunk in chunks:
            count += len(chunk)
            if count > MOST_BYTES:
                raise PayloadTooLarge(f"The backup is larger than {MOST_BYTES // 1024**2} MiB.")
            if shutil.disk_usage(part.parent).free < len(chunk) + _FREE_BYTES:
                raise Unavailable("The disk of the data folder has no space for this backup. Free some space on it.")
            file.write(chunk)


def _verified(part: Path, name: str, passphrase: str | None) -> BackupManifest:
    try:
        return verification.verify(part, passphrase)
    except BackupUnsuitable as error:
        if part.name not in error.detail:
            raise
        text = error.detail.replace(part.name, _shown(name))
        raise BackupUnsuitable(f"{text} Upload it again, or choose another file.") from error


def _shown(name: str) -> str:
    """Return the file's own name, printable: browsers send it as it is on the person's machine."""
    own = name.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(letter for letter in own if letter.isprintable())[:_LONGEST_NAME] or "backup"


def _purpose(upload_id: str) -> str:
    return f"upload-passphrase/{upload_id}"


def _sealed(passphrase: str | None, upload_id: str) -> str | None:
    return None if passphrase is None else seal(passphrase.encode(), _purpose(upload_id)).hex()


def _opened(sealed: str | None, upload_id: str) -> str | None:
    return None if sealed is None else unseal(bytes.fromhex(sealed), _purpose(upload_id)).decode()


def _remove_beyond(person: str, *, keep_id: str) -> None:
    own = []
    for note in _folder().glob("*.json"):
        try:
            if json.loads(note.read_text())["person"] == person and note.stem != keep_id:
                own.append((note.stat().st_mtime, note.stem))
        except (FileNotFoundError, ValueError, KeyError):
            continue
    for _, upload_id in sorted(own, reverse=True)[MOST_OF_A_PERSON - 1 :]:
        forget(upload_id)
