"""The age of the last good backups: for the overview, the page, metrics and the warnings of readiness."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max

from jobs.models import Backup, BackupDestination
from jobs.states import FAILED, SUCCEEDED
from mirbad.kernel import clock


@dataclass(frozen=True, slots=True)
class BackupAge:
    """A destination with the moment of its last good backup. `warn_at` is when that is too old, None for never."""

    destination: BackupDestination
    last_good_at: datetime | None
    warn_at: datetime | None
    last: Backup | None

    @property
    def is_stale(self) -> bool:
        """Return whether the last good backup is older than it should be."""
        return self.warn_at is not None and clock.now() >= self.warn_at

    @property
    def failed(self) -> bool:
        """Return whether the last attempt failed."""
        return self.last is not None and self.last.outcome == FAILED

    def sentence(self) -> str:
        """Return the problem of a stale destination in words."""
        hours = self.destination.warn_after_hours
        if self.last_good_at is None:
            return f"There is no backup at {self.destination.name} yet, and there should be one every {hours} h."
        return (
            f"The last good backup at {self.destination.name} is of {self.last_good_at:%Y-%m-%d %H:%M} UTC; it should "
            f"not be older than {hours} h."
        )


def ages() -> list[BackupAge]:
    """Return the age of every destination. Three statements."""
    destinations = list(BackupDestination.objects.all())
    if not destinations:
        return []
    good = dict(
        Backup.objects.filter(outcome=SUCCEEDED, destination__isnull=False)
        .order_by()
        .values_list("destination_id")
        .annotate(newest=Max("made_at"))
    )
    newest = (
        Backup.objects.filter(finished_at__isnull=False, destination__isnull=False).order_by().values("destination_id")
    )
    last_ids = newest.annotate(last=Max("pk")).values("last")
    last = {one.destination_id: one for one in Backup.objects.filter(pk__in=last_ids)}
    return [_age(one, good.get(one.pk), last.get(one.pk)) for one in destinations]


def _age(destination: BackupDestination, good_at: datetime | None, last: Backup | None) -> BackupAge:
    hours = destination.warn_after_hours
    since = good_at or destination.warn_from
    return BackupAge(destination, good_at, since + timedelta(hours=hours) if hours is not None else None, last)


def warnings() -> list[str]:
    """Return a sentence for each destination whose last good backup is older than it should be."""
    return [age.sentence() for age in ages() if age.is_stale]


def last_good_at() -> datetime | None:
    """Return the moment of the newest good backup of all, None when there is none."""
    found: datetime | None = Backup.objects.filter(outcome=SUCCEEDED).aggregate(at=Max("made_at"))["at"]
    return found


def last_finished() -> Backup | None:
    """Return the backup that succeeded or failed last."""
    return Backup.objects.filter(outcome__in=(SUCCEEDED, FAILED)).order_by("-finished_at", "-pk").first()
