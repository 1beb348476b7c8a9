"""The seam between an engine and the rest of the agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent.config import AgentConfig
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import LaunchSpec

GIB = 1024**3
MIB = 1024**2


@dataclass(frozen=True)
class Source:
    """Weights on this machine. `path` is what the engine opens: the folder, or one file in it.

    `mounts` are the real paths that a container needs, each mounted read-only at the same path; `size_bytes` counts
    what the engine will load; `safetensors` says that it can take safetensors from it.
    """

    path: Path
    mounts: tuple[Path, ...]
    size_bytes: int
    safetensors: bool = False


@dataclass(frozen=True)
class Meeting:
    """How one shard meets the others of its replica: at `address` and `port`, where rank 0 listens.

    `own_address` and `interface` are this machine's on the way there, None when they cannot be told. `devices` are its
    InfiniBand adapters on the fabric, `interfaces` its network interfaces.
    """

    name: str
    rank: int
    world_size: int
    address: str
    port: int
    own_address: str | None = None
    interface: str | None = None
    devices: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seat:
    """Where one engine will sit: the address it listens on, its key, and what it may use of the machine.

    `meeting` is for one shard of several; `part_of_card` is what its budget is of each card's memory, None for all.
    """

    host: str
    port: int
    api_key: str
    threads: int
    source: Source | None
    meeting: Meeting | None = None
    part_of_card: float | None = None


@dataclass(frozen=True)
class Command:
    """How to run it. For a container `argv` follows `entrypoint`, or the image's own when that is None."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Availability:
    """Whether a runtime can be delivered here in one way; `problem` is a sentence that says what to change."""

    available: bool
    version: str | None = None
    problem: str | None = None


class EngineRuntime(Protocol):
    """One engine: whether it can run here, whether a spec is acceptable, and the command line."""

    @property
    def name(self) -> Runtime:
        """Its name on the wire."""
        ...

    @property
    def health_path(self) -> str:
        """What answers 200 when the engine is ready."""
        ...

    @property
    def key_variable(self) -> str:
        """The environment variable that carries the engine's key."""
        ...

    @property
    def container_port(self) -> int:
        """The port on which it listens inside a container."""
        ...

    def availability(self, config: AgentConfig, delivery: Delivery) -> Availability:
        """Whether it can run here; for a container this says nothing of the container engine itself."""
        ...

    def prepare(self, spec: LaunchSpec, config: AgentConfig) -> Source | None:
        """Check the spec and find its weights. AgentError SPEC_REJECTED or SOURCE_MISSING; blocking."""
        ...

    def command(self, spec: LaunchSpec, config: AgentConfig, seat: Seat) -> Command:
        """The command line for a spec that `prepare` accepted."""
        ...

    def answers(self, spec: LaunchSpec) -> bool:
        """Whether it listens and says how it is; a shard may only work for another."""
        ...

    def host_memory_bytes(self, spec: LaunchSpec, source: Source | None) -> int | None:
        """An estimate of the host memory that the engine will take; None when nothing can be said."""
        ...
