"""Headers of safetensors files, in bounded memory: a truncated or foreign file raises an error with a sentence.

Run as a program (``python safetensors.py sums FILE``, ``… index FILE``) it prints the result as JSON: a long header is
read outside of the process that serves. So nothing of this project is imported here.
"""

import io
import json
import re
import struct
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

MOST_HEADER = 100_000_000
"""The limit of the format."""

INDEX_LIMIT = 32 * 1024 * 1024
_LENGTH = struct.Struct("<Q")
_EXPERTS = ".experts."
_READ = 1024 * 1024
_WINDOW = _READ // 2
_MOST_ENTRY = 1024 * 1024
_MOST_TYPES = 64
_CHILD_MEMORY = 1024 * 1024 * 1024
_ENTRY = re.compile(
    rb'\s*"([^"\\]{0,65536})"\s*:\s*\{\s*"dtype"\s*:\s*"([^"\\]{1,64})"\s*,\s*"shape"\s*:\s*\[[\d,\s]*\]\s*,'
    rb'\s*"data_offsets"\s*:\s*\[\s*(\d{1,19})\s*,\s*(\d{1,19})\s*\]\s*\}\s*([,}])'
)
"""A tensor as every writer writes it; others are read by the rules of JSON."""

_BLANK = b" \t\r\n"
_IN_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_OUTSIDE = re.compile(rb'["{}\[\],]')


class BadSafetensors(Exception):
    """The file is not a readable safetensors file; the text is a sentence."""


@dataclass
class SafetensorsHeader:
    """Bytes of the tensors: all, those of experts, and by type."""

    tensors: int = 0
    tensor_bytes: int = 0
    expert_bytes: int = 0
    by_type: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, kind: str, begin: int, end: int) -> None:
        """Count one tensor. Raises BadSafetensors."""
        if not 0 <= begin <= end < 2**62:
            raise _bad_tensor()
        held = end - begin
        self.tensors += 1
        self.tensor_bytes += held
        self.by_type[kind] = self.by_type.get(kind, 0) + held
        self.expert_bytes += held if _EXPERTS in name else 0
        if len(self.by_type) > _MOST_TYPES:
            raise BadSafetensors("The header of the file has more types than any may have.")


def header_length(begin: bytes) -> int:
    """Return the length of the JSON after the first eight bytes. Raises BadSafetensors."""
    if len(begin) < _LENGTH.size:
        raise BadSafetensors("The file is cut short in its header.")
    length = int(_LENGTH.unpack(begin[: _LENGTH.size])[0])
    if not 2 <= length <= MOST_HEADER:
        raise BadSafetensors("The file does not begin as a safetensors file does.")
    return length


def parse(file: BinaryIO) -> SafetensorsHeader:
    """Return the sums over the header at the start of `file`. Raises BadSafetensors."""
    return _HeaderReader(file, header_length(file.read(_LENGTH.size))).sums()


def summed(data: bytes) -> SafetensorsHeader:
    """Return the sums over a header's JSON. Raises BadSafetensors."""
    return _HeaderReader(io.BytesIO(data), len(data)).sums()


@dataclass
class _HeaderReader:
    """The JSON of a header, one entry at a time. `buffer` is a part of it, and `at` the next byte."""

    file: BinaryIO
    left: int
    buffer: bytes = b""
    at: int = 0

    def sums(self) -> SafetensorsHeader:
        header = SafetensorsHeader()
        if self.byte() != b"{":
            raise self.not_json("is not a JSON object" if self.peek_is_json() else "is not JSON")
        self.at += 1
        if self.byte() == b"}":
            self.at += 1
            return self.ended(header)
        while True:
            self.fill(_WINDOW)
            if (self.usual_entries(header) or self.other_entry(header)) == b"}":
                return self.ended(header)

    def usual_entries(self, header: SafetensorsHeader) -> bytes:
        """Read entries of the usual form, as far as the buffer goes; return the byte after the last."""
        buffer, at, after = self.buffer, self.at, b""
        last = len(buffer) - _WINDOW if self.left else len(buffer)
        while after != b"}" and at <= last and (found := _ENTRY.match(buffer, at)) is not None:
            name, kind, begin, end, after = found.groups()
            header.add(_text(name), _text(kind), int(begin), int(end))
            at = found.end()
        self.at = at
        return after

    def other_entry(self, header: SafetensorsHeader) -> bytes:
        """Read an entry by the rules of JSON; return the byte after it."""
        name = self.value(_json)
        if not isinstance(name, str) or self.byte() != b":":
            raise self.not_json()
        self.at += 1
        if name == "__metadata__":
            self.value(None)
        else:
            kind, begin, end = _tensor(self.value(_json))
            header.add(name, kind, begin, end)
        after = self.byte()
        if after not in (b",", b"}"):
            raise self.not_json()
        self.at += 1
        return after

    def value(self, read: Any) -> Any:
        """Return the next value as `read` makes it of its bytes; with None it is passed over, however long."""
        self.byte()
        kept, depth, in_text = [], 0, False
        size, start = 0, self.at
        while True:
            if in_text:
                text = _IN_TEXT.match(self.buffer, self.at)
                self.at = text.end() if text else self.at
            else:
                found = _OUTSIDE.search(self.buffer, self.at)
                self.at = found.start() if found else len(self.buffer)
            byte = self.buffer[self.at : self.at + 1]
            if not in_text and depth == 0 and byte in (b"}", b"]", b","):
                # The end of a number or word.
                break
            if byte:
                # A backslash is the last byte of the buffer here; what it escapes is in the next.
                self.at += 2 if byte == b"\\" else 1
                in_text, depth = _state(in_text, depth, byte)
                if not in_text and depth == 0:
                    break
            if self.at >= len(self.buffer):
                size += len(self.buffer) - start
                if read is not None:
                    kept.append(self.buffer[start:])
                    if size > _MOST_ENTRY:
                        raise BadSafetensors("The header of the file holds a tensor that cannot be read.")
                self.refill(self.at - len(self.buffer))
                start = 0
        return read(b"".join((*kept, self.buffer[start : self.at]))) if read is not None else None

    def byte(self) -> bytes:
        """Return the next byte that is no blank, without taking it; nothing at the end."""
        while True:
            while self.at < len(self.buffer):
                if self.buffer[self.at] not in _BLANK:
                    return self.buffer[self.at : self.at + 1]
                self.at += 1
            if not self.left:
                return b""
            self.refill(0)

    def fill(self, count: int) -> None:
        """Have `count` bytes in the buffer, or all that are left."""
        if len(self.buffer) - self.at < count and self.left:
            rest = self.buffer[self.at :]
            self.at = 0
            self.buffer = rest + self.take()

    def refill(self, at: int) -> None:
        """Drop the buffer, which was used up, for the next part, to go on at `at` of it."""
        if not self.left:
            raise self.not_json()
        self.buffer, self.at = self.take(), at

    def take(self) -> bytes:
        data = self.file.read(min(_READ, self.left))
        if not data:
            raise BadSafetensors("The file is cut short in its header.")
        self.left -= len(data)
        return data

    def ended(self, header: SafetensorsHeader) -> SafetensorsHeader:
        """Return `header` when nothing but blanks follows it."""
        if self.byte():
            raise self.not_json()
        return header

    def peek_is_json(self) -> bool:
        """Return whether a short header is JSON, of whatever kind."""
        self.fill(_READ)
        if self.left:
            return False
        try:
            json.loads(self.buffer)
        except (ValueError, RecursionError):
            return False
        return True

    @staticmethod
    def not_json(why: str = "is not JSON") -> BadSafetensors:
        return BadSafetensors(f"The header of the file {why}.")


def _state(in_text: bool, depth: int, byte: bytes) -> tuple[bool, int]:
    """Return whether text goes on after `byte`, and how many brackets are open."""
    if in_text:
        return byte != b'"', depth
    if byte == b'"':
        return True, depth
    return False, depth + (1 if byte in b"{[" else -1 if byte in b"}]" else 0)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _HeaderReader.not_json() from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise _HeaderReader.not_json() from None


def _bad_tensor() -> BadSafetensors:
    return BadSafetensors("The header of the file holds a tensor that cannot be read.")


def _tensor(entry: Any) -> tuple[str, int, int]:
    """Return the type of a tensor, and where its bytes begin and end."""
    if isinstance(entry, dict) and isinstance(kind := entry.get("dtype"), str):
        offsets: Any = entry.get("data_offsets")
        if isinstance(offsets, list) and len(offsets) == 2 and all(type(number) is int for number in offsets):
            return kind, offsets[0], offsets[1]
    raise _bad_tensor()


def indexed_files(data: bytes) -> tuple[str, ...]:
    """Return the files that an index of safetensors names. ValueError for another document."""
    try:
        found: Any = json.loads(data)
        names = set(found["weight_map"].values())
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError("no index of weights") from error
    if not all(isinstance(name, str) for name in names):
        raise ValueError("no index of weights")
    return tuple(sorted(names))


def main(verb: str, path: str) -> None:
    """Print the sums of a header, or the files of an index, as JSON."""
    import os
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_CHILD_MEMORY, _CHILD_MEMORY))
    with suppress(OSError):
        os.nice(10)  # requests of people and engines go before it
    found: Any
    try:
        with Path(path).open("rb") as file:
            found = asdict(parse(file)) if verb == "sums" else indexed_files(file.read(INDEX_LIMIT))
    except BadSafetensors as error:
        found = {"problem": str(error)}
    except OSError as error:
        found = {"errno": error.errno}
    except ValueError:
        found = {"problem": ""}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
