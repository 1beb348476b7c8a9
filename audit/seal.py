"""Sealing: every line gets its place in the hash chain, and the chain is written to the JSONL files.

Lines are selected by "not sealed yet", not by id: with PostgreSQL a lower id may be committed after a higher one. The
files are continued from their own content, not from a row about them, so a kill between writing and recording neither
loses nor doubles a line. Files that end before a line that was in them are completed, and a line says so for good.
"""

import structlog
from django.db import transaction

from agent.common import merkle
from audit import chain, checkpoints
from audit import log as audit_log
from audit.files import AuditJournal, JournalEntry
from audit.models import AuditLine, ChainState
from audit.queries import document
from mirbad.kernel.actor import system
from mirbad.kernel.conf import settings

log = structlog.get_logger(__name__)

BATCH = 500


def seal_once() -> int:
    """Seal and write at most one batch each. Return how many lines were sealed or written; 0 when all is done."""
    return _extend() + _catch_up(AuditJournal(settings().data / "audit"))


def _extend() -> int:
    if not AuditLine.objects.filter(seq__isnull=True).exists():
        return 0
    checkpoints.state()
    with transaction.atomic():
        state = ChainState.objects.select_for_update().get()
        peaks = checkpoints.head_peaks(state)
        rows = list(AuditLine.objects.filter(seq__isnull=True).order_by("id")[:BATCH])
        for row in rows:
            append(state, peaks, row)
        AuditLine.objects.bulk_update(rows, ["seq", "digest"], batch_size=100)
        state.head_peaks = checkpoints.stored(peaks)
        state.save(update_fields=["head_seq", "head_digest", "head_peaks", "base_peaks"])
    return len(rows)


def append(state: ChainState, peaks: list[bytes], row: AuditLine) -> None:
    """Give `row` its place after the head of `state`, in the chain and in the tree with `peaks`. Nothing is saved."""
    row.seq = state.head_seq + 1
    text = chain.canonical(document(row))
    row.digest = chain.link_text(state.head_digest, text)
    merkle.grow(peaks, state.head_seq, merkle.leaf(text.encode()))
    state.head_seq, state.head_digest = row.seq, row.digest


def _catch_up(journal: AuditJournal) -> int:
    with journal.locked() as mine:
        if not mine:
            return 0
        journal.repair()
        state = checkpoints.state()
        after, known = _position(journal, state)
        rows = list(AuditLine.objects.filter(seq__gt=after).order_by("seq")[:BATCH])
        if not rows:
            return 0
        # Before the files are whole again: a kill in between says it twice rather than never.
        _say_cut(after, state.written_seq, known=known)
        journal.append([JournalEntry(f"{row.time:%Y-%m}", document(row)) for row in rows], fresh=not known)
        ChainState.objects.update(written_seq=rows[-1].seq)
        return len(rows)


def _say_cut(after: int, written: int, *, known: bool) -> None:
    """Record that lines were missing from the files, though they had been in them."""
    if known and after >= written:
        return
    lost = (
        f"ended at line {after}, though line {written} had been written" if known else "had another end than this log"
    )
    text = f"The audit files {lost}. The missing lines were written again from the database. Was the folder restored?"
    log.critical("the audit files were cut or replaced", after=after, written=written)
    audit_log.record("audit", system("audit"), result="failed", error_code="audit_files_cut", detail=text)


def _position(journal: AuditJournal, state: ChainState) -> tuple[int, bool]:
    """Return the sequence number after which the files continue, and whether their end is one of our lines."""
    last = journal.last()
    if last is None:
        return state.base_seq, True
    seq, digest = last.get("seq"), last.get("hash")
    if isinstance(seq, int) and isinstance(digest, str):
        ours = AuditLine.objects.filter(seq=seq, digest=digest).exists()
        if ours or (seq == state.base_seq and digest == state.base_digest):
            return seq, True
    return state.written_seq, False
