"""The GGUF models of a folder, by their headers."""

from pathlib import Path
from typing import Any

from agent.common.formats import gguf, gguf_names
from agent.common.formats.gguf import BadGguf
from agent.wire.downloads import GgufFile

_QUANTIZATIONS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip


def header(path: Path) -> dict[str, Any]:
    """Return keys and plain values of the header. BadGguf, OSError; blocking."""
    with path.open("rb") as file:
        return gguf.parse(file, tensors=False).values


def parts_of(path: Path) -> list[Path]:
    """Return `path` and the other parts of the same split model, in their order. OSError."""
    if gguf_names.part_of(path.name) is None:
        return [path]
    names = [other.name for other in path.parent.iterdir()]
    return [path.with_name(name) for name in gguf_names.parts_of(path.name, names)]


def describe(folder: Path, path: Path) -> GgufFile:
    """Return one GGUF model of `folder`. Blocking."""
    parts, size, problem, found = [path], 0, None, {}
    try:
        parts = parts_of(path)
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
