"""Memory that a model takes of a machine, and memory that a node reserves: one rule for fit and admission."""

import math
from collections.abc import Sequence

MIB = 1024**2
GIB = 1024**3

HOST_RESERVE_BYTES = 4 * GIB
"""Host memory that models may not use unless a reserve is set; on a small machine it is a quarter of the memory."""

# The values of `agent.wire.capability.Runtime`, which shared code does not import.
_VLLM = "vllm"
_SIM = "sim"

_SERVER_GIB = 2
_EACH_GPU_GIB = 4
_SWAP_SPACE = "--swap-space"
_SHORTEST = len("--swap")


def swap_space_gib(args: Sequence[str]) -> float | None:
    """Return the GiB for each GPU that the last ``--swap-space`` gives; None without it, or for an invalid number."""
    found: float | None = None
    for at, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-")
        # argparse accepts a prefix of the option for the option itself.
        if len(name) >= _SHORTEST and _SWAP_SPACE.startswith(name):
            found = _number(value if equals else args[at + 1] if at + 1 < len(args) else "")
    return found


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def host_part(gpus: int, args: Sequence[str] = ()) -> int:
    """Return the host bytes of an engine on GPUs: 2 GiB for the server and 4 for each GPU, or ``--swap-space`` for
    each.
    """
    swap = swap_space_gib(args)
    return int(((_EACH_GPU_GIB if swap is None else swap) * gpus + _SERVER_GIB) * GIB)


def host_part_of(runtime: str, args: Sequence[str], gpus: int, weights_bytes: int | None) -> int | None:
    """Return the host bytes that an engine takes without a budget; None when they cannot be estimated.

    On the CPU the weights are in host memory, with extra for cache and buffers. llama.cpp maps its file, whatever it
    offloads.
    """
    if runtime == _SIM:
        return 96 * MIB
    if runtime == _VLLM and gpus:
        return host_part(gpus, args)
    if weights_bytes is None:
        return None
    if runtime == _VLLM:
        return int(weights_bytes * 1.2) + _SERVER_GIB * GIB
    return int(weights_bytes * 1.1) + 192 * MIB


def share(total: int | None, gpus: int) -> int | None:
    """Return the bytes for each of `gpus` cards of an evenly split budget; None when either is unknown."""
    return None if total is None or gpus < 1 else -(-total // gpus)


def required(need: int | None, fraction: float | None, total: int | None) -> int | None:
    """Return the bytes that an engine takes of a card or the host of `total` bytes.

    `fraction` is the part that it takes whatever it needs. None when neither is known.
    """
    claimed = None if fraction is None or total is None else int(total * fraction)
    return max((part for part in (need, claimed) if part is not None), default=None)


def on_shared_memory(host: int | None, gpu: int | None) -> int | None:
    """Return one budget where GPUs share the host's memory: both parts. An unknown host part counts as the server."""
    if gpu is None:
        return host
    return gpu + (_SERVER_GIB * GIB if host is None else host)


def usable(free: int | None, reserve: int | None, taken: int = 0) -> int | None:
    """Return the part of `free` that a model may take: less the reserve and the promises to others; None is unknown."""
    return None if free is None else free - (reserve or 0) - taken


def host_reserve(total: int | None, setting: int | None = None, owner: int | None = None) -> int:
    """Return the host memory that models may not use: the node's `setting`, or the default.

    `owner` is the reserve in the machine's ``agent.json``, None without one; the larger of the two applies. An owner's
    reserve of all memory, which no model could run beside, counts as none.
    """
    if owner is not None and not reserves_all(owner, total):
        return max(owner, setting or 0)
    if setting is not None:
        return setting
    return HOST_RESERVE_BYTES if total is None else min(HOST_RESERVE_BYTES, total // 4)


def reserves_all(owner: int | None, total: int | None) -> bool:
    """Return whether the reserve in a machine's ``agent.json`` leaves no memory to any model."""
    return owner is not None and total is not None and owner >= total
