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
    what the engine will load.
    """

    path: Path
    mounts: tuple[Path, ...]
    size_bytes: int


@dataclass(frozen=True)
class Seat:
    """Where one engine will sit: the address it listens on, its key, and what it may use of the machine."""

    host: str
    port: int
    api_key: str
    threads: int
    source: Source | None


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

    def host_memory_bytes(self, spec: LaunchSpec, source: Source | None) -> int | None:
        """An estimate of the host memory that the engine will take; None when nothing can be said."""
        ...
