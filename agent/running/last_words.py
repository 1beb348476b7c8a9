"""Last lines of engines that mean a fault of the machine, as a sentence that says what to do."""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class _Rule:
    """Patterns of a line, and what it means; `in_containers` for a line that means something else elsewhere."""

    text: str
    pattern: re.Pattern[str]
    in_containers: bool = False


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_RULES = (
    _Rule(
        "The GPU driver of this node is too old for the engine. Update the driver, or use an older engine or image.",
        _any(
            r"driver on your system is too old",
            r"driver version is insufficient for CUDA runtime",
            r"unsupported display driver",
            r"forward compatibility was attempted on non supported",
            r"PTX was compiled with an unsupported toolchain",
        ),
    ),
    _Rule(
        "The GPU driver of this node was updated while it was loaded. Reboot the machine.",
        _any(r"driver/library version mismatch"),
    ),
    _Rule(
        "The engine sees no GPU. Compare nvidia-smi on the node with the GPUs of the model.",
        _any(
            r"no CUDA-capable device is detected",
            r"No CUDA GPUs are available",
            r"Failed to initialize NVML: Unknown Error",
        ),
    ),
    _Rule(
        "A container may write /tmp alone. If its image needs more, set engine_writable_root in the node's agent.json.",
        _any(r"Read-only file system", r"Errno 30\b"),
        in_containers=True,
    ),
    _Rule(
        "The engine cannot load what it compiled. Set engine_writable_root in the node's agent.json.",
        _any(r"failed to map segment from shared object"),
        in_containers=True,
    ),
)


def meaning(lines: Iterable[str], *, in_container: bool) -> str:
    """Return what `lines` mean for the machine's owner; empty when nothing is known."""
    text = "\n".join(lines)
    rules = (rule for rule in _RULES if in_container or not rule.in_containers)
    return next((rule.text for rule in rules if rule.pattern.search(text)), "")
