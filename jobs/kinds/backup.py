"""Make a backup: writing (→ copying → keeping) → done, or undoing → the end.

The file gets its name in the data folder once it was read back with its passphrase, and at its destination once the
copy was; each stage may be repeated at any point. The passphrase is sealed in the row of the backup, and removed from
it in the transaction that ends the operation.
"""

import hashlib
from pathlib import Path

from jobs.backup import making, retention, storage, verification
from jobs.backup.container import BackupManifest
from jobs.backup.destinations.errand import ErrandCancelled
from jobs.backup.retention import GoodBackup
from jobs.base import Audit, Cancelled, Display, Done, Go, Kind, OperationData, Outcome, Stage, Step
from jobs.errors import BackupDestinationFailed, BackupExists, StepFailed
from jobs.models import Backup, Operation
from jobs.queries import unfinished
from jobs.states import SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.roles import OWNER
from nodes import fencing

NAME = "backup"
WRITING = "writing"
COPYING = "copying"
KEEPING = "keeping"
UNDOING = "undoing"

_TRIES = 3


class BackupInput(OperationData):
    """The row of the backup, and its names for pages. `destination` is empty for one that stays on the master."""

    backup_id: int
    name: str
    destination: str = ""


class BackupState(OperationData):
    """`size` is that of the file, once it is written."""

    size: int | None = None


BackupStep = Step[BackupInput, BackupState]


def _writing(step: BackupStep) -> Outcome:
    if step.cancel_requested:
        return Go(UNDOING, "Cancelling the backup.")
    row = _row(step)
    passphrase = storage.passphrase_of(row)
    if row.with_secrets and passphrase is None:
        raise StepFailed("invalid_state", "The passphrase is not kept any more. Make another backup.", final=True)
    path = storage.folder() / row.name
    try:
        manifest = _written(path, passphrase)
        size, digest = path.stat().st_size, _sha256(path)
    except OSError as error:
        text = f"The file cannot be written to {path.parent}: {error.strerror or error}. Check the disk."
        raise StepFailed("backup_disk_failed", text, final=step.attempt + 1 >= _TRIES) from error
    Backup.objects.filter(pk=row.pk).update(
        bytes=size, sha256=digest, manifest=manifest.model_dump(mode="json"), made_at=manifest.created_at
    )
    state = step.state.changed(size=size)
    if not step.input.destination:
        return Go(KEEPING, "The file was written and read back.", state)
    return Go(COPYING, f"Written and read back. Copying to {step.input.destination}.", state)


def _written(path: Path, passphrase: str | None) -> BackupManifest:
    """Return the manifest of the file, which is written unless a step before did so."""
    storage.remove_parts(path.name)
    if not path.exists():
        try:
            return making.write(path, passphrase).manifest
        except BackupExists:
            pass  # another worker was faster
    return verification.verify(path, passphrase)


def _copying(step: BackupStep) -> Outcome:
    if step.cancel_requested:
        return Go(UNDOING, "Cancelling the backup.")
    row = _row(step)
    if not storage.file_of(row).exists():
        return Go(WRITING, "The file is gone; writing it again.")
    destination = row.destination
    if destination is None:
        raise StepFailed("backup_destination_failed", "The destination was deleted meanwhile.", final=True)
    try:
        storage.copy(row, destination, lambda: _is_cancelled(step))
    except ErrandCancelled:
        return Go(UNDOING, "Cancelling the backup.")
    except BackupDestinationFailed as error:
        raise StepFailed(error.code, error.detail, final=step.attempt + 1 >= _TRIES) from error
    Backup.objects.filter(pk=row.pk).update(copied_at=clock.now())
    return Go(KEEPING, f"The copy at {destination.name} was read back.")


def _keeping(step: BackupStep) -> Outcome:
    """Delete what the retention of the destination no longer keeps. No failure here makes the backup a bad one."""
    if step.cancel_requested:
        return Go(UNDOING, "Cancelling the backup.")
    row, note = _row(step), ""
    # A copy of this data folder elsewhere has the same rows: only the master that commands the fleet deletes.
    if not fencing.is_fenced():
        gone, problem = _delete_expired(row)
        note = f" {gone} older deleted." if gone else ""
        note += f" Older ones could not be deleted: {problem}" if problem else ""
    where = f", read back and copied to {step.input.destination}" if step.input.destination else " and read back"
    text = f"The backup was made{where}.{note}"
    return Done(text, {"backupId": row.pk, "name": row.name, "bytes": row.bytes, "sha256": row.sha256})


def _delete_expired(row: Backup) -> tuple[int, str]:
    destination = row.destination
    if destination is None:
        return 0, ""
    good = Backup.objects.filter(destination=destination, outcome=SUCCEEDED).exclude(made_at=None)
    known = {one.pk: one for one in (*good, row)}
    found = [GoodBackup(one.pk, one.made_at, one.with_secrets) for one in known.values() if one.made_at is not None]
    going = [known[pk] for pk in retention.expired(found, destination.keep_count, destination.keep_days, clock.now())]
    going = [one for one in going if one.pk != row.pk]
    if not going:
        return 0, ""
    try:
        storage.remove_copies(destination, [one.name for one in going])
        for one in going:
            storage.remove_file(one)
    except (BackupDestinationFailed, OSError) as error:
        return 0, str(error)
    Backup.objects.filter(pk__in=[one.pk for one in going]).delete()
    return len(going), ""


def _undoing(step: BackupStep) -> Outcome:
    row = _row(step)
    note = ""
    if row.destination is not None:
        try:
            storage.remove_copies(row.destination, [row.name])
        except BackupDestinationFailed as error:
            note = f" A part of it may be left at {row.destination.name}: {error.detail}"
    storage.remove_file(row)
    return Cancelled(f"Cancelled; the file was deleted.{note}")


def _is_cancelled(step: BackupStep) -> bool:
    return unfinished().filter(pk=step.operation_id, cancel_requested_at__isnull=False).exists()


def _row(step: BackupStep) -> Backup:
    row = Backup.objects.select_related("destination").filter(pk=step.input.backup_id).first()
    if row is None:
        raise StepFailed("not_found", "The backup was deleted meanwhile.", final=True)
    return row


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _end(step: BackupStep, outcome: str, code: str) -> None:
    """Write the end into the row of the backup, and forget its passphrase."""
    error = Operation.objects.filter(pk=step.operation_id).values_list("error", flat=True).first() or {}
    kept = {"code": code, "detail": str(error.get("detail", ""))} if code else {}
    Backup.objects.filter(pk=step.input.backup_id).update(
        outcome=outcome, finished_at=clock.now(), error=kept, passphrase_sealed=None
    )


def _detail(step: BackupStep, _: str) -> str:
    size = f"{step.state.size} bytes" if step.state.size is not None else "not written"
    return f"{size}, to {step.input.destination}" if step.input.destination else size


def _path(step: BackupStep) -> tuple[str, ...]:
    return (WRITING, COPYING, KEEPING) if step.input.destination else (WRITING, KEEPING)


KIND = Kind(
    name=NAME,
    title="Backup",
    concurrency_group="work",
    role=OWNER,
    Input=BackupInput,
    State=BackupState,
    stages=(
        Stage(WRITING, "Write and read back", _writing, long=True),
        Stage(COPYING, lambda step: f"Copy to {step.input.destination}", _copying, long=True),
        Stage(KEEPING, "Apply the retention", _keeping, long=True),
        Stage(UNDOING, "Delete the file", _undoing, aside=True, long=True),
    ),
    audit=Audit("backup", target=lambda step: step.input.name, detail=_detail),
    on_end=_end,
    while_fenced=True,
    display=Display(subject=lambda step: step.input.name, path=_path),
)
