"""Merkle trees of RFC 9162: roots, proofs that one entry is in a tree, proofs that one tree continues another.

A tree that only grows is kept as its *peaks*: the hashes of its complete subtrees, largest first, one for each bit of
its size. Pure, and the same for the master, which proves, and the agents, which check.
"""

import hashlib
from collections.abc import Iterable, Sequence

EMPTY = hashlib.sha256(b"").digest()
"""The root of a tree without entries."""


def leaf(data: bytes) -> bytes:
    """Return the hash of one entry."""
    return hashlib.sha256(b"\x00" + data).digest()


def join(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node over two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def grow(peaks: list[bytes], size: int, entry: bytes) -> None:
    """Add the leaf hash `entry` to `peaks`, those of a tree of `size` entries."""
    peaks.append(entry)
    while size & 1:
        right = peaks.pop()
        peaks.append(join(peaks.pop(), right))
        size >>= 1


def root(peaks: Sequence[bytes]) -> bytes:
    """Return the root of the tree with these peaks."""
    if not peaks:
        return EMPTY
    found = peaks[-1]
    for peak in reversed(peaks[:-1]):
        found = join(peak, found)
    return found


class Tree:
    """A tree of which the first entries are known by their peaks alone; it proves the entries after them."""

    def __init__(self, size: int, peaks: Sequence[bytes], leaves: Iterable[bytes]) -> None:
        self._leaves = list(leaves)
        self._start = size
        self.size = size + len(self._leaves)
        self._known: dict[tuple[int, int], bytes] = {}
        begin = 0
        for peak, width in zip(peaks, _widths(size), strict=True):
            self._known[begin, begin + width] = peak
            begin += width

    def inclusion(self, index: int) -> list[bytes]:
        """Return the proof that the entry `index` (from 0) is in the tree. LookupError before the first known entry."""
        path, low, high = [], 0, self.size
        while high - low > 1:
            middle = low + _split(high - low)
            if index < middle:
                path.append(self._hash(middle, high))
                high = middle
            else:
                path.append(self._hash(low, middle))
                low = middle
        return path[::-1]

    def consistency(self, size: int) -> list[bytes]:
        """Return the proof that this tree continues its own first `size` entries. LookupError for a size too small."""
        path, low, high, whole = [], 0, self.size, True
        while high > size:
            middle = low + _split(high - low)
            if size <= middle:
                path.append(self._hash(middle, high))
                high = middle
            else:
                path.append(self._hash(low, middle))
                low, whole = middle, False
        if not whole:
            path.append(self._hash(low, high))
        return path[::-1]

    def _hash(self, low: int, high: int) -> bytes:
        if (found := self._known.get((low, high))) is not None:
            return found
        if high - low == 1:
            if low < self._start:
                raise LookupError(f"entry {low} is known by its peak alone")
            return self._leaves[low - self._start]
        middle = low + _split(high - low)
        found = self._known[low, high] = join(self._hash(low, middle), self._hash(middle, high))
        return found


def includes(index: int, size: int, entry: bytes, proof: Sequence[bytes], expected: bytes) -> bool:
    """Return whether `proof` shows that the leaf hash `entry` is number `index` (from 0) of the tree with a root."""
    if not 0 <= index < size:
        return False
    number, last, found = index, size - 1, entry
    for step in proof:
        if last == 0:
            return False
        if number & 1 or number == last:
            found = join(step, found)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            found = join(found, step)
        number, last = number >> 1, last >> 1
    return last == 0 and found == expected


def continues(old_size: int, old_root: bytes, new_size: int, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Return whether `proof` shows that the new tree begins with all entries of the old one."""
    if not 0 <= old_size <= new_size:
        return False
    if old_size in {0, new_size}:
        return not proof and (old_root == (EMPTY if old_size == 0 else new_root))
    steps = list(proof)
    if old_size & (old_size - 1) == 0:
        steps.insert(0, old_root)
    if not steps:
        return False
    number, last = old_size - 1, new_size - 1
    while number & 1:
        number, last = number >> 1, last >> 1
    old = new = steps[0]
    for step in steps[1:]:
        if last == 0:
            return False
        if number & 1 or number == last:
            old, new = join(step, old), join(step, new)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            new = join(new, step)
        number, last = number >> 1, last >> 1
    return last == 0 and old == old_root and new == new_root


def _split(width: int) -> int:
    """Return the largest power of two below `width`."""
    return 1 << ((width - 1).bit_length() - 1)


def _widths(size: int) -> list[int]:
    return [1 << bit for bit in reversed(range(size.bit_length())) if size >> bit & 1]
