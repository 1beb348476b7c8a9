"""What the header of a GGUF file says. Bounded: a file that is cut short or no GGUF at all is a problem in words."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agent.wire.downloads import GgufFile

_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_KEYS, _MOST_TEXT, _MOST_ITEMS, _MOST_HEADER = 4096, 1 << 20, 1 << 22, 1 << 28
_QUANTIZATIONS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip


class BadGguf(Exception):
    """It is not a GGUF file that can be read; the text is a sentence."""


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
            raise BadGguf("The file is cut short in its header.")
        return data

    def skip(self, count: int) -> None:
        self.read += count
        if self.read > _MOST_HEADER:
            raise BadGguf("The header is larger than that of any model.")
        self.file.seek(count, 1)

    def number(self, kind: str) -> Any:
        form = f"{self.order}{kind}"
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        length = self.number("Q")
        if length > _MOST_TEXT:
            raise BadGguf("A text in the header is longer than any may be.")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """A value; of an array only that it is one, since none is needed."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise BadGguf(f"The header holds a value of the unknown type {kind}.")
        inner, count = self.number("I"), self.number("Q")
        if count > _MOST_ITEMS:
            raise BadGguf("A list in the header is longer than any may be.")
        if inner in _SCALARS:
            self.skip(count * struct.calcsize(f"<{_SCALARS[inner]}"))
        else:
            for _ in range(count):
                self.value(inner)
        return None


def header(path: Path) -> dict[str, Any]:
    """Keys and plain values of the header; arrays are None. BadGguf, OSError; blocking."""
    with path.open("rb") as file:
        reader = _Reader(file)
        if reader.take(4) != _MAGIC:
            raise BadGguf("The file does not begin as a GGUF file does.")
        version = reader.number("I")
        if version & 0xFFFF == 0:
            reader.order, version = ">", int.from_bytes(struct.pack("<I", version), "big")
        if not 2 <= version <= 3:
            raise BadGguf(f"GGUF version {version} is not known here.")
        tensors, keys = reader.number("Q"), reader.number("Q")
        if keys > _MOST_KEYS:
            raise BadGguf("The header has more keys than any may have.")
        found: dict[str, Any] = {"tensors": tensors}
        for _ in range(keys):
            name = reader.text()
            found[name] = reader.value(reader.number("I"))
        return found


def is_first(path: Path) -> bool:
    """Whether `path` is a GGUF file that a model begins with."""
    return path.name.endswith(".gguf") and ("-of-" not in path.name or "-00001-of-" in path.name)


def describe(folder: Path, path: Path) -> GgufFile:
    """One GGUF model of `folder`. Blocking."""
    parts = [path]
    if "-00001-of-" in path.name:
        head, tail = path.name.split("-00001-of-", 1)
        parts = [p for p in path.parent.glob("*.gguf") if p.name.startswith(f"{head}-") and p.name.endswith(f"-{tail}")]
    size, problem, found = 0, None, {}
    try:
        size = sum(part.stat().st_size for part in parts)
        found = header(path)
    except BadGguf as error:
        problem = str(error)
    except OSError as error:
        problem = f"The file cannot be read: {error.strerror}."
    architecture = found.get("general.architecture")
    context = found.get(f"{architecture}.context_length")
    count = found.get("general.parameter_count")
    return GgufFile(
        path=str(path.relative_to(folder)),
        parts=len(parts),
        size_bytes=size,
        architecture=architecture if isinstance(architecture, str) else None,
        name=found["general.name"] if isinstance(found.get("general.name"), str) else None,
        quantization=_QUANTIZATIONS.get(found.get("general.file_type", -1)),
        context_length=context if isinstance(context, int) else None,
        parameters=count if isinstance(count, int) else None,
        problem=problem,
    )
