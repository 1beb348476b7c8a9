"""How much of a machine a model takes and what a node leaves alone: one rule for the master's fit and admission."""

import math
from collections.abc import Sequence

from agent.wire.capability import Runtime

MIB = 1024**2
GIB = 1024**3

HOST_RESERVE_BYTES = 4 * GIB
"""What models leave of the host's memory when nobody set it; on a small machine a quarter of it."""

_SERVER_GIB = 2
_EACH_GPU_GIB = 4
_SWAP_SPACE = "--swap-space"
_SHORTEST = len("--swap")


def swap_space_gib(args: Sequence[str]) -> float | None:
    """GiB for each GPU that ``--swap-space`` gives, the last one; None without it, or for what is no such number."""
    found: float | None = None
    for at, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-")
        # argparse takes a beginning of the option for the option itself.
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
    """Host bytes of an engine on GPUs: 4 GiB for each and 2 for the server, or S for each with ``--swap-space S``."""
    swap = swap_space_gib(args)
    return int(((_EACH_GPU_GIB if swap is None else swap) * gpus + _SERVER_GIB) * GIB)


def host_part_of(runtime: str, args: Sequence[str], gpus: int, weights_bytes: int | None) -> int | None:
    """Host bytes that an engine takes when nobody gave a budget; None when nothing can be said.

    On the processor the weights are in host memory, with room for cache and buffers. llama.cpp maps its file, whatever
    it offloads.
    """
    if runtime == Runtime.SIM:
        return 96 * MIB
    if runtime == Runtime.VLLM and gpus:
        return host_part(gpus, args)
    if weights_bytes is None:
        return None
    if runtime == Runtime.VLLM:
        return int(weights_bytes * 1.2) + _SERVER_GIB * GIB
    return int(weights_bytes * 1.1) + 192 * MIB


def share(total: int | None, gpus: int) -> int | None:
    """What each of `gpus` cards gets of a budget that is split evenly; None when either is unknown."""
    return None if total is None or gpus < 1 else -(-total // gpus)


def on_shared_memory(host: int | None, gpu: int | None) -> int | None:
    """One budget where GPUs share the host's memory: both parts; a host part that is unknown counts as the server."""
    if gpu is None:
        return host
    return gpu + (_SERVER_GIB * GIB if host is None else host)


def usable(free: int | None, reserve: int | None, taken: int = 0) -> int | None:
    """What of `free` a model may take: without the reserve and what others were promised; None is unknown."""
    return None if free is None else free - (reserve or 0) - taken


def host_reserve(total: int | None, setting: int | None = None, owner: int | None = None) -> int:
    """Host memory that models leave alone: the node's `setting`, or the default.

    `owner` is the word of who owns the machine (its ``agent.json``), None without one; of both the larger counts.
    """
    if owner is not None:
        return max(owner, setting or 0)
    if setting is not None:
        return setting
    return HOST_RESERVE_BYTES if total is None else min(HOST_RESERVE_BYTES, total // 4)
