"""The hash chain over audit lines. Pure: from documents to digests.

A document is one line of the JSONL file: ``{seq, time, actor, action, nodeId, modelId, operationId, target, result,
errorCode, detail, hash}``. ``hash`` is SHA-256 over the previous hash, a newline, and the rest of the document as JSON
with sorted names: so no line can be changed, removed or inserted without changing every hash after it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.common import merkle

_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode
GENESIS = "0" * 64
"""The hash before the first line."""


@dataclass(frozen=True, slots=True)
class Break:
    """The first invalid line of a chain: its sequence number, and the reason."""

    seq: int
    reason: str


def link(previous: str, document: Mapping[str, Any]) -> str:
    """Return the hash of `document` (without its own ``hash``) after the line whose hash is `previous`."""
    return link_text(previous, canonical(document))


def canonical(document: Mapping[str, Any]) -> str:
    """Return the text of `document` that is hashed: without its ``hash``, with sorted names."""
    body = {name: value for name, value in document.items() if name != "hash"}
    return _encode(body)


def link_text(previous: str, text: str) -> str:
    """Return the hash of a document, given as its `canonical` text, after the line whose hash is `previous`."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def leaf(document: Mapping[str, Any]) -> bytes:
    """Return the document as a leaf of the log's Merkle tree."""
    return merkle.leaf(canonical(document).encode())


def first_break(
    documents: Iterable[Mapping[str, Any]], after_seq: int, after_hash: str
) -> tuple[Break | None, int, str]:
    """Follow `documents` from the link (`after_seq`, `after_hash`). Return the first break, and the last valid link."""
    seq, digest = after_seq, after_hash
    for document in documents:
        if document.get("seq") != seq + 1:
            return Break(seq + 1, f"line {seq + 1} is missing; the next one is {document.get('seq')}"), seq, digest
        if document.get("hash") != link(digest, document):
            return Break(seq + 1, f"line {seq + 1} was changed, or a line before it"), seq, digest
        seq, digest = seq + 1, str(document["hash"])
    return None, seq, digest
