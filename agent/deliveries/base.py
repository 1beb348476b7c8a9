"""The seam between an engine and the way it is run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from agent.wire.instances import PullProgress

LAUNCH_VARIABLE = "MIRBAD_LAUNCH_ID"
"""In every engine's environment: which launch it belongs to, whatever became of its agent's records."""

OOM_SCORE = 300
"""Added to an engine's standing with the system's out-of-memory killer."""

INSTANCE_VARIABLE = "MIRBAD_INSTANCE_ID"


@dataclass(frozen=True)
class ImageOrder:
    """What a container needs beside its command. `gpus` None asks for none, empty for all, else for those UUIDs.

    With `shares_network` it uses the machine's own network, memory and InfiniBand devices, and listens on `host_port`.
    """

    reference: str
    digest: str | None
    entrypoint: tuple[str, ...] | None
    mounts: tuple[Path, ...]
    container_port: int
    host_port: int
    gpus: tuple[str, ...] | None
    labels: Mapping[str, str]
    shares_network: bool = False


@dataclass(frozen=True)
class Order:
    """One engine to start. `launch_id` is new for every spawn and marks all of its processes; `log` is its file."""

    instance_id: str
    launch_id: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    secrets: tuple[str, ...] = ()
    image: ImageOrder | None = field(default=None)


class Handle(BaseModel):
    """Where a started engine is; kept in its record. A process by pid, start time and boot; a container by its id."""

    model_config = ConfigDict(frozen=True)

    launch_id: str
    pid: int | None = None
    start_ticks: int | None = None
    boot_id: str = ""
    container_id: str | None = None
    image_digest: str | None = None


@dataclass(frozen=True)
class Seen:
    """What is left of an engine. `exit_code` None is not known (it was another process's child)."""

    running: bool
    exit_code: int | None = None
    out_of_memory: bool = False


@dataclass(frozen=True)
class Found:
    """An engine of this node without a record: where it is, the record it carries, its environment."""

    handle: Handle
    record: str
    env: Mapping[str, str]


class DeliveryFailed(Exception):
    """An engine could not be started or stopped; the text is a sentence that says what to do.

    `code` is a word for machines; `port_taken` says that another port may help.
    """

    def __init__(self, text: str, *, code: str = "delivery_failed", port_taken: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.port_taken = port_taken


Progress = Callable[[PullProgress], None]


class EngineDelivery(Protocol):
    """One way to run engines. Every method may be called from the event loop; none blocks it."""

    @property
    def reads_log_again(self) -> bool:
        """Whether `follow` writes the log anew from its first line."""
        ...

    async def problem(self) -> str | None:
        """Why nothing can be run this way now, in words; None when it can."""
        ...

    async def prepare(self, order: Order, progress: Progress) -> None:
        """What can take long before the start (pulling an image). May be cancelled. DeliveryFailed."""
        ...

    async def start(self, order: Order) -> Handle:
        """Start it. The record with `launch_id` is on disk already. DeliveryFailed."""
        ...

    async def recover(self, launch_id: str, handle: Handle | None) -> Handle | None:
        """The engine of `launch_id`, whether or not its start was recorded: running, or ended where that can be seen.

        DeliveryFailed when that cannot be told now.
        """
        ...

    async def others(self, known: frozenset[str]) -> tuple[Found, ...]:
        """Running engines of this node whose launch is not among `known`. DeliveryFailed when it cannot be told."""
        ...

    async def seen(self, handle: Handle) -> Seen:
        """Whether it still runs, and how it ended if not."""
        ...

    async def owns_port(self, handle: Handle, port: int) -> bool | None:
        """Whether the engine itself listens on `port`; None when it cannot be told."""
        ...

    async def memory_bytes(self, handle: Handle) -> int | None:
        """Host memory that it holds now; None when it cannot be told."""
        ...

    async def follow(self, handle: Handle, log: Path) -> None:
        """Bring what it writes into `log` until it ends; returns at once where it writes there itself."""
        ...

    async def stop(self, handle: Handle, grace_seconds: float) -> Seen:
        """Ask it to end, and after the grace end all that is left of it. DeliveryFailed when it cannot be ended."""
        ...

    async def clean(self, handle: Handle) -> None:
        """Remove what a stopped engine left behind (its container, stray processes). Never raises for what is gone."""
        ...

    async def close(self) -> None:
        """The agent ends; engines go on."""
        ...
