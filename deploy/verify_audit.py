#!/usr/bin/env python3
"""Check an audit log of Mirbad without Mirbad: its JSONL files against a signed head and the heads that nodes hold.

    verify_audit.py FOLDER --checkpoint FILE [--witness FILE ...] [--log-key HEX] [--node-key HEX ...] [--left HEX ...]
    verify_audit.py --proof FILE [--log-key HEX] [--node-key HEX ...]

FOLDER has the files ``{yyyy-MM}.jsonl``. The checkpoint is from the audit page or ``GET /api/audit/checkpoint``, the
proof of one line from ``GET /api/audit/proof?seq=N``, a witness is ``witness.json`` in the state folder of an agent.
Without the keys that you wrote down earlier, a log that was signed with another key is found by nodes alone. If a node
took another log on a person's decision, give the root that it left with ``--left`` once you know why. Exit code 0:
nothing found; 1: changed; 2: cannot be read. Needs ``cryptography``.
"""

import argparse
import functools
import hashlib
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

HEAD_LINE, WITNESS_LINE = "mirbad audit head v1\n", "mirbad audit witness v1\n"


class Changed(Exception):
    """The log is not the one that was signed."""


def canonical(line: dict[str, Any]) -> bytes:
    """Return the text that is hashed."""
    body = {name: value for name, value in line.items() if name != "hash"}
    return json.dumps(body, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()


def leaf(line: dict[str, Any]) -> bytes:
    """Return the line as a leaf of the Merkle tree (RFC 9162)."""
    return hashlib.sha256(b"\x00" + canonical(line)).digest()


def join(left: bytes, right: bytes) -> bytes:
    """Return the hash over two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def grow(peaks: list[bytes], size: int, entry: bytes) -> None:
    """Add a leaf to the complete subtrees of a tree of `size` leaves."""
    peaks.append(entry)
    while size & 1:
        right = peaks.pop()
        peaks.append(join(peaks.pop(), right))
        size >>= 1


def root(peaks: list[bytes]) -> str:
    """Return the root over complete subtrees."""
    found = peaks[-1] if peaks else hashlib.sha256(b"").digest()
    return functools.reduce(lambda right, peak: join(peak, right), reversed(peaks[:-1]), found).hex()


def signed(head: dict[str, Any], key: str, signature: str, first_line: str, who: str) -> None:
    """Check a signature. Raises Changed."""
    values = {name: head[name] for name in ("size", "root", "chain", "time", "key")}
    text = first_line + json.dumps(values, sort_keys=True, separators=(",", ":"))
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), text.encode())
    except (InvalidSignature, ValueError):
        raise Changed(f"the signature of {who} over the head of {head['size']} lines is wrong") from None


def check_head(checkpoint: dict[str, Any], log_key: str, node_keys: Iterable[str]) -> int:
    """Return the number of witnesses; with `node_keys`, of those among them."""
    head, known = checkpoint["head"], set(node_keys)
    signed(head, head["key"], head["signature"], HEAD_LINE, "the log")
    if log_key and head["key"] != log_key:
        raise Changed(f"the head is signed by {head['key']}, not by the key of the log")
    witnesses = checkpoint.get("witnesses", {})
    for node, word in witnesses.items():
        signed(head, word["key"], word["signature"], WITNESS_LINE, f"node {node}")
    counted = {word["key"] for word in witnesses.values()}
    if known and not known & counted:
        raise Changed("none of the known nodes has witnessed the head")
    return len(known & counted if known else counted)


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of all files in their order."""
    named = [(re.fullmatch(r"(\d{4}-\d{2})(?:\.(\d{1,9}))?\.jsonl", path.name), path) for path in folder.iterdir()]
    files = sorted((match[1], int(match[2] or 0), path) for match, path in named if match)
    return [json.loads(text) for _, _, path in files for text in path.read_text("utf-8").splitlines() if text]


def verify(
    lines: list[dict[str, Any]],
    checkpoint: dict[str, Any],
    witnesses: Iterable[dict[str, Any]] = (),
    log_key: str = "",
    node_keys: Iterable[str] = (),
    left: Iterable[str] = (),
) -> str:
    """Return a sentence about the verified log. Raises Changed."""
    count, left = check_head(checkpoint, log_key, node_keys), set(left)
    heads: dict[int, list[tuple[str, dict[str, Any]]]] = {}
    for number, view in enumerate([{"held": checkpoint["head"]}, *witnesses]):
        who = f"witness {number}" if number else "the checkpoint"
        if refused := view.get("refused"):
            raise Changed(f"{who} refused a log of {refused['size']} lines: it does not continue what it saw before")
        for was, why in ((one["was"], one["line"]) for one in view.get("breaks", ()) if one["was"]["root"] not in left):
            raise Changed(f"{who} left a log of {was['size']} lines, root {was['root']}, as decided in {why}")
        if head := view.get("held"):
            signed(head, head["key"], head["signature"], HEAD_LINE, who)
            if head["key"] != checkpoint["head"]["key"]:
                raise Changed(f"{who} holds a head that is signed by another key")
            heads.setdefault(head["size"], []).append((who, head))
    base = checkpoint.get("base") or {"seq": 0, "hash": "0" * 64, "peaks": []}
    lines = [line for line in lines if line.get("seq", 0) > base["seq"]]
    peaks, digest, seq = [bytes.fromhex(peak) for peak in base["peaks"]], base["hash"], base["seq"]
    if len(peaks) != seq.bit_count():
        raise Changed(f"the checkpoint does not have the tree of the {seq} lines that were deleted")
    if old := [size for size in heads if 0 < size < seq]:
        raise Changed(f"a head of {min(old)} lines is older than the oldest kept line, {seq + 1}")
    compare(heads.pop(seq, ()), digest, peaks)
    for line in lines:
        if line.get("seq") != seq + 1:
            raise Changed(f"line {seq + 1} is missing; the next one is {line.get('seq')}")
        digest_now = hashlib.sha256(digest.encode() + b"\n" + canonical(line)).hexdigest()
        if line.get("hash") != digest_now:
            raise Changed(f"line {seq + 1} was changed, or a line before it")
        grow(peaks, seq, leaf(line))
        seq, digest = seq + 1, digest_now
        compare(heads.pop(seq, ()), digest, peaks)
    if heads:
        who, head = heads[min(heads)][0]
        raise Changed(f"{who} has seen {head['size']} lines, but the files end at line {seq}")
    words = f"{len(lines)} lines, unbroken; signed and witnessed by {count} nodes"
    return f"{words}, but for the newest {seq - checkpoint['head']['size']}."


def compare(heads: Iterable[tuple[str, dict[str, Any]]], digest: str, peaks: list[bytes]) -> None:
    """Compare the lines so far with heads of their number. Raises Changed."""
    for who, head in heads:
        if head["root"] != root(peaks) or (head["size"] and head["chain"] != digest):
            raise Changed(f"the first {head['size']} lines are not those that {who} saw at {head['time']}")


def verify_line(exported: dict[str, Any], log_key: str = "", node_keys: Iterable[str] = ()) -> str:
    """Check that one line is under a signed head. Raises Changed."""
    count, line, head = check_head(exported, log_key, node_keys), exported["line"], exported["head"]
    number, last, found = line["seq"] - 1, head["size"] - 1, leaf(line)
    for step in map(bytes.fromhex, exported["proof"]):
        if last <= 0:
            raise Changed("the proof is too long")
        if number & 1 or number == last:
            found = join(step, found)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            found = join(found, step)
        number, last = number >> 1, last >> 1
    of = f"the head of {head['size']} lines from {head['time']}"
    if last != 0 or found.hex() != head["root"]:
        raise Changed(f"line {line['seq']} is not under {of}")
    return f"Line {line['seq']} is under {of}, witnessed by {count} nodes."


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--proof", type=Path)
    parser.add_argument("--witness", type=Path, action="append", default=[])
    parser.add_argument("--log-key", default="")
    parser.add_argument("--node-key", action="append", default=[])
    parser.add_argument("--left", action="append", default=[])
    given = parser.parse_args()
    if not given.proof and not (given.folder and given.checkpoint):
        parser.error("give FOLDER with --checkpoint, or --proof")
    try:
        if given.proof:
            print(verify_line(json.loads(given.proof.read_text()), given.log_key, given.node_key))
        else:
            checkpoint, *views = (json.loads(path.read_text()) for path in (given.checkpoint, *given.witness))
            print(verify(read_lines(given.folder), checkpoint, views, given.log_key, given.node_key, given.left))
    except Changed as found:
        print(f"CHANGED: {found}", file=sys.stderr)
        return 1
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"cannot be read: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
