"""Names of GGUF files: models in one file or split into parts, and projectors beside them.

One rule for master and agent. Names may be paths; parts belong together within one folder only.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

SUFFIX = ".gguf"
NO_PROJECTOR = "none"
"""The choice of a model that runs without the projector beside it."""

_PART = re.compile(r"(?P<head>.*)-(?P<number>[0-9]{5})-of-(?P<total>[0-9]{5})\.gguf", re.IGNORECASE | re.DOTALL)
_WORDS = re.compile(r"[-_. ]+")
_PRECISION = re.compile(r"(?:bf|fp|f)(?:16|32|8)|i?q[0-9]+|mxfp4|tq[12]|[kmsl0-9]|x+[sl]|nl|ud|gguf|mmproj|model")
_PREFERRED = ("f16", "fp16", "bf16", "q8")
"""Precisions of a projector, the best choice first: small, and exact enough."""


class GgufPart(NamedTuple):
    """One part of a split model: the name before its number, the number from 1, and how many there are."""

    head: str
    number: int
    total: int


def is_gguf(name: str) -> bool:
    """Return whether `name` is that of a GGUF file, in any case."""
    return name.lower().endswith(SUFFIX)


def part_of(name: str) -> GgufPart | None:
    """Return the part that `name` is of a split model; None for a model in one file."""
    found = _PART.fullmatch(name)
    return GgufPart(found["head"], int(found["number"]), int(found["total"])) if found else None


def is_first(name: str) -> bool:
    """Return whether `name` is the only or the first file of a GGUF model."""
    part = part_of(name)
    return is_gguf(name) and (part is None or part.number == 1)


def parts_of(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return `name` and, of `names`, the other parts of the same model, in their order."""
    part = part_of(name)
    if part is None:
        return (name,)
    found = {name: part.number}
    for other in names:
        known = part_of(other)
        if known is not None and (known.head, known.total) == (part.head, part.total):
            found[other] = known.number
    return tuple(sorted(found, key=lambda one: (found[one], one)))


def parts_expected(name: str) -> int:
    """Return the number of files that the model of `name` has."""
    part = part_of(name)
    return 1 if part is None else part.total


def is_projector(name: str) -> bool:
    """Return whether `name` is that of a projector, which turns pictures or sound into a model's tokens."""
    return is_gguf(name) and "mmproj" in _base(name).lower()


def is_model(values: Mapping[str, object]) -> bool:
    """Return whether a file with these keys in its header is a model, and no adapter, projector or by-product."""
    return values.get("general.type", "model") == "model" and values.get("general.architecture") != "clip"


def projector_for(model: str, names: Iterable[str]) -> str:
    """Return the projector of `model` among `names`: in its folder, or in the nearest one above. Empty without one.

    Of the same projector in several precisions one is chosen. Where the files are of several models, its name must say
    which one it belongs to; where more than one could be meant, none is chosen.
    """
    known = [name for name in names if is_gguf(name)]
    projectors = [name for name in known if is_projector(name)]
    several = len({_family(name) for name in known if not is_projector(name)}) > 1
    folder = _folder(model)
    while True:
        beside = [name for name in projectors if _folder(name) == folder and (not several or _names(name, model))]
        if beside or not folder:
            return _best(beside, model)
        folder = _folder(folder)


def _names(projector: str, model: str) -> bool:
    family = set(_family(projector))
    return bool(family) and family <= set(_family(model))


def _best(projectors: list[str], model: str) -> str:
    if len({_family(name) for name in projectors}) > 1:
        projectors = [name for name in projectors if _family(name) == _family(model)]
    return min(projectors, key=_rank, default="")


def _rank(name: str) -> tuple[int, str]:
    words = _words(name)
    return next((at for at, word in enumerate(_PREFERRED) if word in words), len(_PREFERRED)), name


def _family(name: str) -> tuple[str, ...]:
    """Return the words of a name that say which model it is: without its precision, its part and its suffix."""
    return tuple(word for word in _words(name) if not _PRECISION.fullmatch(word))


def _words(name: str) -> tuple[str, ...]:
    part = part_of(name)
    return tuple(word for word in _WORDS.split(_base(part.head if part else name).lower()) if word)


def _base(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _folder(name: str) -> str:
    return name.rpartition("/")[0]
