"""The choice of backups that are old enough to be deleted. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class GoodBackup:
    """A backup that was made, read back and copied."""

    id: int
    at: datetime
    with_secrets: bool


def expired(
    backups: Sequence[GoodBackup], keep_count: int | None, keep_days: int | None, now: datetime
) -> tuple[int, ...]:
    """Return the ids of the good backups of one destination that may go; None keeps any number, or any age.

    The newest one never goes, nor the newest one with secrets: only that one rebuilds a lost master.
    """
    newest_first = sorted(backups, key=lambda one: (one.at, one.id), reverse=True)
    kept = {one.id for one in newest_first[:1]} | {one.id for one in [b for b in newest_first if b.with_secrets][:1]}
    too_many = newest_first[keep_count:] if keep_count is not None else ()
    oldest = now - timedelta(days=keep_days) if keep_days is not None else None
    too_old = [one for one in newest_first if oldest is not None and one.at < oldest]
    going = {one.id for one in (*too_many, *too_old)} - kept
    return tuple(one.id for one in newest_first if one.id in going)
