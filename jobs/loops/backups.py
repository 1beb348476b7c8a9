"""Scheduled backups, and what interrupted ones left. The rows are the queue: a slot is claimed by one UPDATE."""

import structlog
from django.db import transaction

from jobs.backup import schedule, storage
from jobs.models import Backup, BackupDestination
from jobs.queries import unfinished
from jobs.requests import backups
from jobs.states import CANCELLED, FAILED
from mirbad.kernel import clock
from mirbad.kernel.actor import system
from mirbad.kernel.errors import Conflict, MirbadError
from nodes import fencing
from nodes.pki import store

log = structlog.get_logger(__name__)

_SCHEDULE = system("backup")
FAILED_KEPT = 20
"""Failed and cancelled backups that stay in the list, with what the master has of their files."""


def tick() -> None:
    """Start what is due, and forget what failed long ago and passphrases of backups that ended in an unusual way."""
    start_due_once()
    forget_passphrases_once()
    forget_failed_once()


def start_due_once() -> int:
    """Start the backups whose slot has come; return how many. Slots that were missed are made up by one backup.

    Not while this master is fenced: a copy of a master must not write over the retention of the original.
    """
    due = BackupDestination.objects.exclude(schedule="").exclude(schedule_from=None)
    if not due.exists() or fencing.is_fenced():
        return 0
    return sum(_start(row) for row in due)


def _start(row: BackupDestination) -> bool:
    now = clock.now()
    if row.schedule_from is None or schedule.next_after(row.schedule, row.schedule_from) > now:
        return False
    try:
        with transaction.atomic():
            if not _claim(row):
                return False
            backups.request(
                _SCHEDULE,
                passphrase=None,
                with_secrets=row.passphrase_sealed is not None,
                destination_id=row.pk,
                scheduled=True,
            )
            return True
    except Conflict:
        return False  # one is being made; the slot stays due
    except MirbadError as error:
        log.warning("a scheduled backup could not be started", destination=row.name, why=error.detail)
        with transaction.atomic():
            if _claim(row):
                _record_failure(row, error)
        return False


def _claim(row: BackupDestination) -> bool:
    """Take the slot of `row`; False when another process took it, or the schedule was changed."""
    same = BackupDestination.objects.filter(pk=row.pk, schedule=row.schedule, schedule_from=row.schedule_from)
    return bool(same.update(schedule_from=clock.now()))


def _record_failure(row: BackupDestination, error: MirbadError) -> None:
    now = clock.now()
    Backup.objects.create(
        name=f"mirbad-{now:%Y%m%dT%H%M%S%fZ}-not-started",
        destination=row,
        destination_name=row.name,
        instance_id=store.master().instance_id,
        with_secrets=row.passphrase_sealed is not None,
        scheduled=True,
        outcome=FAILED,
        error={"code": error.code, "detail": error.detail},
        actor=_SCHEDULE.name,
        finished_at=now,
    )


def forget_passphrases_once() -> int:
    """End the rows of backups whose operation is over without having ended them; return how many.

    An operation that another version of Mirbad began may end without its kind.
    """
    left = list(Backup.objects.filter(finished_at__isnull=True).values_list("pk", "operation_id_text"))
    open_ids = set(unfinished().filter(pk__in=[operation for _, operation in left]).values_list("pk", flat=True))
    over = [pk for pk, operation in left if operation not in open_ids]
    if not over:
        return 0
    for row in Backup.objects.filter(pk__in=over, finished_at__isnull=True):
        storage.remove_parts(row.name)
    detail = "The operation ended without a result."
    return Backup.objects.filter(pk__in=over, finished_at__isnull=True).update(
        outcome=FAILED, finished_at=clock.now(), passphrase_sealed=None, error={"detail": detail}
    )


def forget_failed_once() -> int:
    """Delete all but the newest failed and cancelled backups, so that none fills the disk; return how many."""
    old = list(Backup.objects.filter(outcome__in=(FAILED, CANCELLED)).order_by("-pk")[FAILED_KEPT:])
    for row in old:
        storage.remove_file(row)
        row.delete()
    return len(old)
