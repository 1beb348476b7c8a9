"""Which files hold Python pickles: they run whatever they hold when they are loaded. One rule for master and agent."""

from collections.abc import Iterable

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pt2")


def is_pickle(name: str) -> bool:
    """Whether a file or address ends like a pickle, whatever its case; a query and a fragment are cut off first."""
    return name.split("#", 1)[0].split("?", 1)[0].rstrip("/").lower().endswith(PICKLE_SUFFIXES)


def pickles_in(names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that are pickles, in their order."""
    return tuple(name for name in names if is_pickle(name))


def refusal_words(where: str, found: tuple[str, ...]) -> str:
    """The sentence with which both sides refuse pickles."""
    shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    return (
        f"{where} would bring Python pickles ({shown}), which run whatever they hold when they are loaded. Choose "
        "safetensors or GGUF files instead, or allow pickles for this on purpose."
    )
