"""View-models of backups and their destinations."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jobs.backup import freshness, schedule, storage
from jobs.backup.freshness import BackupAge
from jobs.kinds import backup_delete
from jobs.models import Backup, BackupDestination
from jobs.pages.contexts.rows import OUTCOMES
from jobs.queries import unfinished
from jobs.states import OPEN
from mirbad.web import parts
from mirbad.web.parts import Badge

SHOWN = 200
_DELETING = Badge("Deleting", "busy", "hourglass")
_STALE = Badge("Too old", "warn", "triangle-alert")
_FRESH = Badge("Up to date", "ok", "circle-check")
_NONE_YET = Badge("No backup yet", "idle", "circle-dashed")
_NO_LIMIT = Badge("No age limit", "idle", "circle-dashed")
SHORT_KINDS = {"folder": "Folder", "smb": "SMB", "nfs": "NFS", "s3": "S3"}
KINDS = {"folder": "Folder", "smb": "SMB share", "nfs": "NFS export", "s3": "S3 bucket"}


@dataclass(frozen=True, slots=True)
class BackupRow:
    """A backup. `downloadable` is whether the master has its file."""

    id: int
    name: str
    badge: Badge
    size: str
    where: str
    secrets: str
    who: str
    error: str
    operation_id: str
    at: datetime
    open: bool
    deleting: bool
    downloadable: bool


@dataclass(frozen=True, slots=True)
class DestinationRow:
    """A destination with its schedule, its retention and its last backup. `schedule` is in words, empty when off."""

    id: int
    name: str
    kind: str
    where: str
    badge: Badge
    problem: str
    schedule: str
    next_at: datetime | None
    sealed: bool
    keeps: str
    last_good_at: datetime | None
    last_error: str


@dataclass(frozen=True, slots=True)
class BackupsPage:
    """The page: backups, newest first, destinations, and what an owner must know."""

    backups: tuple[BackupRow, ...]
    destinations: tuple[DestinationRow, ...]
    warnings: tuple[str, ...]


def read() -> BackupsPage:
    """Return the page. Five statements, and a look at the disk for each backup."""
    deleting = set(unfinished().filter(kind=backup_delete.NAME).values_list("target_id", flat=True))
    ages = freshness.ages()
    return BackupsPage(
        backups=tuple(_backup(row, str(row.pk) in deleting) for row in Backup.objects.all()[:SHOWN]),
        destinations=tuple(map(_destination, ages)),
        warnings=tuple(age.sentence() for age in ages if age.is_stale),
    )


def _backup(row: Backup, deleting: bool) -> BackupRow:
    on_master = row.sha256 != "" and storage.file_of(row).is_file()
    places = (["Master"] if on_master else []) + ([row.destination_name] if row.copied_at is not None else [])
    return BackupRow(
        id=row.pk,
        name=row.name,
        badge=_DELETING if deleting else OUTCOMES[row.outcome],
        size=parts.size(row.bytes) if row.bytes is not None else "",
        where=", ".join(place for place in places if place),
        secrets="with secrets" if row.with_secrets else "without secrets",
        who="schedule" if row.scheduled else row.person or row.actor,
        error=str(row.error.get("detail", "")),
        operation_id=row.operation_id_text,
        at=row.made_at or row.created_at,
        open=row.outcome == OPEN,
        deleting=deleting,
        downloadable=on_master and not deleting,
    )


def _badge(row: BackupDestination, age: BackupAge) -> Badge:
    if age.is_stale:
        return _STALE
    if age.last_good_at is None:
        return _NONE_YET
    return _FRESH if row.warn_after_hours is not None else _NO_LIMIT


def _destination(age: BackupAge) -> DestinationRow:
    row = age.destination
    last = age.last
    return DestinationRow(
        id=row.pk,
        name=row.name,
        kind=KINDS.get(row.kind, row.kind),
        where=where_of(row),
        badge=_badge(row, age),
        problem=age.sentence() if age.is_stale else "",
        schedule=schedule.words(row.schedule) if row.schedule else "",
        next_at=schedule.next_after(row.schedule, row.schedule_from) if row.schedule and row.schedule_from else None,
        sealed=row.passphrase_sealed is not None,
        keeps=_keeps(row),
        last_good_at=age.last_good_at,
        last_error=str(last.error.get("detail", "")) if last is not None and age.failed else "",
    )


def where_of(row: BackupDestination) -> str:
    """Return the place of a destination in words."""
    return storage.settings_of(row).where


def _keeps(row: BackupDestination) -> str:
    rules = []
    if row.keep_count is not None:
        rules.append(f"the last {row.keep_count}")
    if row.keep_days is not None:
        rules.append(f"{parts.span(timedelta(days=row.keep_days))} at most")
    return ", ".join(rules) or "all"


def last_line() -> dict[str, Any] | None:
    """Return the last backup for the overview, None when there was none: one statement."""
    row = freshness.last_finished()
    if row is None:
        return None
    size = parts.size(row.bytes) if row.bytes is not None else ""
    return {
        "badge": OUTCOMES[row.outcome],
        "at": row.made_at or row.finished_at,
        "size": size,
        "where": row.destination_name or "the master",
        "operation_id": row.operation_id_text,
    }
