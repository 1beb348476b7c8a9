"""What the header of a safetensors file says. Pure and bounded: what is no such file is a problem in words."""

import json
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO

MOST_HEADER = 32 * 1024 * 1024
_LENGTH = struct.Struct("<Q")
_EXPERTS = ".experts."


class BadSafetensors(Exception):
    """It is not a safetensors file that can be read; the text is a sentence."""


@dataclass
class Header:
    """Bytes of the tensors: all, those of experts, and by the name of the type."""

    tensors: int = 0
    tensor_bytes: int = 0
    expert_bytes: int = 0
    by_type: dict[str, int] = field(default_factory=dict)


def header_length(begin: bytes) -> int:
    """How long the JSON is that follows the first eight bytes. BadSafetensors."""
    if len(begin) < _LENGTH.size:
        raise BadSafetensors("The file is cut short in its header.")
    length = int(_LENGTH.unpack(begin[: _LENGTH.size])[0])
    if not 2 <= length <= MOST_HEADER:
        raise BadSafetensors("The file does not begin as a safetensors file does.")
    return length


def parse(file: BinaryIO) -> Header:
    """The header that `file` begins with. BadSafetensors."""
    length = header_length(file.read(_LENGTH.size))
    data = file.read(length)
    if len(data) != length:
        raise BadSafetensors("The file is cut short in its header.")
    return summed(data)


def summed(data: bytes) -> Header:
    """The sums of a header's JSON. BadSafetensors."""
    try:
        entries: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise BadSafetensors("The header of the file is not JSON.") from None
    if not isinstance(entries, dict):
        raise BadSafetensors("The header of the file is not a JSON object.")
    header = Header()
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        kind, held = _tensor(entry)
        header.tensors += 1
        header.tensor_bytes += held
        header.by_type[kind] = header.by_type.get(kind, 0) + held
        header.expert_bytes += held if _EXPERTS in name else 0
    return header


def _tensor(entry: Any) -> tuple[str, int]:
    """Its type and bytes."""
    if isinstance(entry, dict) and isinstance(kind := entry.get("dtype"), str):
        offsets: Any = entry.get("data_offsets")
        whole = isinstance(offsets, list) and len(offsets) == 2 and all(type(number) is int for number in offsets)
        if whole and 0 <= offsets[0] <= offsets[1] < 2**62:
            return kind, int(offsets[1] - offsets[0])
    raise BadSafetensors("The header of the file holds a tensor that cannot be read.")
