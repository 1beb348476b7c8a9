"""Python pickles among the files of a model: loading one executes the code in it."""

import re
from collections.abc import Iterable

PICKLE_SUFFIXES = (
    ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pt2", ".pickle", ".joblib", ".npy", ".npz", ".dill", ".nemo", ".pk",
    ".ptl", ".torch", ".distcp",
)  # fmt: skip
_PACKED = re.compile(r"(?:\.(?:gz|bz2|xz|z|lzma|zst|lz4))+$")
"""Loaders of pickles unpack these themselves."""


def is_pickle(name: str) -> bool:
    """Return whether a file name or URL has the suffix of a pickle, in any case.

    A file name may contain the marks of a query or fragment, so a name counts with and without the text after them.
    """
    whole = name.lower()
    readings = {whole, re.split(r"[?#]", whole)[0]}
    return any(_PACKED.sub("", one.rstrip("/. ")).endswith(PICKLE_SUFFIXES) for one in readings)


def pickles_in(names: Iterable[str]) -> tuple[str, ...]:
    """Return the pickles among `names`, in their order."""
    return tuple(name for name in names if is_pickle(name))


def refusal_words(where: str, found: tuple[str, ...]) -> str:
    """Return the sentence with which both sides refuse pickles."""
    shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    return (
        f"{where} would bring Python pickles ({shown}), which run whatever they hold when they are loaded. Choose "
        "safetensors or GGUF files instead, or allow pickles for this on purpose."
    )
