"""A node's `Capabilities` as rows; pure."""

from dataclasses import dataclass
from typing import Any

from agent.wire.capability import Capabilities


@dataclass(frozen=True, slots=True)
class GpuRow:
    """The stored columns of one GPU. None is unknown; an unknown value never replaces a known one of the same card."""

    uuid: str
    index: int | None
    name: str
    memory_bytes: int | None
    shares_host_memory: bool | None

    def columns(self) -> dict[str, Any]:
        """Return the column values of the row, without unknown ones."""
        values = {
            "index": self.index,
            "name": self.name or None,
            "memory_bytes": self.memory_bytes,
            "shares_host_memory": self.shares_host_memory,
        }
        return {column: value for column, value in values.items() if value is not None}


def gpu_rows(capabilities: Capabilities) -> tuple[GpuRow, ...]:
    """Return one row per GPU, each UUID once (its first report counts)."""
    rows: dict[str, GpuRow] = {}
    for gpu in capabilities.gpus:
        rows.setdefault(
            gpu.uuid,
            GpuRow(
                uuid=gpu.uuid[:80],
                index=gpu.index if gpu.index is not None and 0 <= gpu.index < 2**15 else None,
                name=(gpu.name or "")[:120],
                memory_bytes=gpu.memory_bytes,
                shares_host_memory=gpu.shares_host_memory,
            ),
        )
    return tuple(rows.values())


def problems(capabilities: Capabilities) -> tuple[tuple[str, str, str], ...]:
    """Return the problems that the node reports of itself, as ``(code, subject, sentence)``."""
    found = []
    if capabilities.gpu_problem:
        found.append(("gpu_problem", "", capabilities.gpu_problem))
    for gpu in capabilities.gpus:
        # A driver that does not respond is reported once, not for each card.
        if gpu.problem and not (capabilities.gpu_problem and capabilities.gpu_problem in gpu.problem):
            words = gpu.problem if gpu.problem.startswith("GPU ") else f"GPU {gpu.uuid}: {gpu.problem}"
            found.append((gpu.problem_code or "gpu_problem", gpu.uuid, words))
    return tuple(found)
