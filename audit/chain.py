"""The hash chain over audit lines. Pure: documents in, digests out.

A document is what a line of the JSONL file holds: ``{seq, time, actor, action, nodeId, modelId, operationId, target,
result, errorCode, detail, hash}``. ``hash`` is SHA-256 over the hash before it, a newline, and the rest of the document
as JSON with sorted names: so a line cannot be changed, taken out or put in without changing every hash after it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GENESIS = "0" * 64
"""What stands before the first line."""


@dataclass(frozen=True, slots=True)
class Break:
    """Where a chain does not hold: the sequence number, and what is wrong in words."""

    seq: int
    reason: str


def link(previous: str, document: Mapping[str, Any]) -> str:
    """The hash of `document` (its own ``hash`` is left out) after the line whose hash is `previous`."""
    body = {name: value for name, value in document.items() if name != "hash"}
    text = json.dumps(body, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def first_break(
    documents: Iterable[Mapping[str, Any]], after_seq: int, after_hash: str
) -> tuple[Break | None, int, str]:
    """Follow `documents` from the link (`after_seq`, `after_hash`). Returns the first break, and the last good link."""
    seq, digest = after_seq, after_hash
    for document in documents:
        if document.get("seq") != seq + 1:
            return Break(seq + 1, f"line {seq + 1} is missing; the next one is {document.get('seq')}"), seq, digest
        if document.get("hash") != link(digest, document):
            return Break(seq + 1, f"line {seq + 1} was changed, or a line before it"), seq, digest
        seq, digest = seq + 1, str(document["hash"])
    return None, seq, digest
