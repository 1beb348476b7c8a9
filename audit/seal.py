"""Gives every line its place in the hash chain, and writes the chain to the JSONL files.

Lines are taken by "not sealed yet", not by id: with PostgreSQL a lower id may be committed after a higher one. The
files are continued from what they hold, not from what a row says of them, so a kill between writing and noting neither
loses nor doubles a line.
"""

from dataclasses import dataclass

import structlog
from django.db import transaction

from audit import chain
from audit.files import Entry, Journal
from audit.models import AuditLine, ChainState
from audit.queries import document
from mirbad.kernel.conf import settings

log = structlog.get_logger(__name__)

BATCH = 500


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check of chain and files found: how many lines hold, and the first break of each."""

    lines: int
    in_database: chain.Break | None
    in_files: chain.Break | None

    @property
    def holds(self) -> bool:
        """Whether nothing was tampered with."""
        return self.in_database is None and self.in_files is None


def seal_once() -> int:
    """Seal and write at most one batch each. Returns how many lines were sealed or written; 0 when all is done."""
    return _extend() + _catch_up(Journal(settings().data / "audit"))


def _state() -> ChainState:
    state, _ = ChainState.objects.get_or_create(
        singleton=True, defaults={"head_digest": chain.GENESIS, "base_digest": chain.GENESIS}
    )
    return state


def _extend() -> int:
    _state()
    with transaction.atomic():
        state = ChainState.objects.select_for_update().get()
        rows = list(AuditLine.objects.filter(seq__isnull=True).order_by("id")[:BATCH])
        for row in rows:
            row.seq = state.head_seq + 1
            row.digest = chain.link(state.head_digest, document(row))
            state.head_seq, state.head_digest = row.seq, row.digest
        if rows:
            AuditLine.objects.bulk_update(rows, ["seq", "digest"], batch_size=100)
            state.save(update_fields=["head_seq", "head_digest"])
    return len(rows)


def _catch_up(journal: Journal) -> int:
    with journal.locked() as mine:
        if not mine:
            return 0
        journal.repair()
        state = _state()
        after, known = _position(journal, state)
        rows = list(AuditLine.objects.filter(seq__gt=after).order_by("seq")[:BATCH])
        if not rows:
            return 0
        if not known:
            log.warning("the audit files continue another history than the database; a new file is begun", after=after)
        journal.append([Entry(f"{row.time:%Y-%m}", document(row)) for row in rows], fresh=not known)
        ChainState.objects.update(written_seq=rows[-1].seq)
        return len(rows)


def _position(journal: Journal, state: ChainState) -> tuple[int, bool]:
    """The sequence number after which the files are to be continued, and whether their end is one of our lines."""
    last = journal.last()
    if last is None:
        return state.written_seq, True
    seq, digest = last.get("seq"), last.get("hash")
    if isinstance(seq, int) and isinstance(digest, str):
        ours = AuditLine.objects.filter(seq=seq, digest=digest).exists()
        if ours or (seq == state.base_seq and digest == state.base_digest):
            return seq, True
    return state.written_seq, False


def verify() -> Verdict:
    """Follow the chain through the database, then hold the files against it."""
    state = _state()
    # Only what was sealed by now: the chain may grow while it is read.
    rows = AuditLine.objects.filter(seq__isnull=False, seq__lte=state.head_seq).order_by("seq")
    broken, seq, digest = chain.first_break(
        (document(row) for row in rows.iterator(1000)), state.base_seq, state.base_digest
    )
    if broken is None and (seq, digest) != (state.head_seq, state.head_digest):
        broken = chain.Break(seq + 1, f"the chain ends at line {seq}, but {state.head_seq} lines were sealed")
    return Verdict(seq - state.base_seq, broken, _break_in_files(Journal(settings().data / "audit"), state))


def _break_in_files(journal: Journal, state: ChainState) -> chain.Break | None:
    previous: tuple[int, str] | None = None
    seen = state.base_seq
    known: dict[int, str] = {}
    try:
        for entry in journal.documents():
            seq, digest = entry.get("seq"), entry.get("hash")
            if not isinstance(seq, int) or not isinstance(digest, str):
                return chain.Break(seen + 1, "a line of the files has no place in the chain")
            if previous is not None and seq == previous[0] + 1:
                broken, _, _ = chain.first_break([entry], *previous)
                if broken is not None:
                    return chain.Break(seq, f"the files: {broken.reason}")
            if state.base_seq < seq <= state.head_seq:
                if seq != seen + 1 and seen > state.base_seq:
                    return chain.Break(seen + 1, f"the files lack line {seen + 1}")
                if seq not in known:
                    known = _digests(seq)
                if known.get(seq) != digest:
                    return chain.Break(seq, f"line {seq} differs between files and database")
                seen = seq
            previous = (seq, digest)
    except ValueError as error:
        return chain.Break(seen + 1, str(error))
    if seen < state.written_seq:
        return chain.Break(seen + 1, f"the files end at line {seen}, but line {state.written_seq} was written")
    return None


def _digests(first_seq: int) -> dict[int, str]:
    rows = AuditLine.objects.filter(seq__gte=first_seq, seq__lt=first_seq + BATCH)
    return {seq: digest for seq, digest in rows.values_list("seq", "digest") if seq is not None}
