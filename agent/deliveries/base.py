"""The interface between an engine and the way it is run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from agent.wire.instances import PullProgress

LAUNCH_VARIABLE = "MIRBAD_LAUNCH_ID"
"""In every engine's environment: the launch that it belongs to, even when the agent's records are lost."""

OOM_SCORE = 300
"""Added to an engine's score with the system's out-of-memory killer."""

INSTANCE_VARIABLE = "MIRBAD_INSTANCE_ID"


@dataclass(frozen=True)
class DriverVersions:
    """The GPU driver of this node and the newest CUDA that it supports; None is unknown."""

    driver: str | None = None
    cuda: str | None = None


@dataclass(frozen=True)
class ImageSpec:
    """Settings of a container besides its command. `gpus` None means none, empty means all, else those UUIDs.

    With `shares_network` it uses the machine's own network, memory and InfiniBand devices, and listens on `host_port`.
    With `internet` it may open connections to anywhere; `writable_root` is for images that write beside ``/tmp``.
    An engine that `compiles` runs what it wrote to ``/tmp``. `versions` are of the node's GPU driver.
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
    internet: bool = False
    writable_root: bool = False
    compiles: bool = False
    versions: DriverVersions | None = None


@dataclass(frozen=True)
class RunSpec:
    """One engine to start. `launch_id` is new for every spawn and marks all of its processes; `log` is its file.

    A process may write `scratch`, read `reads`, and with `connects` open connections. `portable` is the part of its
    record that is kept beside it, without secrets, in case the record is lost.
    """

    instance_id: str
    launch_id: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    secrets: tuple[str, ...] = ()
    scratch: Path | None = None
    reads: tuple[Path, ...] = ()
    connects: bool = True
    portable: str = ""
    image: ImageSpec | None = field(default=None)


class Handle(BaseModel):
    """Reference to a started engine, kept in its record: a process by pid, start time and boot; a container by id.

    `host` and `port` are the container's own address, None when it is reached at this machine's. `without_gpus` means
    that Docker dropped the request for them.
    """

    model_config = ConfigDict(frozen=True)

    launch_id: str
    pid: int | None = None
    start_ticks: int | None = None
    boot_id: str = ""
    container_id: str | None = None
    image_digest: str | None = None
    host: str | None = None
    port: int | None = None
    without_gpus: bool = False


@dataclass(frozen=True)
class EngineObservation:
    """Observed state of an engine. `exit_code` None is unknown (it was another process's child).

    `with_docker` means that it ended because Docker was restarted, which ends its containers. That may still turn out
    for `in_doubt_seconds`: a Docker that is being stopped ends its containers first.
    """

    running: bool
    exit_code: int | None = None
    out_of_memory: bool = False
    with_docker: bool = False
    in_doubt_seconds: float = 0.0


@dataclass(frozen=True)
class FoundEngine:
    """An engine of this node without a record: its handle, its environment, and what was kept beside it.

    `record` is "" when nothing was; `model_id` is "" where it is unknown.
    """

    handle: Handle
    record: str
    env: Mapping[str, str]
    model_id: str = ""


class DeliveryFailed(Exception):
    """An engine could not be started or stopped; the text is a sentence with the next step.

    `code` is for programs; `port_taken` means that another port may help.
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
        """True when `follow` rewrites the log from its first line."""
        ...

    async def problem(self) -> str | None:
        """Return why nothing can be run this way now, as a sentence; None when it can."""
        ...

    async def prepare(self, run_spec: RunSpec, progress: Progress) -> None:
        """Do the slow part of a start (pull an image). May be cancelled. DeliveryFailed."""
        ...

    async def start(self, run_spec: RunSpec) -> Handle:
        """Start the engine. The record with `launch_id` is on disk already. DeliveryFailed."""
        ...

    async def recover(self, launch_id: str, handle: Handle | None) -> Handle | None:
        """Find the engine of `launch_id`, recorded or not: running, or ended where that can be observed.

        DeliveryFailed when it is unknown now.
        """
        ...

    async def find_unrecorded(self, known: frozenset[str]) -> tuple[FoundEngine, ...]:
        """Find running engines of this node whose launch is not in `known`. DeliveryFailed when unknown."""
        ...

    async def observe(self, handle: Handle) -> EngineObservation:
        """Return whether the engine still runs, and how it ended if not."""
        ...

    async def owns_port(self, handle: Handle, port: int) -> bool | None:
        """Return whether the engine itself listens on `port`; None when unknown."""
        ...

    async def memory_bytes(self, handle: Handle) -> int | None:
        """Return the host memory that the engine uses now; None when unknown."""
        ...

    async def follow(self, handle: Handle, log: Path) -> None:
        """Copy the engine's output into `log` until it ends; returns at once where it writes there itself."""
        ...

    async def stop(self, handle: Handle, grace_seconds: float) -> EngineObservation:
        """Ask the engine to end, and kill the rest of it after the grace. DeliveryFailed when it does not end."""
        ...

    async def clean(self, handle: Handle) -> None:
        """Remove the remains of a stopped engine (its container, child processes). Idempotent."""
        ...

    async def close(self) -> None:
        """Release resources; engines keep running."""
        ...
