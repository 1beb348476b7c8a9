"""Arguments of llama.cpp that change the context, the projector and the memory of the engine."""

from collections.abc import Sequence

from agent.common.engine_flags import spelling

_MOST_REQUESTS = 1024
_SHARED = frozenset({"-kvu", "--kv-unified", "--kv-unified-per-slot"})
_SPLIT = frozenset({"-no-kvu", "--no-kv-unified"})
_NO_PROJECTOR = frozenset({"--no-mmproj", "--no-mmproj-auto"})
_PROJECTOR_ON_HOST = frozenset({"--no-mmproj-offload"})


def context_shares(args: Sequence[str]) -> int:
    """Return among how many requests the engine splits its context: those of ``--parallel``.

    All share one context where their number is not stated, or with ``--kv-unified``.
    """
    found, shared = 1, False
    for at, argument in enumerate(args):
        name = spelling(argument)
        if name in _SHARED | _SPLIT:
            shared = name in _SHARED
        if name in ("-np", "--parallel"):
            _, equals, text = argument.partition("=")
            found = _requests(text if equals else args[at + 1] if at + 1 < len(args) else "")
    return 1 if shared else found


def _requests(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST_REQUESTS))
    return int(text) if is_number and 0 < int(text) <= _MOST_REQUESTS else 1


def uses_projector(args: Sequence[str]) -> bool:
    """Return whether the engine gets the projector of its model."""
    return not any(spelling(argument) in _NO_PROJECTOR for argument in args)


def projector_on_host(args: Sequence[str]) -> bool:
    """Return whether the projector stays in host memory beside GPUs."""
    return any(spelling(argument) in _PROJECTOR_ON_HOST for argument in args)
