"""The check of the whole log: chain, files, checkpoints and witnesses. It only reads."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent.common import merkle
from agent.common.keys import verifies
from agent.wire.witness import HEAD_LINE, WITNESS_LINE, AuditHead
from audit import chain, checkpoints
from audit.files import AuditJournal
from audit.models import AuditLine, ChainState, Checkpoint
from audit.queries import document
from mirbad.kernel.conf import settings

BATCH = 500
_OWN = "checkpoint"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check: the number of valid lines, of lines not sealed yet and of checkpoints; the first break of
    each part.
    """

    lines: int
    unsealed: int
    checkpoints: int
    in_database: chain.Break | None
    in_files: chain.Break | None
    in_heads: chain.Break | None

    @property
    def holds(self) -> bool:
        """True when no line was changed."""
        return self.in_database is None and self.in_files is None and self.in_heads is None

    @property
    def breaks(self) -> tuple[tuple[str, chain.Break], ...]:
        """The breaks, each with the name of its part."""
        parts = (("database", self.in_database), ("files", self.in_files), ("checkpoints", self.in_heads))
        return tuple((name, found) for name, found in parts if found is not None)


class _Heads:
    """Signed heads, compared with the lines that pass by in their order."""

    def __init__(self, state: ChainState, heads: Mapping[str, AuditHead]) -> None:
        self._known = checkpoints.has_tree(state)
        self._peaks = checkpoints.peaks_of(state.base_peaks) if self._known else []
        self._size = state.base_seq
        self._by_size: dict[int, list[tuple[str, AuditHead]]] = {}
        self.found: chain.Break | None = None
        for origin, head in heads.items():
            if 0 < head.size < state.base_seq and not origin.startswith(_OWN):
                text = (
                    f"{origin}: its head of {head.size} lines is older than the oldest kept line, {state.base_seq + 1}"
                )
                self._note(head.size, text)
            if not verifies(head.key, head.signature, HEAD_LINE + head.text()):
                self._note(head.size, f"{origin}: the signature of the head of {head.size} lines is not by its key")
            self._by_size.setdefault(head.size, []).append((origin, head))
        if len(keys := {head.key for head in heads.values()}) > 1:
            self._note(1, f"heads are signed by {len(keys)} different keys; the log has one")
        self._compare(state.base_digest)

    def passing(self, documents: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield `documents`, and compare each head with the lines up to its size."""
        for entry in documents:
            if self._known:
                merkle.grow(self._peaks, self._size, chain.leaf(entry))
            self._size += 1
            self._compare(str(entry.get("hash")))
            yield entry

    def end(self, last: int) -> None:
        """Take the end of the log, whose last line is `last`."""
        for size in sorted(size for size in self._by_size if size > last):
            origin, _ = self._by_size[size][0]
            self._note(last + 1, f"{origin}: {size} lines were signed, but the log ends at line {last}")

    def _compare(self, digest: str) -> None:
        for origin, head in self._by_size.get(self._size, ()):
            if self._size and head.chain != digest:
                self._note(self._size, f"{origin}: the first {self._size} lines are not those signed at {head.time}")
            elif self._known and head.root != merkle.root(self._peaks).hex():
                self._note(self._size, f"{origin}: the root of the first {self._size} lines is not the signed one")

    def _note(self, seq: int, reason: str) -> None:
        self.found = self.found or chain.Break(seq, reason)


def verify(witnessed: Mapping[str, AuditHead] | None = None) -> Verdict:
    """Check the log. `witnessed` are the heads that nodes hold, by a name for each."""
    rows = Checkpoint.objects.order_by("size")
    heads = {f"{_OWN} of {row.size} lines": checkpoints.head_of(row) for row in rows.iterator(1000)}
    count = len(heads)
    # Read after the heads: none of them is newer.
    state = ChainState.objects.first() or ChainState(head_digest=chain.GENESIS, base_digest=chain.GENESIS)
    comparing = _Heads(state, heads | dict(witnessed or {}))
    # Only lines sealed before the check: the chain may grow while it is read.
    lines = AuditLine.objects.filter(seq__isnull=False, seq__lte=state.head_seq).order_by("seq")
    documents = comparing.passing(document(line) for line in lines.iterator(1000))
    broken, seq, digest = chain.first_break(documents, state.base_seq, state.base_digest)
    if broken is None and (seq, digest) != (state.head_seq, state.head_digest):
        broken = chain.Break(seq + 1, f"the chain ends at line {seq}, but {state.head_seq} lines were sealed")
    if broken is None:
        comparing.end(state.head_seq)
    return Verdict(
        lines=seq - state.base_seq,
        unsealed=AuditLine.objects.filter(seq__isnull=True).count(),
        checkpoints=count,
        in_database=broken,
        in_files=_break_in_files(AuditJournal(settings().data / "audit"), state),
        in_heads=comparing.found or _false_witness(),
    )


def _false_witness() -> chain.Break | None:
    for row in Checkpoint.objects.order_by("size").iterator(1000):
        text = WITNESS_LINE + checkpoints.head_of(row).text()
        for node_id, word in row.witnesses.items():
            if not verifies(str(word.get("key")), str(word.get("signature")), text):
                return chain.Break(row.size, f"the signature of node {node_id} over {row.size} lines is not by its key")
    return None


def _break_in_files(journal: AuditJournal, state: ChainState) -> chain.Break | None:
    previous: tuple[int, str] | None = None
    seen = state.base_seq
    known: dict[int, str] = {}
    try:
        for entry in journal.documents():
            seq, digest = entry.get("seq"), entry.get("hash")
            if not isinstance(seq, int) or not isinstance(digest, str):
                return chain.Break(seen + 1, "a line of the files is not in the chain")
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
