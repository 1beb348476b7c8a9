"""Checkpoints: heads of the log, signed by a key of its own and counter-signed by the nodes that witness them.

A head is the root of a Merkle tree (RFC 9162) over all lines, deleted ones included, so that a later head can be proved
to continue an earlier one, and one line to be under a head, without showing the others.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.db import transaction

from agent.common import merkle
from agent.wire.witness import HEAD_LINE, AuditHead, WitnessView
from audit import chain
from audit.models import AuditLine, ChainState, Checkpoint, LogKey
from audit.queries import document
from mirbad.kernel import clock, seal
from mirbad.kernel.errors import NotFound

_PURPOSE = "audit-log-key"
_NO_SIGNATURE = "0" * 128


def state() -> ChainState:
    """Return the one row about the chain; it exists then."""
    found, _ = ChainState.objects.get_or_create(
        singleton=True, defaults={"head_digest": chain.GENESIS, "base_digest": chain.GENESIS}
    )
    return found


def peaks_of(texts: Sequence[str]) -> list[bytes]:
    """Return stored peaks as bytes."""
    return [bytes.fromhex(text) for text in texts]


def stored(peaks: Iterable[bytes]) -> list[str]:
    """Return peaks as they are stored."""
    return [peak.hex() for peak in peaks]


def head_peaks(row: ChainState) -> list[bytes]:
    """Return the peaks of the tree at the head; those of a log from before there was a tree are made from its lines.

    Lines that were deleted before count as empty.
    """
    if row.head_peaks or not row.head_seq:
        return peaks_of(row.head_peaks)
    peaks: list[bytes] = []
    for size in range(row.base_seq):
        merkle.grow(peaks, size, merkle.leaf(b""))
    row.base_peaks = stored(peaks)
    lines = AuditLine.objects.filter(seq__gt=row.base_seq, seq__lte=row.head_seq).order_by("seq")
    for size, line in enumerate(lines.iterator(1000), row.base_seq):
        merkle.grow(peaks, size, chain.leaf(document(line)))
    return peaks


def has_tree(row: ChainState) -> bool:
    """Return whether the tree of the lines up to the oldest kept one is known."""
    return bool(row.base_peaks) or not row.base_seq


def sign_once() -> Checkpoint | None:
    """Sign the present head, unless it is signed; return the newest checkpoint, None without any line."""
    newest = latest()
    if not AuditLine.objects.filter(seq__gt=newest.size if newest else 0).exists():
        return newest
    with transaction.atomic():
        state()
        row = ChainState.objects.select_for_update().get()
        peaks, now = head_peaks(row), clock.now()
        row.head_peaks = stored(peaks)
        row.save(update_fields=["head_peaks", "base_peaks"])
        head = _signed(row.head_seq, peaks, row.head_digest, now.strftime("%Y-%m-%dT%H:%M:%SZ"))
        made, _ = Checkpoint.objects.get_or_create(
            size=row.head_seq, defaults={"head": head.to_wire(), "peaks": stored(peaks), "created_at": now}
        )
    return made


def latest() -> Checkpoint | None:
    """Return the newest checkpoint."""
    return Checkpoint.objects.order_by("-size").first()


def head_of(checkpoint: Checkpoint) -> AuditHead:
    """Return the head of a checkpoint."""
    return AuditHead.model_validate(checkpoint.head)


def consistency(size: int, checkpoint: Checkpoint) -> list[str] | None:
    """Return the proof that `checkpoint` continues the first `size` lines; None when lines for it are gone."""
    if not 0 < size < checkpoint.size:
        return []
    try:
        return stored(_tree(size, checkpoint).consistency(size))
    except LookupError:
        return None


def inclusion(seq: int) -> dict[str, Any]:
    """Return a line, a signed head, and the proof that the line is under it. Raises NotFound."""
    line = AuditLine.objects.filter(seq=seq).first()
    checkpoint = Checkpoint.objects.filter(size__gte=seq).order_by("size").first()
    if line is None or checkpoint is None:
        raise NotFound(f"Line {seq} is not under a checkpoint. New lines are within five minutes.")
    return {"line": document(line), "proof": list(proof_under(line, checkpoint)), **exported(checkpoint)}


def proof_under(line: AuditLine, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the proof that a sealed line is under `checkpoint`, which is not older. Raises NotFound."""
    number = (line.seq or 0) - 1
    try:
        return tuple(stored(_tree(number, checkpoint).inclusion(number)))
    except LookupError:
        raise NotFound(f"Line {line.seq} cannot be proved: lines before it are gone.") from None


def exported(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint for export: the head with its witnesses, and the tree of the lines that were deleted."""
    row = state()
    return {
        "head": checkpoint.head,
        "witnesses": checkpoint.witnesses,
        "base": {"seq": row.base_seq, "hash": row.base_digest, "peaks": row.base_peaks},
    }


def note_witness(checkpoint: Checkpoint, node_id: str, view: WitnessView) -> None:
    """Record the signature of a node over `checkpoint`."""
    with transaction.atomic():
        row = Checkpoint.objects.select_for_update().get(pk=checkpoint.pk)
        row.witnesses[node_id] = {"key": view.key, "signature": view.signature, "time": clock.now().isoformat()}
        row.save(update_fields=["witnesses"])


def signing_key() -> bytes:
    """Return the private key that signs heads, for a backup below its seal. LookupError when nothing was signed yet."""
    row = LogKey.objects.first()
    if row is None:
        raise LookupError("the log has no key yet")
    return seal.unseal(bytes(row.key_sealed), _PURPOSE)


def continue_log(seq: int, digest: str, peaks: Sequence[str], key: bytes) -> bool:
    """Begin this log, which has no line yet, behind line `seq` of another one, with its key. False when it has lines.

    For a master that is made from a backup, in the caller's transaction.
    """
    row = state()
    if row.head_seq or LogKey.objects.exists():
        return False
    row.head_seq = row.base_seq = row.written_seq = seq
    row.head_digest = row.base_digest = digest
    row.head_peaks = row.base_peaks = list(peaks)
    row.save()
    public = Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw().hex()
    LogKey.objects.create(public=public, key_sealed=seal.seal(key, _PURPOSE))
    return True


def _tree(size: int, checkpoint: Checkpoint) -> merkle.Tree:
    """Return the tree of `checkpoint`, with leaves from the last known peaks at or before `size` entries on."""
    row = state()
    if not has_tree(row):
        raise LookupError("the tree of the lines that were deleted is not known")
    earlier = Checkpoint.objects.filter(size__lte=size).order_by("-size").first()
    start, peaks = row.base_seq, peaks_of(row.base_peaks)
    if earlier is not None and earlier.size > start:
        start, peaks = earlier.size, peaks_of(earlier.peaks)
    lines = AuditLine.objects.filter(seq__gt=start, seq__lte=checkpoint.size).order_by("seq")
    leaves = [chain.leaf(document(line)) for line in lines.iterator(1000)]
    if len(leaves) != checkpoint.size - start:
        raise LookupError("lines are missing")
    return merkle.Tree(start, peaks, leaves)


def _signed(size: int, peaks: Sequence[bytes], digest: str, time: str) -> AuditHead:
    key = _key()
    head = AuditHead(
        size=size, root=merkle.root(peaks).hex(), chain=digest, time=time,
        key=key.public_key().public_bytes_raw().hex(), signature=_NO_SIGNATURE,
    )  # fmt: skip
    return head.model_copy(update={"signature": key.sign((HEAD_LINE + head.text()).encode()).hex()})


def _key() -> Ed25519PrivateKey:
    row = LogKey.objects.first()
    if row is None:
        fresh = Ed25519PrivateKey.generate()
        values = {
            "public": fresh.public_key().public_bytes_raw().hex(),
            "key_sealed": seal.seal(fresh.private_bytes_raw(), _PURPOSE),
        }
        row, _ = LogKey.objects.get_or_create(singleton=True, defaults=values)
    return Ed25519PrivateKey.from_private_bytes(seal.unseal(bytes(row.key_sealed), _PURPOSE))
