"""Retention of audit lines: 12 months, and at most 256 MiB of files."""

from datetime import datetime

import structlog
from django.db import transaction

from agent.common import merkle
from audit import chain, checkpoints
from audit.files import AuditJournal
from audit.models import AuditLine, ChainState, Checkpoint
from audit.queries import document
from mirbad.kernel import clock
from mirbad.kernel.conf import settings

log = structlog.get_logger(__name__)

MONTHS = 12
MAX_BYTES = 256 * 1024 * 1024
BATCH = 1000


def prune_once() -> int:
    """Delete files and rows past their retention. Return how many; 0 when all is done."""
    oldest = _first_kept_month(clock.now())
    return _prune_files(AuditJournal(settings().data / "audit"), oldest) + _prune_rows(oldest)


def _first_kept_month(now: datetime) -> datetime:
    months = now.year * 12 + now.month - 1 - MONTHS
    return now.replace(year=months // 12, month=months % 12 + 1, day=1, hour=0, minute=0, second=0, microsecond=0)


def _prune_files(journal: AuditJournal, oldest: datetime) -> int:
    with journal.locked() as mine:
        if not mine:
            return 0
        files = journal.files()
        sizes = {file: file.size_bytes for file in files}
        gone = 0
        # The newest file is never deleted: its end is the position of the next line.
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
        # A prefix of the chain, and only lines that the files have: the rest must stay provable.
        candidates = AuditLine.objects.filter(seq__gt=state.base_seq, seq__lte=state.written_seq).order_by("seq")
        last = None
        checkpoints.head_peaks(state)
        peaks = checkpoints.peaks_of(state.base_peaks)
        for row in candidates[:BATCH]:
            if row.time >= oldest:
                break
            merkle.grow(peaks, (row.seq or 0) - 1, chain.leaf(document(row)))
            last = row
        if last is None or last.seq is None:
            return 0
        gone, _ = AuditLine.objects.filter(seq__lte=last.seq).delete()
        state.base_seq, state.base_digest, state.base_peaks = last.seq, last.digest, checkpoints.stored(peaks)
        state.save(update_fields=["base_seq", "base_digest", "base_peaks"])
        # A head over lines that are all gone proves nothing any more; the newest one is what nodes hold.
        newest = checkpoints.latest()
        Checkpoint.objects.filter(size__lt=min(last.seq, newest.size if newest else 0)).delete()
    return gone
