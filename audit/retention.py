"""How long audit lines are kept: 12 months, and at most 256 MiB of files."""

from datetime import datetime

import structlog
from django.db import transaction

from audit.files import Journal
from audit.models import AuditLine, ChainState
from mirbad.kernel import clock
from mirbad.kernel.conf import settings

log = structlog.get_logger(__name__)

MONTHS = 12
MAX_BYTES = 256 * 1024 * 1024
BATCH = 1000


def prune_once() -> int:
    """Take away what is too old, files and rows. Returns how many files and rows went; 0 when all is done."""
    oldest = _first_kept_month(clock.now())
    return _prune_files(Journal(settings().data / "audit"), oldest) + _prune_rows(oldest)


def _first_kept_month(now: datetime) -> datetime:
    months = now.year * 12 + now.month - 1 - MONTHS
    return now.replace(year=months // 12, month=months % 12 + 1, day=1, hour=0, minute=0, second=0, microsecond=0)


def _prune_files(journal: Journal, oldest: datetime) -> int:
    with journal.locked() as mine:
        if not mine:
            return 0
        files = journal.files()
        sizes = {file: file.size_bytes for file in files}
        gone = 0
        # The newest file is never taken: its end says where writing goes on.
        for file in files[:-1]:
            if file.month >= f"{oldest:%Y-%m}" and sum(sizes.values()) <= MAX_BYTES:
                break
            file.path.unlink()
            log.info("audit file deleted by retention", file=file.path.name)
            del sizes[file]
            gone += 1
        return gone


def _prune_rows(oldest: datetime) -> int:
    with transaction.atomic():
        state = ChainState.objects.select_for_update().first()
        if state is None:
            return 0
        # A prefix of the chain, and only what the files have: the rest must stay provable.
        candidates = AuditLine.objects.filter(seq__gt=state.base_seq, seq__lte=state.written_seq).order_by("seq")
        last = None
        for row in candidates[:BATCH]:
            if row.time >= oldest:
                break
            last = row
        if last is None or last.seq is None:
            return 0
        gone, _ = AuditLine.objects.filter(seq__lte=last.seq).delete()
        state.base_seq, state.base_digest = last.seq, last.digest
        state.save(update_fields=["base_seq", "base_digest"])
    return gone
