"""The plan that three sides of a simulated fleet share: one makes the rows, one serves, one measures."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PORT = 19443
FIRST = 127 << 24 | 77 << 16
"""Node n listens on 127.77.0.0 + n + 1; no two nodes share an address."""


@dataclass(frozen=True)
class Member:
    """One agent: its node, where it listens, its state folder, and the instance that it runs, if any."""

    node_id: str
    address: str
    port: int
    folder: str
    instance_id: str = ""
    model_id: str = ""


def address_of(number: int) -> str:
    """The address of node `number`."""
    value = FIRST + number + 1
    return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))


def write(path: Path, members: Sequence[Member]) -> None:
    """Keep a plan for the processes that serve it."""
    path.write_text(json.dumps([asdict(member) for member in members]))


def read(path: Path) -> tuple[Member, ...]:
    """Return the plan that `write` kept."""
    return tuple(Member(**entry) for entry in json.loads(path.read_text()))
