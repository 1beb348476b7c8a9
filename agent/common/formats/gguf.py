"""Headers of GGUF files. Pure and bounded: a truncated or foreign file raises an error with a sentence."""

import math
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO

_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_KEYS, _MOST_TEXT, _MOST_ITEMS, _MOST_HEADER = 4096, 1 << 20, 1 << 22, 1 << 28
_MOST_TENSORS, _MOST_DIMENSIONS = 1 << 18, 8
_KEPT_ITEMS = 1024
"""Numbers of a list that are kept: enough for one per layer, while a vocabulary is only counted."""

# Elements and bytes of a block, by the number of the type.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66),
    17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54),
    35: (256, 66), 39: (32, 17), 40: (64, 36),
}  # fmt: skip
_EXPERTS = ("_exps.", "_exps_")
_INPUT_TABLE = "token_embd.weight"

GgufValue = bool | int | float | str | tuple[int | float, ...]
"""A value of a GGUF header: plain, or a short list of numbers."""


class BadGguf(Exception):
    """The file is not a readable GGUF file; the text is a sentence."""


class CutShort(BadGguf):
    """The data ends inside the header."""


@dataclass
class GgufHeader:
    """Keys with their plain values and short lists of numbers; lengths of lists; bytes of the tensors.

    `tensor_bytes` is None when a tensor has an unknown type, or when the header was not read that far.
    """

    values: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    tensors: int = 0
    tensor_bytes: int | None = None
    expert_bytes: int | None = None
    input_table_bytes: int | None = None


@dataclass
class _Reader:
    file: BinaryIO
    order: str = "<"
    read: int = 0

    def take(self, count: int) -> bytes:
        self.read += count
        if self.read > _MOST_HEADER:
            raise BadGguf("The header is larger than that of any model.")
        data = self.file.read(count)
        if len(data) != count:
            raise CutShort("The file is cut short in its header.")
        return data

    def number(self, kind: str) -> Any:
        form = f"{self.order}{kind}"
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def numbers(self, kind: str, count: int) -> tuple[Any, ...]:
        form = f"{self.order}{count}{kind}"
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def text(self) -> str:
        length = self.number("Q")
        if length > _MOST_TEXT:
            raise BadGguf("A text in the header is longer than any may be.")
        return self.take(length).decode(errors="replace")


def parse(file: BinaryIO, *, tensors: bool = True) -> GgufHeader:
    """Return the header at the start of `file`; without `tensors` only its keys. Raises BadGguf, also CutShort."""
    header = GgufHeader()
    fill(header, file, tensors=tensors)
    return header


def fill(header: GgufHeader, file: BinaryIO, *, tensors: bool = True) -> None:
    """Read into `header` as `parse` does; `header` keeps the part before a CutShort."""
    reader, keys = _begin(header, file)
    for _ in range(keys):
        name = reader.text()
        _value(reader, header, name, reader.number("I"))
    if tensors:
        _tensors(reader, header)


def general(file: BinaryIO) -> dict[str, Any]:
    """Return the plain keys at the start of `file`, up to its vocabulary: its description, without a long read.

    Raises BadGguf.
    """
    header = GgufHeader()
    reader, keys = _begin(header, file)
    for _ in range(keys):
        name, kind = reader.text(), reader.number("I")
        if kind == _ARRAY and name.startswith("tokenizer."):
            break
        _value(reader, header, name, kind)
    return header.values


def _begin(header: GgufHeader, file: BinaryIO) -> tuple[_Reader, int]:
    """Return the reader before the first key, and the number of keys."""
    reader = _Reader(file)
    if reader.take(4) != _MAGIC:
        raise BadGguf("The file does not begin as a GGUF file does.")
    version = reader.number("I")
    if version & 0xFFFF == 0:
        reader.order, version = ">", int.from_bytes(struct.pack("<I", version), "big")
    if not 2 <= version <= 3:
        raise BadGguf(f"GGUF version {version} is not known here.")
    header.tensors, keys = reader.number("Q"), reader.number("Q")
    if keys > _MOST_KEYS:
        raise BadGguf("The header has more keys than any may have.")
    return reader, int(keys)


def _value(reader: _Reader, header: GgufHeader, name: str, kind: int) -> None:
    if kind == _ARRAY:
        _list(reader, header, name)
    elif kind == _STRING:
        header.values[name] = reader.text()
    elif kind in _SCALARS:
        value = reader.number(_SCALARS[kind])
        header.values[name] = None if isinstance(value, float) and not math.isfinite(value) else value
    else:
        raise BadGguf(f"The header holds a value of the unknown type {kind}.")


def _list(reader: _Reader, header: GgufHeader, name: str) -> None:
    inner, count = reader.number("I"), reader.number("Q")
    if count > _MOST_ITEMS:
        raise BadGguf("A list in the header is longer than any may be.")
    header.lengths[name] = count
    if inner in _SCALARS:
        numbers = reader.numbers(_SCALARS[inner], count)
        if count <= _KEPT_ITEMS and all(math.isfinite(number) for number in numbers):
            header.values[name] = list(numbers)
    elif inner == _STRING:
        for _ in range(count):
            reader.text()
    else:
        raise BadGguf(f"The header holds a list of the unknown type {inner}.")


def _tensors(reader: _Reader, header: GgufHeader) -> None:
    if header.tensors > _MOST_TENSORS:
        raise BadGguf("The header has more tensors than any may have.")
    total: int | None = 0
    experts = table = 0
    for _ in range(header.tensors):
        name, dimensions = reader.text(), reader.number("I")
        if dimensions > _MOST_DIMENSIONS:
            raise BadGguf("A tensor has more dimensions than any may have.")
        elements = math.prod(reader.numbers("Q", dimensions))
        form = _BLOCKS.get(reader.number("I"))
        reader.take(8)  # its place in the file
        if form is None or total is None:
            total = None
            continue
        block, size = form
        held = -(-elements // block) * size
        total += held
        experts += held if any(word in name for word in _EXPERTS) else 0
        table += held if name == _INPUT_TABLE else 0
    if total is not None and total < 2**62:
        header.tensor_bytes, header.expert_bytes, header.input_table_bytes = total, experts, table


def shape_values(header: GgufHeader) -> dict[str, GgufValue]:
    """Return the keys of a header that describe the model's shape: general ones, and those of its architecture."""
    prefixes = ("general.", f"{header.values.get('general.architecture')}.", "split.")
    found: dict[str, GgufValue] = {}
    for name, value in header.values.items():
        if not name.startswith(prefixes) or value is None or (isinstance(value, str) and len(value) > 200):
            continue
        found[name] = tuple(value) if isinstance(value, list) else value
    return found
